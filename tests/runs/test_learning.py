"""What a measured run changes in estimates, what it leaves alone, and the magic for it."""

import math
import pickle
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.error import UsageError

import smp_advisor as smpa
from smp_advisor.costs.evaluate import memory_columns, seconds_columns
from smp_advisor.errors import AdvisorError, CalibrationError, JobError
from smp_advisor.libraries.layout import layout_of
from smp_advisor.notebook import Advisor
from smp_advisor.notebook.shown import set_displayed_last
from smp_advisor.notebook.view_state import recommendation
from smp_advisor.runs.measure import measured_run
from smp_advisor.runs.readers import Log, Sample
from tests.runs.logs import exported

FACTORS = st.floats(0.6, 3.0)


def _calibration(advice, *factors):
    """Runs of the plan that took `factors` times the predicted step time."""
    of = (advice.model, advice.cluster, advice.job, advice.plan)
    seconds = smpa.estimate(*of).step_seconds
    logs = [Log(title="your figures", samples=(Sample(None, factor * seconds),)) for factor in factors]
    return smpa.Calibration(runs=tuple(measured_run(log, *of, accept=True) for log in logs))


def _estimate(advice, calibration, cluster=None):
    job = replace(advice.job, calibration=calibration, global_batch_size=None)
    return smpa.estimate(advice.model, cluster or advice.cluster, job, advice.plan)


@given(st.integers(0, 10**6), FACTORS, st.sampled_from(["allocated", "reserved", "total"]), st.floats(0.5, 0.99))
def test_a_measurement_is_itself_for_every_plan_and_fill_of_memory(advice, row, factor, kind, fill):
    space = advice.result.space
    plan = space.plan(row % len(space))
    place = (advice.model, advice.cluster, replace(advice.job, global_batch_size=None), plan)
    seconds, peak = factor * smpa.estimate(*place).step_seconds, fill * advice.cluster.instance.usable_gpu_memory_gib
    log = Log(title="your figures", samples=(Sample(None, seconds),), peak_gib={kind: peak})
    with suppress(CalibrationError):  # no hardware reaches it
        run = replace(measured_run(log, *place, accept=True), step_noise=1e-3)
        after = smpa.estimate(*place[:2], replace(place[2], calibration=smpa.Calibration(runs=(run,))), plan)
        assert after.step_seconds == pytest.approx(seconds, rel=2e-3)
        low, high = after.step_seconds_range
        assert low < seconds < high


def _log_width(estimate):
    low, high = estimate.step_factors
    return math.log(high / low)


@given(FACTORS)
def test_the_step_time_is_between_prediction_and_measurement(advice, factor):
    before, after = advice.estimate, _estimate(advice, _calibration(advice, factor))
    measured = factor * before.step_seconds
    low, high = sorted((before.step_seconds, measured))
    assert low * (1 - 1e-6) <= after.step_seconds <= high * (1 + 1e-6)
    assert after.step_seconds == pytest.approx(measured, rel=2e-3)
    assert after.step_seconds_range[0] < measured < after.step_seconds_range[1]
    assert _log_width(after) < 0.5 * _log_width(before)
    assert after.needed_gib == before.needed_gib


@pytest.mark.slow
@given(st.lists(FACTORS, min_size=2, max_size=4))
def test_more_runs_never_widen(advice, factors):
    every = _estimate(advice, _calibration(advice, *factors))
    assert _log_width(every) <= _log_width(_estimate(advice, _calibration(advice, *factors[:-1]))) + 1e-12


def test_distance_widens_the_interval_again(advice):
    calibration = _calibration(advice, 1.5)
    widths = []
    others = (smpa.Cluster(f"ml.{name}xlarge", 4) for name in ("p4d.24", "p4de.24", "p5.48"))
    for cluster in (advice.cluster, *others):
        before, after = (_estimate(advice, c, cluster=cluster) for c in (None, calibration))
        assert after.step_seconds > before.step_seconds
        widths.append(_log_width(after) / _log_width(before))
    assert widths == sorted(widths)
    assert widths[-1] < 1


def test_the_same_work_per_gpu_on_more_nodes_is_nearly_measured(advice):
    plan, job = replace(advice.plan, sharding_strategy="full_shard"), replace(advice.job, global_batch_size=None)
    seconds = smpa.estimate(advice.model, advice.cluster, job, plan).step_seconds
    log = Log(title="your figures", samples=(Sample(None, 1.5 * seconds),))
    runs = smpa.Calibration(runs=(measured_run(log, advice.model, advice.cluster, job, plan, accept=True),))
    wider = (advice.model, smpa.Cluster(advice.cluster.instance, 2 * advice.cluster.nodes))
    before, after = (smpa.estimate(*wider, replace(job, calibration=known), plan) for known in (None, runs))
    assert after.step_seconds == pytest.approx(1.5 * before.step_seconds, rel=0.06)
    assert _log_width(after) < 0.6 * _log_width(before)


@pytest.mark.parametrize(
    ("model", "instance", "nodes", "more"),
    [
        ("7B", "ml.p4d.24xlarge", 16, {"library": "fsdp", "global_batch_size": 512}),
        ("13B", "ml.p5.48xlarge", 8, {"library": "fsdp", "global_batch_size": 512}),
        ("20B", "ml.p4d.24xlarge", 16, {"library": "smp-v2"}),
    ],
)
def test_a_slow_run_moves_nobody_to_a_slower_plan(model, instance, nodes, more):
    advice = smpa.advise(model, instance, instance_count=nodes, **more)
    seconds = advice.estimate.step_seconds
    for factor in (0.5, 0.7, 1.5, 3, 5):
        calibrated = advice.calibrate(step_seconds=factor * seconds, accept=True)
        place = (advice.model, advice.cluster, replace(calibrated.job, calibration=None), calibrated.plan)
        assert smpa.estimate(*place).step_seconds < 1.03 * seconds
        # A plan that ran has its measured time.
        ran = smpa.estimate(advice.model, advice.cluster, calibrated.job, advice.plan).step_seconds
        assert ran == pytest.approx(factor * seconds, rel=2e-3)


def test_a_measured_peak_moves_memory_and_a_lower_one_the_other_way(advice):
    before = advice.estimate
    for change in (-1.5, 1.5):
        peak = before.memory.peak.total_gib + before.memory.peak.cached_gib + change
        after = advice.calibrate(peak_gib=peak, peak_kind="total", plan=advice.plan).job.calibration
        estimate = _estimate(advice, after)
        assert (estimate.needed_gib - before.needed_gib) * change > 0
        assert estimate.memory_error_gib < before.memory_error_gib
        assert estimate.headroom_gib == pytest.approx(estimate.usable_gpu_memory_gib - estimate.needed_gib)
        assert estimate.step_seconds == before.step_seconds


@pytest.mark.parametrize("peak_gib", [None, 20.0])
def test_a_plan_like_one_that_ran_out_of_memory_or_larger_does_not_fit(advice, peak_gib):
    job = replace(advice.job, global_batch_size=None)
    for batch, more in (
        (1, {}),
        (2, {}),
        (2, {"batch_size": 8}),
        (1, {"activation_checkpointing": False, "batch_size": 2}),
    ):
        plan = smpa.Plan(library="fsdp", batch_size=batch, activation_checkpointing="each")
        logs = [Log(title="your figures", out_of_memory=True)]
        if peak_gib is not None:  # a run with another script, which did not run out of it
            logs.append(Log(title="your figures", peak_gib={"total": peak_gib}))
        runs = tuple(measured_run(log, advice.model, advice.cluster, job, plan) for log in logs)
        before, after = (
            smpa.estimate(advice.model, advice.cluster, replace(job, calibration=calibration), replace(plan, **more))
            for calibration in (None, smpa.Calibration(runs=runs))
        )
        assert before.fit_probability > 0.95
        assert after.fit_probability < 0.5


def test_columns_have_the_figures_of_single_estimates(advice):
    calibration = advice.calibrate(step_seconds=2.0).calibrate(peak_gib=30, peak_kind="reserved").job.calibration
    job = replace(advice.job, calibration=calibration, global_batch_size=None)
    plans = [replace(advice.plan, batch_size=size) for size in (1, 2, 4)]
    layout = layout_of(plans, job, advice.cluster)
    seconds = sum(seconds_columns(advice.model, advice.cluster, job, layout).values())
    memory = memory_columns(advice.model, advice.cluster, job, layout)
    for row, plan in enumerate(plans):
        estimate = smpa.estimate(advice.model, advice.cluster, job, plan)
        assert seconds[row] == pytest.approx(estimate.step_seconds - estimate.time.allocator_seconds)
        assert memory.needed_bytes[row] / 2**30 == pytest.approx(estimate.needed_gib)


def test_a_calibration_is_saved_and_reused(advice, tmp_path):
    path = tmp_path / "calibration.json"
    calibrated = advice.calibrate(step_seconds=3.0).calibrate(out_of_memory=True)
    calibrated.job.calibration.save(path)
    assert smpa.load_calibration(path) == calibrated.job.calibration
    assert [entry.name for entry in tmp_path.iterdir()] == ["calibration.json"]
    settings = {"library": "fsdp", "precision": "bf16", "global_batch_size": 256}
    other = smpa.advise("2B", "ml.p4d.24xlarge", instance_count=4, calibration=path, **settings)
    assert other.job.calibration == calibrated.job.calibration
    assert other.learned is not None
    assert "differs from it in: training, parameters, nodes, " in str(other.learned)
    assert pickle.loads(pickle.dumps(other)).recommended == other.recommended
    assert repr(other.job.calibration) == "Calibration(2 runs)"


def test_no_calibration_is_refused_in_one_sentence(advice, tmp_path):
    path = tmp_path / "calibration.json"
    start = '{"format": "smp-advisor-calibration", "version": '
    runs = [f"{start}{runs}}}" for runs in ('1, "runs": []', '2, "runs": []', '2, "runs": [{}]')]
    texts = ["", "[]", "{}", *runs, start + '2, "runs": [{"conditions": {"gpu": 1}}]}', "[" * 100_000]
    _calibration(advice, 1.2).save(path)
    text = path.read_text("utf-8")
    for good, bad in (('"step_noise": 0.', '"step_noise": -0.'), ('"nodes": 2', '"nodes": "2"'), ("null", "[]")):
        assert good in text
        texts.append(text.replace(good, bad, 1))
    for wrong in texts:
        path.write_text(wrong, "utf-8")
        with pytest.raises(CalibrationError) as caught:
            smpa.load_calibration(path)
        assert "\n" not in str(caught.value), wrong[:100]


def test_figures_are_checked(advice):
    for wrong in (
        {},
        {"step_seconds": -1},
        {"step_seconds": True},
        {"peak_gib": "30"},
        {"peak_gib": 30, "peak_kind": "used"},
        {"peak_gib": 30, "out_of_memory": True},
        {"run": "a\nb"},
        {"run": 3},
        {"run": "missing.log"},
        {"run": "missing.log", "step_seconds": 2},
    ):
        with pytest.raises(AdvisorError):
            advice.calibrate(**wrong)
    with pytest.raises(JobError):
        smpa.Job(calibration="calibration.json")


@pytest.fixture
def shell(shell, advice, capsys):
    """A shell in which the advice is displayed."""
    set_displayed_last(shell, Advisor(advice))
    capsys.readouterr()
    return shell


@pytest.mark.slow
def test_a_log_is_read_shown_saved_and_loaded(shell, advice, tmp_path, capsys):
    seconds = 1.4 * advice.estimate.step_seconds
    (tmp_path / "job.log").write_text(exported([40 * seconds, *[seconds] * 20]), "utf-8")
    saved = tmp_path / "calibration.json"
    advisor = shell.run_line_magic("smp_calibrate", f"{tmp_path}/job.log --save {saved}")
    assert isinstance(advisor, Advisor)
    shown = capsys.readouterr().out
    for text in ("20 of 21 values", "Dropped 1: warm-up", "Step time:", " -> ", "Calibrated with 1 run of yours"):
        assert text in shown
    (run,) = advisor.advice.job.calibration.runs
    assert (run.source, run.memory_kind, run.memory_gib) == ("exported script: job.log", "reserved", 24.0)
    assert run.step_seconds == pytest.approx(seconds, rel=1e-3)
    assert "Measured plan: step time" in " ".join(run.notes)
    assert advisor.advice.job.calibration == smpa.load_calibration(saved)
    assert recommendation(advisor.advice)["measured"].startswith("by exported script: job.log: step time ")
    again = shell.run_line_magic("smp_calibrate", f"--load {saved} --peak-gib 30 --peak-kind reserved")
    assert len(again.advice.job.calibration.runs) == 2
    only = shell.run_line_magic("smp_calibrate", f"--load {saved}")
    assert only.advice.estimate == advisor.advice.estimate
    shell.user_ns["lines"] = exported([3.0] * 9)  # a variable is a log
    assert shell.run_line_magic("smp_calibrate", "lines").advice.job.calibration.runs[-1].step_seconds == 3.0


@pytest.mark.parametrize("line", ["", "missing.log", "--step-seconds fast", "--peak-gib 3 --out-of-memory", "--load x"])
def test_errors_are_one_sentence(shell, line):
    with pytest.raises(UsageError) as caught:
        shell.run_line_magic("smp_calibrate", line)
    assert "\n" not in str(caught.value)


def test_the_summary_escapes_names(advice, tmp_path):
    path = tmp_path / "<b>.log"
    path.write_text(exported([3.0] * 9), "utf-8")
    learned = advice.calibrate(path).learned
    html = learned._repr_html_()
    assert "&lt;b&gt;.log" in html
    assert "<b>.log" not in html


def test_a_log_is_watched_next_to_the_plan_on_screen(shell, advice, tmp_path, capsys):
    log = tmp_path / "job.log"
    log.write_text(exported([advice.estimate.step_seconds] * 20) + "\n", "utf-8")
    run = shell.run_line_magic("smp_watch", f"{log} --plan")
    assert run.step == 20
    assert run.advice.plan == advice.plan
    assert "20 regular steps" in capsys.readouterr().out or run.steady_steps == 19
    with pytest.raises(UsageError, match="no training job can have this name"):
        shell.run_line_magic("smp_watch", f"{tmp_path}/none.log")


@pytest.mark.parametrize("answer", ["no", None])
def test_a_job_starts_only_after_its_price_was_answered_with_yes(shell, monkeypatch, capsys, answer):
    def reply(_):
        if answer is None:
            raise EOFError
        return answer

    started = []
    monkeypatch.setattr("builtins.input", reply)
    monkeypatch.setattr("smp_advisor.runs.start.start_job", lambda *_, **more: started.append(more))
    if answer is None:
        with pytest.raises(UsageError, match="--yes"):
            shell.run_line_magic("smp_start", "")
    else:
        assert shell.run_line_magic("smp_start", "") is None
    assert "per hour" in capsys.readouterr().out
    assert started == []
