"""The table of containers: complete, consistent with the SDKs' image data, and honest about GPUs."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path

import pytest

from smp_advisor.cluster.containers import container, containers, image_at, patched_pytorch, repositories
from smp_advisor.cluster.table import instance, instances, sagemaker_names
from smp_advisor.libraries.version import default_of, driving_versions

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def refresh():
    """The refresh script, as a module."""
    spec = importlib.util.spec_from_file_location("refresh_containers", ROOT / "scripts" / "containers.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def table(refresh):
    with refresh.CONTAINERS.open() as file:
        return list(refresh.csv.DictReader(file))


def test_every_image_is_listed_once_with_gpus_that_its_cuda_compiles_for():
    keys = [(image.repository, image.framework_version, image.transformers_version) for image in containers()]
    assert len(keys) == len(set(keys))
    assert {image.repository for image in containers()} <= set(repositories())
    first_toolkit = {(8, 0): (11, 0), (8, 6): (11, 1), (9, 0): (11, 8), (12, 0): (12, 8)}
    for image in containers():
        assert image.py_versions
        assert tuple(int(part) for part in image.cuda.split(".")) >= first_toolkit[max(image.architectures)], image


def test_plans_are_for_the_image_that_aws_patches_for_every_gpu_but_v100():
    for machine in instances():
        version = default_of("fsdp", driving_versions("fsdp", machine))
        assert version == ("2.8.0" if machine.architecture == "7.0" else "2.13.0")
    default = container("pytorch", "2.13.0")
    assert [machine.name for machine in instances() if not default.runs_on(machine)] == ["ml.p6e-gb200.36xlarge"]


@pytest.mark.sagemaker
def test_accounts_of_the_registries_are_those_of_the_sdk():
    from sagemaker import image_uris

    versions = image_uris.config_for_framework("pytorch")["training"]["versions"]
    for region, account in versions["2.8.0"]["registries"].items():
        assert container("pytorch", "2.13.0").uri(region).startswith(f"{account}.dkr.ecr.{region}.amazonaws.com")


@pytest.mark.sagemaker
def test_the_table_has_every_image_of_the_installed_sdk(refresh, table):
    rows = list(refresh.rows_of(Path(sysconfig.get_path("purelib"))))
    assert rows
    assert [line for line in refresh.differences(table, rows) if not line.startswith("gone")] == []
    assert refresh.with_new(table, rows) == table


def test_the_refresh_reports_new_images_and_those_without_patches(refresh, table):
    new = refresh.Row("pytorch-training", "2.99.0", "", ("py399",))
    assert next(refresh.differences(table, [new])) == "new: pytorch-training:2.99.0 py399"
    (added,) = [row for row in refresh.with_new(table, [new]) if row not in table]
    assert added == dict.fromkeys(table[0], "") | {
        "repository": "pytorch-training",
        "framework_version": "2.99.0",
        "py_versions": "py399",
    }

    lines = list(refresh.out_of_patches(table, "2027-05-01"))
    assert lines[:3] == [
        "patched until 2027-07-02: pytorch:2.12.1",
        "patched until 2027-07-20: pytorch:2.13.0",
        "no patches since 2027-04-30: pytorch:2.11.0",
    ]
    assert "no patches since 2027-01-21: pytorch-training:2.10.0" in lines
    assert lines[-1].startswith("not in AWS's support policy: tensorflow-training:2.3.1, 2.4.1")


def test_instances_and_addresses_are_of_the_table():
    assert {machine.name for machine in instances()} <= sagemaker_names()

    newest = patched_pytorch(instance("ml.p5.48xlarge"))
    assert image_at(newest.uri("eu-west-1")) is newest
    assert image_at("123456789012.dkr.ecr.eu-west-1.amazonaws.com/mine:1") is None
