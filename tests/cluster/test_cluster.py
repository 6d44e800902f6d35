"""The instance table: complete, plausible, and honest about what is assumed."""

import dataclasses
import importlib.util
import sys
import sysconfig
from pathlib import Path

import pytest

from smp_advisor.cluster import Cluster, Instance, gpu, gpus, instance, instances
from smp_advisor.cluster.containers import container, containers, image_at, patched_pytorch, repositories
from smp_advisor.cluster.table import completed_instance, sagemaker_names, sources, table_date
from smp_advisor.core.files import columns, rows
from smp_advisor.libraries.version import default_of, driving_versions
from smp_advisor.session.storage import adapter


def test_figures_are_plausible(subtests):
    for machine in instances():
        with subtests.test(machine.name):
            assert machine.gpus in {1, 2, 4, 8}
            assert 0.9 * machine.gpu_memory_gib < machine.usable_gpu_memory_gib < machine.gpu_memory_gib
            assert (machine.intra_node_gb_per_s > 0) == (machine.gpus > 1)
            assert machine.nvlink == (machine.intra_node_gb_per_s >= 300)
            assert machine.inter_node_gbps > 0
            assert machine.efa or not machine.gpudirect_rdma
            assert machine.source
            assert machine.price_note


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("p4d", "ml.p4d.24xlarge"),
        ("ml.p4d", "ml.p4d.24xlarge"),
        ("P4de", "ml.p4de.24xlarge"),
        ("p4d.24xlarge", "ml.p4d.24xlarge"),
        ("p5.48", "ml.p5.48xlarge"),
        ("p6-b200", "ml.p6-b200.48xlarge"),
    ],
)
def test_the_beginning_of_a_name_is_completed(text, name):
    assert completed_instance(text).name == name
    assert Cluster(text).instance.name == name


def test_sources_cover_every_column_once():
    columns = [column for source in sources() for column in source.columns]
    assert len(columns) == len(set(columns))
    described = set(Instance.__dataclass_fields__) - {"name", "price_note", "source", "assumed", "custom"}
    assert set(columns) == described
    assert table_date() >= max(source.date for source in sources())


def test_every_instance_is_there_once():
    names = [machine.name for machine in instances()]
    assert len(names) == len(set(names)) == 49


HARDWARE = {
    "gpu": "A100 80GB",
    "usable_gpu_memory_gib": 79.0,
    "peak_tflops": 312.0,
    "gpus_per_node": 4,
    "nodes": 2,
    "intra_node_gb_per_s": 600.0,
    "inter_node_gbps": 200.0,
}


def test_totals_and_rates_of_p4d():
    cluster = Cluster("ml.p4d.24xlarge", 16)
    assert (cluster.gpus, cluster.gpus_per_node) == (128, 8)
    assert cluster.usd_per_hour == pytest.approx(16 * 25.251286)
    assert cluster.intra_node_bytes_per_s == 300e9
    assert cluster.inter_node_bytes_per_s_per_node == 50e9
    assert cluster.summary == (
        "16 x ml.p4d.24xlarge: 128 x A100 40 GB, NVLink3/NVSwitch, 400 Gbps EFA per node with GPUDirect RDMA,"
        " 404.02 USD per hour"
    )


def test_names_prices_and_what_is_no_instance():
    cluster = Cluster("ml.p5e.48xlarge", 2)
    assert cluster.usd_per_hour is None
    assert "no on-demand price known" in cluster.summary

    assert Cluster("p4d.24xlarge", 2) == Cluster(instance("ml.p4d.24xlarge"), 2)
    assert hash(Cluster("p4d.24xlarge")) == hash(Cluster("ml.p4d.24xlarge", 1))
    assert dataclasses.replace(Cluster("p4d.24xlarge"), nodes=3).gpus == 24


def test_custom_takes_the_given_figures_and_lists_the_others_as_assumed():
    machine = Cluster.custom(**HARDWARE, hbm_gb_per_s=2000.0).instance
    assert machine.custom
    assert machine.nvlink
    assert not Cluster.custom(**HARDWARE | {"intra_node_gb_per_s": 64.0}).instance.nvlink
    assert (machine.gpus, machine.usable_gpu_memory_gib, machine.hbm_gb_per_s) == (4, 79.0, 2000.0)
    assert (machine.host_memory_gib, machine.vcpus) == (1152 / 2, 96 // 2)  # half a p4de node
    assert "hbm_gb_per_s" not in machine.assumed
    assert {"host_memory_gib", "host_link_gb_per_s", "gpudirect_rdma", "intra_node", "vcpus"} <= set(machine.assumed)
    assert "ml.p4de.24xlarge" in machine.source

    assert Cluster.custom(**HARDWARE).usd_per_hour is None
    assert Cluster.custom(**HARDWARE, usd_per_hour=10.0).usd_per_hour == 20.0


@pytest.mark.parametrize(
    ("gpu", "memory", "tflops", "similar"),
    [("NVIDIA H100 NVL", 93.0, 835.0, "H100"), ("T4", 14.5, 65.0, "T4"), ("RTX 6000 Ada", 47.0, 364.0, "L40S")],
)
def test_what_is_missing_comes_from_the_nearest_gpu(gpu, memory, tflops, similar):
    figures = HARDWARE | {"gpu": gpu, "usable_gpu_memory_gib": memory, "peak_tflops": tflops}
    assert similar in Cluster.custom(**figures).instance.source


@pytest.mark.parametrize(
    ("name", "board"),
    [
        ("A100-80GB", "A100-80GB"),
        ("NVIDIA A100 SXM4 80GB", "A100-80GB"),
        ("rtx 4090", "RTX4090-24GB"),
        ("NVIDIA GeForce RTX 4090 24GB", "RTX4090-24GB"),
        ("H100-96GB", "H100-96GB"),
        ("l4", "L4-24GB"),
    ],
)
def test_a_board_is_found_by_its_name(name, board):
    assert gpu(name).name == board


def test_every_board_of_an_instance_has_the_figures_of_the_instance():
    boards = {board.gpu: board for board in gpus()}
    for machine in instances():
        board = boards[machine.gpu]
        shared = ("usable_gpu_memory_gib", "peak_tflops", "fp8_tflops", "hbm_gb_per_s", "board_watts", "bf16")
        assert {name: getattr(board, name) for name in shared} == {name: getattr(machine, name) for name in shared}
        if machine.gpus > 1:
            assert machine.intra_node_gb_per_s == (board.nvlink_gb_per_s or board.pcie_gb_per_s)


def test_figures_of_boards_are_plausible(subtests):
    for board in gpus():
        with subtests.test(board.name):
            assert 0.9 * board.gpu_memory_gib < board.usable_gpu_memory_gib < board.gpu_memory_gib
            assert board.fp8_tflops == 0 or 1.9 < board.fp8_tflops / board.peak_tflops < 2.1
            assert 60 < board.peak_tflops < 3000
            assert 250 < board.hbm_gb_per_s < 10_000
            assert 50 < board.board_watts < 1500


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


@pytest.mark.slow
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


def test_instances_and_addresses_are_of_the_table():
    assert {machine.name for machine in instances()} <= sagemaker_names()

    newest = patched_pytorch(instance("ml.p5.48xlarge"))
    assert image_at(newest.uri("eu-west-1")) is newest
    assert image_at("123456789012.dkr.ecr.eu-west-1.amazonaws.com/mine:1") is None


def test_a_record_that_was_stored_first_is_read_from_its_table():
    """The types of the fields replace their names then."""
    adapter("Cluster")
    row = rows("smp_advisor.cluster", "data/instances.csv")[0]
    read = columns(Instance, row)
    assert {name: getattr(instance(row["instance_type"]), name) for name in read} == read


def test_patches_end_by_the_day_of_the_answer(monkeypatch):
    newest = patched_pytorch(instance("ml.p5.48xlarge"))
    monkeypatch.setattr("smp_advisor.cluster.containers.today", lambda: newest.end_of_support)
    assert newest.is_patched
    monkeypatch.setattr("smp_advisor.cluster.containers.today", lambda: "2099-01-01")
    assert not newest.is_patched
    assert patched_pytorch(instance("ml.p5.48xlarge")) is None
