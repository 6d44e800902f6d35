"""The kind of training code and its rule with the attention."""

from __future__ import annotations

import re

import pytest

from smp_advisor import Job, stacks
from smp_advisor.errors import JobError
from smp_advisor.libraries.library import get_library, libraries


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stack": "hf-eager", "attention": "fused"}, "contradicts attention='fused'"),
        ({"stack": "hf-flash-2", "attention": "eager"}, "contradicts attention='eager'"),
        ({"stack": "jax"}, "stack must be one of auto, hf-eager"),
        ({"stack": None}, "stack must be"),
    ],
)
def test_a_contradiction_is_one_sentence(settings: dict[str, str], words: str) -> None:
    with pytest.raises(JobError, match=words) as error:
        Job(**settings)  # type: ignore[arg-type]
    assert str(error.value).count(". ") == 0


def test_stacks_have_sources_attention_and_libraries() -> None:
    for stack in stacks().values():
        assert stack.source
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", stack.date)
        assert stack.summary.endswith(".")
        assert stack.divided.divided_by == ""

    assert Job().attention == "eager"
    assert Job(stack="hf-flash-2").attention == "fused"
    assert Job(stack="hf-eager").attention == "eager"
    assert Job(stack="megatron", attention="eager").attention == "eager"
    assert "attention" in Job(stack="hf-flash-2").defaulted()
    assert "attention" not in Job(attention="fused").defaulted()

    assert {record.stack for record in libraries()} <= set(stacks())
    assert get_library("smp-v1").stack == "smp-v1"
