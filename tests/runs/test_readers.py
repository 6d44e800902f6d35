"""Readers of logs: formats, units, memory, dropped steps; the posterior, and figures that no hardware reaches."""

import json
import re
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.costs.learned import update
from smp_advisor.errors import CalibrationError
from smp_advisor.runs.measure import measured_run, read_run
from smp_advisor.runs.readers import Sample, read_text
from smp_advisor.runs.steps import log_of_text, typical
from tests.runs.logs import LOGS, exported


@pytest.mark.parametrize("excerpt", LOGS, ids=lambda excerpt: excerpt.title)
def test_a_format_is_recognized_and_read(excerpt):
    log = read_text(excerpt.text)
    assert (log.title, log.unit) == (excerpt.title, excerpt.unit)
    assert [sample.value for sample in log.samples] == pytest.approx(excerpt.values)
    assert log.peak_gib == pytest.approx(excerpt.peak_gib)
    assert log.global_batch_size == excerpt.batch
    assert not log.out_of_memory


@pytest.mark.slow
@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text):
    with suppress(CalibrationError):
        read_run(text + "\n.")


def test_warm_up_saves_restarts_and_other_ranks_are_dropped():
    values = [60.0, 3.0, *[2.0, 2.02] * 10, 30.0, *[2.0, 1.98] * 10]
    samples = [Sample(step, value) for step, value in enumerate(values, start=1)]
    again = [Sample(step, value) for step, value in enumerate([55.0, 2.0, 2.01, 1.99], start=11)]
    both_ranks = [sample for sample in [*samples, *again] for _ in range(2)]
    result = typical(both_ranks)
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
def test_the_typical_step_is_that_of_most_steps(seconds, factors, saves):
    values = [seconds * factor for factor in factors]
    for number in range(saves):
        values.insert(len(values) // 2 + number, 20 * seconds)
    result = typical([Sample(step, value) for step, value in enumerate([10 * seconds, *values])])
    assert result.seconds == pytest.approx(seconds, rel=0.025)


def test_rates_become_seconds_with_the_batch_of_the_plan(advice):
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


def test_another_batch_in_the_log_is_refused_with_a_remedy(advice):
    megatron = next(log for log in LOGS if log.title == "Megatron-LM")
    with pytest.raises(CalibrationError, match="global batch of 128 samples and the plan 256"):
        advice.calibrate(megatron.text)
    half = replace(advice.plan, batch_size=advice.plan.batch_size // 2)
    other = replace(advice.job, global_batch_size=128)
    text = re.sub(r"throughput per GPU.*?\|", "", megatron.text)  # whose figure is of another model
    assert advice.calibrate(text, plan=half, job=other, accept=True).job.calibration is not None


def test_a_log_that_ends_out_of_memory_moves_the_next_plan(advice):
    text = "Training...\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.22 GiB\n"
    calibrated = advice.calibrate(text)
    assert calibrated.plan != advice.plan
    (run,) = calibrated.job.calibration.runs
    assert (run.memory_kind, run.step_seconds) == ("out of memory", None)


def test_tables_are_read(advice):
    frame = pd.DataFrame({"step": range(1, 9), "step_time_ms": [9000.0, *[2000.0] * 7], "peak_allocated_gib": 20.0})
    run = advice.calibrate(frame).job.calibration.runs[0]
    assert run.step_seconds == pytest.approx(2.0)
    assert (run.memory_kind, run.memory_gib) == ("allocated", 20.0)
    assert "read as milliseconds per step: inferred" in " ".join(run.notes)
    with pytest.raises(CalibrationError):
        advice.calibrate(pd.DataFrame({"loss": [1.0]}))


def test_the_state_of_hugging_faces_trainer_is_read(advice, tmp_path):
    state = {
        "global_step": 100,
        "log_history": [
            {"loss": 2.1, "step": 50, "epoch": 0.5},
            {"eval_loss": 2.0, "eval_runtime": 40.0, "step": 100},
            {"train_runtime": 240.0, "train_steps_per_second": 0.417, "step": 100},
        ],
    }
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps(state, indent=2), "utf-8")
    for source in (path, str(path), state):
        run = advice.calibrate(source).job.calibration.runs[0]
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
def test_a_log_runs_out_of_memory_by_the_messages_of_failures(line, ran_out):
    log = f"{exported([2.0] * 20)}\n{line}\n"
    assert log_of_text(log).out_of_memory is ran_out
    assert not log_of_text(f"{log}{exported([2.0] * 30, first=21)}").out_of_memory  # the script caught it


@pytest.mark.slow
def test_the_start_and_the_end_of_a_long_log_are_read(advice, tmp_path, monkeypatch):
    monkeypatch.setitem(read_run.__globals__, "_FIRST_BYTES", 2**14)
    monkeypatch.setitem(read_run.__globals__, "_LAST_BYTES", 7 * 2**14)
    short = exported([2.0] * 20) + "\n"
    text = short + ("a line between steps, " * 50 + "\n") * 390 + "CUDA out of memory. Tried to allocate 2.00 GiB\n"
    path = tmp_path / "long.log"
    path.write_text(text, "utf-8")
    for source in (path, text):
        log, _ = read_run(source)
        assert [sample.value for sample in log.samples] == [sample.value for sample in read_text(short).samples]
        assert log.out_of_memory
        assert log.notes[-1] == "The log is long: 0.3 MB in its middle were not read."
    with path.open("wb") as file:
        file.truncate(2**20)
    with pytest.raises(CalibrationError, match=r"no measured steps.* MB in its middle were not read\.$"):
        advice.calibrate(path)
    with pytest.raises(CalibrationError, match="not a regular file"):
        advice.calibrate(tmp_path)


ERRORS = st.floats(-1.5, 1.5)
NOISES = st.floats(0.02, 0.5)
CORRELATION = st.floats(0.0, 0.95)


def _prior(n, correlation, spread=0.3):
    return spread**2 * (correlation * np.ones((n, n)) + (1 - correlation) * np.eye(n))


@given(st.lists(st.tuples(ERRORS, NOISES), min_size=1, max_size=5), CORRELATION)
def test_it_is_the_conditional_normal_distribution(runs, correlation):
    n = len(runs)
    prior, measured = _prior(n, correlation), np.array([error for error, _ in runs])
    variance = np.array([noise**2 for _, noise in runs])
    posterior = update(prior, measured, variance, np.zeros(n, dtype=bool))
    expected = np.linalg.solve(prior + np.diag(variance), measured)
    assert (prior @ posterior.weights) == pytest.approx(prior @ expected, abs=1e-9)
    left = prior - prior @ np.linalg.solve(prior + np.diag(variance), prior)
    assert np.diag(prior) - posterior.reduction(prior) == pytest.approx(np.diag(left), abs=1e-9)


@given(st.lists(st.tuples(ERRORS, NOISES, st.booleans()), min_size=2, max_size=5), CORRELATION, st.randoms())
def test_the_order_of_runs_has_no_effect(runs, correlation, random):
    def mean(of):
        errors, noises, censored = (np.array(column) for column in zip(*of, strict=True))
        posterior = update(_prior(len(of), correlation), errors, noises**2, censored.astype(bool))
        cross = np.full((1, len(of)), correlation * 0.09)
        return (cross @ posterior.weights)[0], posterior.reduction(cross)[0]

    shuffled = list(runs)
    random.shuffle(shuffled)
    assert mean(shuffled) == pytest.approx(mean(runs), abs=1e-7)


@given(st.floats(-3, 3), st.floats(0.05, 0.5))
def test_a_lower_limit_only_moves_the_mean_up(limit, noise):
    prior = np.array([[1.0]])
    for censored in (True, False):
        nothing = update(prior, np.array([limit]), np.array([np.inf]), np.array([censored]))
        assert ((prior @ nothing.weights), nothing.reduction(prior)) == (0, 0)
    posterior = update(prior, np.array([limit]), np.array([noise**2]), np.array([True]))
    assert (prior @ posterior.weights)[0] >= -1e-12
    assert 0 <= posterior.reduction(prior)[0] < 1
    if limit > 1:
        assert (prior @ posterior.weights)[0] > limit - 3 * noise
    far = update(prior, np.array([60.0]), np.array([0.01]), np.array([True]))  # without an overflow
    assert 50 < (prior @ far.weights)[0] < 61


@pytest.mark.parametrize("accept", [False, True])
@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"step_seconds": 1e-3}, r"needs [\d,]+ TFLOP/s on each GPU, whose peak is 312"),
        ({"peak_gib": 200}, "has, 40 GiB"),
        ({"peak_gib": 41, "peak_kind": "total"}, "has, 40 GiB"),
    ],
)
def test_what_no_hardware_reaches_is_refused_with_its_figure(advice, figures, words, accept):
    with pytest.raises(CalibrationError, match=words):
        advice.calibrate(**figures, accept=accept)


@pytest.mark.parametrize("factor", [0.1, 0.5, 2.0, 10.0, 20.0])
def test_what_is_only_unlikely_is_learned_when_it_is_accepted(advice, factor):
    seconds, usual = advice.estimate.step_seconds * factor, factor in (0.5, 2.0)
    if not usual:
        with pytest.raises(CalibrationError, match=r"times the estimate.*accept=True.*--accept|peak is"):
            advice.calibrate(step_seconds=seconds)
    if factor >= 0.5:
        assert advice.calibrate(step_seconds=seconds, accept=not usual).job.calibration.runs[0].step_seconds == seconds


LINE = "loss 9.1 tokens_per_second {:.1f} seconds_per_step {:.4f} peak_allocated_gib 20.1"
TRAINER = "{{'train_samples_per_second': {:.4f}, 'train_steps_per_second': {:.4f}}}"


@pytest.mark.parametrize(
    ("unit", "work"),
    [
        (LINE, 256 * 2048),
        (TRAINER, 256),
        ("samples_per_second", 256),
        ("tokens_per_second", 256 * 2048),
        ("tokens_per_second_per_gpu", 256 * 2048 / 16),
    ],
)
def test_a_rate_times_a_step_s_time_is_the_batch(advice, unit, work):
    seconds = advice.estimate.step_seconds

    def log(work):
        if unit == TRAINER:
            return TRAINER.format(work / seconds, 1 / seconds)
        if unit == LINE:
            return "\n".join(f"step {step} {LINE.format(work / seconds, seconds)}" for step in range(10, 60, 10))
        return [{"step": step, "step_seconds": seconds, unit: work / seconds} for step in range(1, 9)]

    run = advice.calibrate(log(work)).job.calibration.runs[0]
    assert run.step_seconds == pytest.approx(seconds, rel=1e-3)
    assert not any("inferred" in note and "batch" in note for note in run.notes)
    with pytest.raises(CalibrationError, match=rf"[a-zGPU ]+ per step.* and the plan {work:,.0f}"):
        advice.calibrate(log(work / 2))
    if unit == TRAINER:  # whose data may end in the middle of a batch
        assert advice.calibrate(log(8), accept=True).learned is not None
