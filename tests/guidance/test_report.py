"""The recommendation as text."""

from __future__ import annotations

import re

import pytest

import smp_advisor as smpa


@pytest.fixture(scope="module")
def advice() -> smpa.Advice:
    return smpa.advise(
        "20B",
        "ml.p4d.24xlarge",
        instance_count=16,
        library="smp-v1",
        sequence_length=1024,
        global_batch_size=512,
    )


def test_every_part_of_the_advice_is_printed(advice: smpa.Advice) -> None:
    text = str(advice)
    flat = re.sub(r"\s+", " ", text)
    for step in advice.steps:
        assert f"{step.order}. {step.title}: {step.decision}." in flat
        assert step.because in flat
    assert f"{advice.estimate.step_seconds:.2f} s" in flat
    assert f"{advice.estimate.memory.peak.total_gib:.2f} GiB" in flat
    assert advice.because in flat
    assert advice.reference.name in flat
    for sentence in advice.estimate.assumptions:
        assert sentence in flat
    for demand in advice.pitfalls:
        assert demand.id in flat


def test_lines_fit_a_terminal_and_numbers_keep_their_units(advice: smpa.Advice) -> None:
    lines = str(advice).splitlines()
    assert max(map(len, lines)) <= 100
    assert not any(re.match(r"\s*(%|GiB)", line) for line in lines)
    assert "\xa0" not in str(advice)


def test_settings_of_the_training_script_are_part_of_the_configuration() -> None:
    text = str(
        smpa.advise(
            "350M", "ml.p4d.24xlarge", library="fsdp", global_batch_size=64, loss="chunked", paged_optimizer=True
        )
    )
    rows = [line.split() for line in text.splitlines()]
    assert ["loss", "chunked"] in rows
    assert ["paged", "optimizer", "on"] in rows
    assert ["loss", "plain"] not in rows
    assert "mixed-precision states" in " ".join(text.split())
