"""The SageMaker SDK's own validation, the last thing before a job is paid for, takes what plans write."""

import warnings

import pytest
from hypothesis import given

from smp_advisor.libraries import Plan, image, versions
from smp_advisor.libraries.version import images
from tests.libraries.plans import valid_plans

pytestmark = pytest.mark.moto


@pytest.fixture(scope="module")
def fw_utils():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the SDK announces its own end of support
        from sagemaker import fw_utils
    return fw_utils


@given(plan=valid_plans())
def test_parameters_of_any_valid_plan(fw_utils, plan):
    fw_utils.validate_mp_config(plan.parameters)


def test_the_sdk_would_fail_without_the_older_name_beside_default_partition(fw_utils):
    parameters = Plan(pipeline_parallel_degree=2, auto_partition=False, default_partition=0).parameters
    fw_utils.validate_mp_config(parameters)
    del parameters["partitions"]
    with pytest.raises(KeyError, match="partitions"):
        fw_utils.validate_mp_config(parameters)


SMP = {"torch_distributed": {"enabled": True}, "smdistributed": {"modelparallel": {"enabled": True}}}


@pytest.mark.parametrize(
    ("library", "found"),
    [
        pytest.param(library, found, id=f"{library} {found.version}")
        for library in ("smp-v2", "training-compiler")
        for found in images(library)
        if (library, found.version) != ("smp-v2", "2.0.0")
    ],
)
def test_every_image_of_its_own_is_the_one_the_sdk_names(fw_utils, library, found):
    from sagemaker import image_uris
    from sagemaker.huggingface import TrainingCompilerConfig

    face = found.estimator == "HuggingFace"
    uri = image_uris.get_training_image_uri(
        "us-west-2",
        framework=found.estimator.lower(),
        framework_version=found.transformers_version if face else found.framework_version,
        pytorch_version=found.framework_version if face else None,
        py_version=found.py_version,
        instance_type="ml.p4d.24xlarge" if library == "smp-v2" else "ml.p3.2xlarge",
        **{"distribution": SMP} if library == "smp-v2" else {"compiler_config": TrainingCompilerConfig()},
    )
    assert uri == f"{found.account}.dkr.ecr.us-west-2.amazonaws.com/{found.repository}:{found.tag}"


@pytest.mark.parametrize("library", ["smp-v1", "ddp", "smp-v1-tensorflow"])
def test_every_image_of_the_plain_containers_resolves(fw_utils, library):
    from sagemaker import image_uris

    older = [image(library, version) for version in versions(library)] if library == "smp-v1" else images(library)
    for found in older:
        if found.sdk_2 is None:
            continue  # version 3 has it
        uri = image_uris.retrieve(
            found.estimator.lower(),
            "us-west-2",
            version=found.framework_version,
            py_version=found.py_version,
            instance_type="ml.p4d.24xlarge",
            image_scope="training",
        )
        # TensorFlow's tags go on with CUDA's version and the operating system's.
        assert f"{found.repository}:{found.framework_version}-gpu-{found.py_version}" in uri


def test_torch_distributed_takes_every_version_of_plain_pytorch(fw_utils):
    known = set(fw_utils.TORCH_DISTRIBUTED_GPU_SUPPORTED_FRAMEWORK_VERSIONS)
    assert {one.framework_version for one in images("ddp") if one.sdk_2 is not None} <= known
