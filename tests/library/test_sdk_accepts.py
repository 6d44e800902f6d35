"""The SageMaker SDK's own validation, the last thing before a job is paid for, takes what plans write."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given, settings

from smp_advisor.library import Plan, image, versions
from tests.library.plans import valid_plans

pytestmark = pytest.mark.moto


@pytest.fixture(scope="module")
def fw_utils():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the SDK announces its own end of support
        pytest.importorskip("sagemaker", minversion="2.200")
        from sagemaker import fw_utils
    return fw_utils


def test_parameters_of_any_valid_plan(fw_utils):
    @settings(max_examples=300)
    @given(valid_plans())
    def accepted(plan):
        fw_utils.validate_mp_config(plan.parameters)

    accepted()


def test_the_sdk_would_fail_without_the_older_name_beside_default_partition(fw_utils):
    parameters = Plan(pipeline_parallel_degree=2, auto_partition=False, default_partition=0).parameters
    fw_utils.validate_mp_config(parameters)
    del parameters["partitions"]
    with pytest.raises(KeyError, match="partitions"):
        fw_utils.validate_mp_config(parameters)


@pytest.mark.parametrize("version", versions("smp-v1"))
def test_every_image_resolves(fw_utils, version):
    from sagemaker import image_uris

    found = image("smp-v1", version)
    uri = image_uris.retrieve(
        "pytorch",
        "us-west-2",
        version=found.framework_version,
        py_version=found.py_version,
        instance_type="ml.p4d.24xlarge",
        image_scope="training",
    )
    assert uri.endswith(f"pytorch-training:{found.framework_version}-gpu-{found.py_version}")
