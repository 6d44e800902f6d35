"""Readers of logs: formats, units, memory, and the steps that are dropped."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import smp_advisor as smpa
from smp_advisor.errors import CalibrationError
from smp_advisor.runs.measure import measured_run, read_run
from smp_advisor.runs.readers import Sample, read_text
from smp_advisor.runs.steps import typical
from tests.runs.logs import LOGS, Excerpt, exported

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("excerpt", LOGS, ids=lambda excerpt: excerpt.title)
def test_a_format_is_recognized_and_read(excerpt: Excerpt) -> None:
    log = read_text(excerpt.text)
    assert (log.title, log.unit) == (excerpt.title, excerpt.unit)
    assert [sample.value for sample in log.samples] == pytest.approx(excerpt.values)
    assert log.peak_gib == pytest.approx(excerpt.peak_gib)
    assert log.global_batch_size == excerpt.batch
    assert not log.out_of_memory


@pytest.mark.slow
@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(CalibrationError):
        read_run(text + "\n.")


def test_warm_up_saves_restarts_and_other_ranks_are_dropped() -> None:
    values = [60.0, 3.0, *[2.0, 2.02] * 10, 30.0, *[2.0, 1.98] * 10]
    samples = [Sample(step, value) for step, value in enumerate(values, start=1)]
    again = [Sample(step, value) for step, value in enumerate([55.0, 2.0, 2.01, 1.99], start=11)]
    both_ranks = [sample for sample in [*samples, *again] for _ in range(2)]
    result = typical(both_ranks)
    assert result is not None
    assert result.seconds == pytest.approx(2.0, rel=0.01)
    assert result.spread < 0.02
    assert dict(result.dropped) == {
        "restart (the step number went back)": 1,
        "repeated lines of other ranks": len(values) + len(again),
        "warm-up": 3,
        "slow steps (checkpoint, evaluation, or a stall)": 1,
    }
    assert result.steps == 43


@given(st.floats(0.1, 100), st.lists(st.floats(0.98, 1.02), min_size=10, max_size=40), st.integers(0, 3))
def test_the_typical_step_is_that_of_most_steps(seconds: float, factors: list[float], saves: int) -> None:
    values = [seconds * factor for factor in factors]
    for number in range(saves):
        values.insert(len(values) // 2 + number, 20 * seconds)
    result = typical([Sample(step, value) for step, value in enumerate([10 * seconds, *values])])
    assert result is not None
    assert result.seconds == pytest.approx(seconds, rel=0.025)


def test_the_exported_scripts_log_calibrates(advice: smpa.Advice, tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    seconds = 1.3 * advice.estimate.step_seconds
    path.write_text(exported([30 * seconds, *[seconds] * 20]), "utf-8")
    calibrated = advice.calibrate(path)
    assert calibrated.job.calibration is not None
    (run,) = calibrated.job.calibration.runs
    assert run.source == "exported script: job.log"
    assert run.step_seconds == pytest.approx(seconds, rel=1e-3)
    assert (run.memory_kind, run.memory_gib) == ("reserved", 24.0)
    notes = " ".join(run.notes)
    for text in (
        "20 of 21 values",
        "Dropped 1: warm-up",
        "Measured plan: step time",
    ):
        assert text in notes


def test_rates_become_seconds_with_the_batch_of_the_plan(advice: smpa.Advice) -> None:
    tokens = advice.estimate.tokens_per_step
    for text in (
        f"step 20 loss 3.2 tokens_per_second {tokens / 2.0}\nstep 40 loss 3.2 tokens_per_second {tokens / 2.0}",
        f"step:  1  loss: 12.2  memory: 27.14GiB(34.28%)  tps: {tokens / 2.0 / 16:,.2f}  tflops: 6.70  mfu: 6.34%\n",
        "Batch 74 Loss: 11.625, Speed: 128.0 samples/sec, Model TFLOPS/GPU: 28.64, lr: 0.000049\n",
        f'{{"step": 3, "tokens_per_second": {tokens / 2.0}}}\n',
    ):
        log, _ = read_run(text)
        run = measured_run(log, advice.model, advice.cluster, advice.job, advice.plan)
        assert run.step_seconds == pytest.approx(2.0, rel=1e-3)


def test_another_batch_in_the_log_is_refused_with_a_remedy(advice: smpa.Advice) -> None:
    megatron = next(log for log in LOGS if log.title == "Megatron-LM")
    with pytest.raises(CalibrationError, match="global batch of 128 samples and the plan 256"):
        advice.calibrate(megatron.text)
    half = replace(advice.plan, batch_size=advice.plan.batch_size // 2)
    other = replace(advice.job, global_batch_size=128)
    assert advice.calibrate(megatron.text, plan=half, job=other, accept=True).job.calibration is not None


def test_a_log_that_ends_out_of_memory_moves_the_next_plan(advice: smpa.Advice) -> None:
    text = "Training...\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.22 GiB\n"
    calibrated = advice.calibrate(text)
    assert calibrated.plan != advice.plan
    (run,) = calibrated.job.calibration.runs  # type: ignore[union-attr]
    assert (run.memory_kind, run.step_seconds) == ("out of memory", None)


def test_tables_are_read(advice: smpa.Advice) -> None:
    frame = pd.DataFrame({"step": range(1, 9), "step_time_ms": [9000.0, *[2000.0] * 7], "peak_allocated_gib": 20.0})
    run = advice.calibrate(frame).job.calibration.runs[0]  # type: ignore[union-attr]
    assert run.step_seconds == pytest.approx(2.0)
    assert (run.memory_kind, run.memory_gib) == ("allocated", 20.0)
    assert "read as milliseconds per step: inferred" in " ".join(run.notes)
    with pytest.raises(CalibrationError):
        advice.calibrate(pd.DataFrame({"loss": [1.0]}))


def test_the_state_of_hugging_faces_trainer_is_read(advice: smpa.Advice, tmp_path: Path) -> None:
    state = {
        "global_step": 100,
        "log_history": [
            {"loss": 2.1, "step": 50, "epoch": 0.5},
            {"eval_loss": 2.0, "eval_runtime": 40.0, "step": 100},
            {"train_runtime": 240.0, "train_steps_per_second": 0.4, "step": 100},
        ],
    }
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps(state, indent=2), "utf-8")
    for source in (path, str(path), state):
        run = advice.calibrate(source).job.calibration.runs[0]  # type: ignore[union-attr]
        assert run.step_seconds == pytest.approx(2.0)
        assert run.step_noise > 0.1
        assert "including start-up" in run.notes[0]


@pytest.mark.parametrize(
    ("line", "ran_out"),
    [
        ("[rank3]: torch.OutOfMemoryError: CUDA \x1b[31mout of memory\x1b[0m. Tried to allocate 2.00 GiB", True),
        ("RuntimeError: HIP out of memory", True),
        ("cuMemCreate failed: CUDA_ERROR_OUT_OF_MEMORY", True),
        ("MemoryError: cannot allocate memory", False),
    ],
)
def test_a_log_runs_out_of_memory_by_the_messages_of_failures(line: str, ran_out: bool) -> None:
    assert read_text(f"{exported([2.0] * 20)}\n{line}\n").out_of_memory is ran_out


def test_the_start_and_the_end_of_a_long_log_are_read(advice: smpa.Advice, tmp_path: Path) -> None:
    short = exported([2.0] * 20) + "\n"
    text = short + "a line between steps\n" * 2**19 + "CUDA out of memory. Tried to allocate 2.00 GiB\n"
    path = tmp_path / "long.log"
    path.write_text(text, "utf-8")
    for source in (path, text):
        log, _ = read_run(source)
        assert [sample.value for sample in log.samples] == [sample.value for sample in read_text(short).samples]
        assert log.out_of_memory
        assert log.notes[-1] == "The log is long: 2.6 MB in its middle were not read."
    with path.open("wb") as file:
        file.truncate(64 * 2**20)
    with pytest.raises(CalibrationError, match=r"no measured steps .* MB in its middle were not read\.$"):
        advice.calibrate(path)
    with pytest.raises(CalibrationError, match="not a regular file"):
        advice.calibrate(tmp_path)
