"""Reasons for global batches."""

from __future__ import annotations

from dataclasses import replace

import pytest

import smp_advisor as smpa
from smp_advisor.guidance import batch_reason


@pytest.fixture(scope="module")
def advice() -> smpa.Advice:
    return smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp", sequence_length=1024)


@pytest.mark.parametrize(
    ("share", "half", "twice", "larger_gain", "words"),
    [
        (1.0, 0.9, 1.0, 0.0, ""),
        (4.0, 0.9, 1.0, 0.0, ", because half of it would be slower"),
        (4.0, 1.0, 1.0, 0.0, ""),
        (0.25, 0.9, 1.0, 0.01, ", because larger ones are not noticeably faster"),
        (0.25, 0.9, 1.0, 0.08, ", because twice the batch is faster only with more techniques"),
        (0.25, 0.9, 1.2, 0.20, ""),
    ],
)
def test_the_reason_is_that_of_the_figures(advice, share, half, twice, larger_gain, words) -> None:
    batch = advice.decision.batch
    tokens = round(share * batch.policy.target_tokens)
    changed = replace(batch, tokens_per_step=tokens, half=half, twice=twice, larger_gain=larger_gain)
    text = batch_reason(advice.model, advice.estimate, changed)
    assert f" tokens){words}. GPT-3" in text


def test_a_requested_batch_has_no_other_reason(advice: smpa.Advice) -> None:
    batch = replace(advice.decision.batch, policy=None)
    assert batch_reason(advice.model, advice.estimate, batch).endswith(" tokens), as requested.")
