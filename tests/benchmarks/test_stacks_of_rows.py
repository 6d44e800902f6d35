"""Kind of training code of measured rows."""

import pytest

from benchmarks.accuracy_rows.stacks import stack_of_row
from benchmarks.accuracy_rows.table import Row
from smp_advisor import stacks


@pytest.mark.parametrize(
    ("framework", "attention", "kind", "expected"),
    [
        ("SageMaker SMP v1", "fused softmax", "eager", "smp-v1-distributed"),
        ("torchtitan FSDP2", "sdpa-flash", "flash", "torch-compile"),
        ("HF Trainer DDP", "eager (EsmSelfAttention)", "eager", "hf-eager"),
        ("PyTorch FSDP1, Hugging Face model", "sdpa", "flash", "hf-sdpa"),
        ("HF Trainer", "flash_attention_2", "flash", "hf-flash-2"),
        ("a library of next year", "", "flash-assumed", "hf-sdpa"),
    ],
)
def test_the_framework_decides_then_the_attention(framework, attention, kind, expected):
    row = Row({"framework": framework, "attention": attention, "attention_class": kind})
    assert stack_of_row(row) == expected
    assert expected in stacks()
