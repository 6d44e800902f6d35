"""The recommendation as text."""

from __future__ import annotations

import re

import pytest

import smp_advisor as smpa


@pytest.fixture(scope="module")
def advice() -> smpa.Advice:
    return smpa.advise(
        "20B", "ml.p4d.24xlarge", instance_count=16, library="smp-v1", sequence_length=1024, global_batch_size=512
    )


@pytest.fixture(scope="module")
def ten_billion() -> smpa.Advice:
    return smpa.advise("10B", "ml.p4d.24xlarge", instance_count=16, sequence_length=512)


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_the_report_is_short(ten_billion: smpa.Advice) -> None:
    text = str(ten_billion)
    assert len(text.split()) <= 400
    # Names that contain digits (ml.p4d.24xlarge, GPT-3, SMP v1) are no figures.
    before = text[: text.index("\nDetails")]
    assert len(re.findall(r"(?<![\w.-])\d[\d,.]*", before)) <= 25


def test_the_verdict_comes_first_and_names_the_request(ten_billion: smpa.Advice) -> None:
    first = str(ten_billion).splitlines()[0]
    assert "10 B on 16 x ml.p4d.24xlarge: fits" in first
    assert "Requested: sequence length 512" in flat(str(ten_billion))


def test_the_report_names_every_setting_of_the_user() -> None:
    advice = smpa.advise(
        "7B",
        "ml.p4d.24xlarge",
        instance_count=2,
        library="smp-v2",
        sequence_length=4096,
        global_batch_size=256,
        precision="bf16",
        optimizer="lion",
        tokens=3e11,
        objective="headroom",
        min_fit_probability=0.9,
        hybrid_shard_degree=16,
        vocab=32_000,
    )
    text = flat(str(advice))
    for words in (
        "sequence length 4,096", "global batch of 256 samples", "300 B tokens", "Lion", "precision bf16",
        "vocabulary 32,000", "objective headroom", "fit probability of at least 90.0 %", "16",
    ):  # fmt: skip
        assert words in text
    assert "Fixed by you." in text


def test_no_rule_id_is_shown_alone(advice: smpa.Advice) -> None:
    assert not re.findall(r"\b(?:SMP|STC|DDP|TRN)\d{3}\b", advice.report(details=True))


def test_data_parallel_degree_and_ladder_are_shown(advice: smpa.Advice) -> None:
    text = str(advice)
    assert f"Data-parallel degree: {128 // advice.plan.pipeline_parallel_degree} " in text
    for rung in advice.ladder().rungs:
        assert rung.title in text


def test_details_have_every_part_of_the_advice(advice: smpa.Advice) -> None:
    text = flat(advice.report(details=True))
    assert text.startswith(flat(str(advice)).partition(" Details ")[0])
    for step in advice.steps:
        assert f"{step.order}. {step.title}: {step.decision}." in text
        assert step.details in text
    assert f"{advice.estimate.memory.peak.total_gib:.2f} GiB" in text
    assert advice.because in text
    assert advice.reference.name in text
    for sentence in advice.estimate.assumptions:
        assert sentence in text
    for pitfall in advice.pitfalls:
        assert flat(pitfall.text) in text


def test_lines_fit_a_terminal_and_numbers_keep_their_units(advice: smpa.Advice) -> None:
    for text in (str(advice), advice.report(details=True)):
        lines = text.splitlines()
        assert max(len(line) for line in lines if not line.startswith("  ")) <= 100
        assert not any(re.match(r"\s*(%|GiB)", line) for line in lines)
        assert "\xa0" not in text
    assert max(map(len, str(advice).splitlines())) <= 120


def test_settings_of_the_training_script_are_part_of_the_configuration() -> None:
    advice = smpa.advise(
        "350M", "ml.p4d.24xlarge", library="fsdp", global_batch_size=64, loss="chunked", paged_optimizer=True
    )
    rows = [line.split() for line in advice.report(details=True).splitlines()]
    assert ["loss", "chunked"] in rows
    assert ["paged", "optimizer", "on"] in rows
    assert ["loss", "plain"] not in rows
    assert "mixed-precision states" in flat(advice.report(details=True))
