"""Options of an account: checked, quoted, and sent with both versions of the SDK."""

import ast
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.cluster import Cluster
from smp_advisor.errors import ExportError
from smp_advisor.export import estimator_cell
from smp_advisor.export.launch import _METRICS
from smp_advisor.libraries import Plan
from smp_advisor.workload import Job
from tests.export.examples import TASKS
from tests.export.reading import formatted, shape
from tests.export.test_estimator import TEXT

ROLE = "arn:aws:iam::123456789012:role/SageMakerRole"
TRAINING_PLAN = "arn:aws:sagemaker:eu-west-1:123456789012:training-plan/mine"
BUCKET = """
import boto3
boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="models")
"""
OPTIONS = {
    "region": "eu-west-1",
    "role": ROLE,
    "tags": {"team": "research", "cost center": "a/b=c+d@e.f:g_h-i"},
    "training_plan": TRAINING_PLAN,
    "output_path": "s3://models/team",
    "output_kms_key": "alias/models",
    "volume_kms_key": "arn:aws:kms:eu-west-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab",
    "input_mode": "FastFile",
    "environment": {"NCCL_DEBUG": 'it\'s "INFO"\n{x} \\'},
    "image_uri": "123456789012.dkr.ecr.eu-west-1.amazonaws.com/mine:1",
    "data": {"train": "s3://data/tokens", "validation": "fsx://fs-0123456789abcdef0/fsx/held-out"},
    "subnets": ["subnet-1"],
    "security_group_ids": ["sg-1"],
    "volume_gb": 250,
}


def cell(sdk, **options):
    plan = Plan(library="fsdp", version="2.8.0", precision="fp16", batch_size=4)
    job = Job(sequence_length=32, precision="fp16")
    return estimator_cell(TASKS["llama"], Cluster("ml.p3.16xlarge", 2), job, plan, sdk=sdk, **OPTIONS | options)


TEXTS = (
    *("role", "region", "training_plan", "output_path", "output_kms_key", "volume_kms_key", "input_mode", "image_uri"),
    *("tag", "tag value", "value"),
)
"""Options that are text, or contain it."""


@pytest.mark.slow
@given(st.sampled_from(["v2", "v3"]), st.sampled_from(TEXTS), TEXT)
def test_no_text_of_an_option_changes_what_a_cell_does(sdk, option, text):
    """Each text is refused in one sentence, or is in the cell as a literal."""
    name, value = {
        "output_path": ("output_path", f"s3://bucket/{text}"),
        "tag": ("tags", {text: "x"}),
        "tag value": ("tags", {"x": text}),
        "value": ("environment", {"A": text}),
    }.get(option, (option, text))
    try:
        emitted = cell(sdk, **{name: value})
    except ExportError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    if name not in ("tags", "environment"):
        assert shape(emitted) == shape(cell(sdk))
    constants = {node.value for node in ast.walk(ast.parse(emitted)) if isinstance(node, ast.Constant)}
    assert ({value} if isinstance(value, str) else {*value, *value.values()}) <= constants
    assert formatted(emitted) == emitted


def test_the_metrics_read_the_lines_of_the_script():
    lines = (
        "step 1,020/1,200 loss 2.5000 tokens_per_second 1234.5 seconds_per_step 0.2500 tflops_per_gpu 101.25 mfu 0.3245"
        " peak_allocated_gib 20.50 peak_reserved_gib 24.00 learning_rate 1.000e-04\nstep 1,020 validation_loss 2.7500\n"
    )
    for loss in ("nan", "inf"):
        assert re.search(_METRICS["train:loss"], lines.replace("2.5000", loss))[1] == loss
    found = {name: re.findall(pattern, lines) for name, pattern in _METRICS.items()}
    assert found == {
        "train:loss": ["2.5000"],
        "train:throughput": ["1234.5"],
        "train:tflops_per_gpu": ["101.25"],
        "train:mfu": ["0.3245"],
        "train:peak_allocated_gib": ["20.50"],
        "train:peak_reserved_gib": ["24.00"],
        "validation:loss": ["2.7500"],
    }
