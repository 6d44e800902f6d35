"""Watching a run whose polls are scripted: figures, alarms, causes, pauses, and what it learns."""

import json
import math
import random
import re
import zlib
from base64 import b64encode
from dataclasses import replace
from datetime import UTC, datetime

import pytest

import smp_advisor as smpa
from smp_advisor.command.__main__ import main
from smp_advisor.errors import AdvisorError, CalibrationError, RunError, StorageError
from smp_advisor.runs.cloudwatch import polled
from smp_advisor.runs.sources import LogFile, Poll, TrainingJob
from smp_advisor.runs.watching import Run
from smp_advisor.session.written import carried, carried_from
from smp_advisor.tools.interface import Caller, call
from tests.runs.logs import exported

TRAINING = (("Pending", 0.0, 60.0), ("Downloading", 60.0, 100.0), ("Training", 100.0, None))
BUSY = {f"algo-{host}": {"GPUUtilization": 8 * 97.0} for host in (1, 2, 3)}


class Aws:
    """A client of three services: a run of two jobs, the first of which has reached its time limit."""

    class exceptions:  # noqa: N801 - botocore's name
        ResourceNotFoundException = KeyError

    def __init__(self, *names):
        self.names, self.calls = list(names), list[str]()

    def client(self, _, **__):
        return self

    def __getattr__(self, name):
        return lambda **keywords: self.calls.append(name) or getattr(self, f"_{name}")(**keywords)

    def _describe_training_job(self, TrainingJobName):
        ended = TrainingJobName == "llm-2026-11-27-08-30-00-123"
        state = ("Stopped", "MaxRuntimeExceeded") if ended else ("InProgress", "Training")
        job = {"ResourceConfig": {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2}}
        now = datetime.now(UTC)
        job |= {"CreationTime": now, "TrainingEndTime": now, "TrainingStartTime": now}
        return job | dict(zip(("TrainingJobStatus", "SecondaryStatus"), state, strict=True))

    def _list_training_jobs(self, **_):
        return {"TrainingJobSummaries": [{"TrainingJobName": name} for name in self.names]}

    def _describe_log_streams(self, logStreamNamePrefix, **_):
        return {"logStreams": [{"logStreamName": f"{logStreamNamePrefix}1"}]}

    def _get_log_events(self, **_):
        return {"events": [{"message": exported([2.0] * 3)}], "nextForwardToken": "f"}

    def _get_metric_data(self, **_):
        return {"MetricDataResults": []}


class Script(TrainingJob):
    """A source whose polls are given; the last one repeats without its text."""

    name = "llm"

    def __init__(self, *polls):
        self.polls = list(polls)
        self.metrics = []

    def poll(self, *, metrics):
        self.metrics.append(metrics)
        poll = self.polls.pop(0)
        if not self.polls:
            self.polls = [replace(poll, text="")]
        return poll


def training(text="", **more):
    return Poll(**{"status": "InProgress", "transitions": TRAINING, "text": text, "requests": 3, **more})


@pytest.fixture(scope="module")
def tokens(advice):
    """The advice with a length, and a predicted step of known seconds."""
    return advice.again(replace(advice.job, tokens=1e9))


@pytest.fixture
def watched(tokens):
    """A run of these polls, after one poll."""

    def made(*polls):
        return Run(Script(*polls), tokens, clock=lambda: 7300.0).poll()

    return made


def at(advice, factor, count=25):
    """A log with a warm-up and steps of a multiple of the predicted seconds."""
    value = factor * advice.estimate.step_seconds
    return exported([9 * value, *[value, 1.01 * value] * (count // 2)])


def test_status_and_figures_are_next_to_the_prediction(watched, tokens):
    run = watched(training(at(tokens, 1.1), settings={"max_steps": "1000", "checkpoint_every": "100"}))
    assert run.status == "Training for 2.0 h"
    assert watched(training(status="InProgress", transitions=())).status == "Starting"
    assert run.transitions == ("Pending 60 s", "Downloading 40 s", "Training 2.0 h")
    rows = {row.label: row for row in run.figures()}
    assert "(" in rows["Step time"].predicted
    assert rows["Peak memory per GPU"].measured == "24.0 GiB of 40.0 GiB"
    assert rows["Next checkpoint"].measured.startswith("step 100, in ")
    remaining = (1000 - 25) * 1.1 * tokens.estimate.step_seconds / tokens.estimate.effective.share
    hours = float(rows["Remaining"].measured.split()[0])
    assert {"hours": 3600, "days": 86400, "minutes": 60}[
        rows["Remaining"].measured.split()[1]
    ] * hours == pytest.approx(remaining, rel=0.02)
    assert "USD" in rows["Remaining cost"].measured
    assert run.alarms == ()
    html = run._repr_html_()
    assert all(text in html for text in ("Downloading 40 s", "Seconds per step", "Step time"))


def test_a_run_keeps_its_plan_when_the_advice_shows_another(tokens):
    live = tokens.again()
    run = Run(Script(training(at(tokens, 1.0))), live).poll()
    before = run.figures()
    live.plan = 1  # an alternative
    assert run.advice.plan == tokens.plan != live.plan
    assert run.figures() == before


@pytest.mark.parametrize(
    ("factor", "old", "new", "words"),
    [
        (4.0, "", "", "slower than the predicted interval"),
        (0.1, "", "", "faster than the predicted interval"),
        (1.0, "$", "\nstep 7 loss nan tokens_per_second 1.0\n", "loss is nan at step 7"),
        (1.0, "peak_allocated_gib 21.50", "peak_allocated_gib 39.50", "of the GPU's"),
        (1.0, "$", "\ntorch.OutOfMemoryError: CUDA out of memory.\n", "A GPU ran out of memory."),
    ],
)
def test_alarms_are_sentences(watched, tokens, factor, old, new, words):
    (alarm,) = watched(training(re.sub(old, new, at(tokens, factor)))).alarms
    assert words in alarm
    assert "\n" not in alarm


def test_a_failure_is_read_for_the_next_plan(watched):
    log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    run = watched(training(log, status="Failed", failure="AlgorithmError: exit code 1"))
    assert run.failure.of_plan
    assert run.failure.change in run.alarms[0]
    quota = watched(Poll(status="Failed", failure="ResourceLimitExceeded: the account-level service limit is 0"))
    assert not quota.failure.of_plan
    assert watched(training()).failure is None
    assert "<script>" not in watched(training(status="Failed", failure="<script>alert(1)</script>"))._repr_html_()


def test_silence_is_counted_in_polls_and_steps(watched, tokens):
    run = watched(training(at(tokens, 1.0)))
    step = tokens.estimate.step_seconds
    for _ in range(5):
        run.poll(waited_seconds=0.5 * step)
    assert run.alarms == ()  # five polls, but not yet five steps
    for _ in range(8):
        run.poll(waited_seconds=0.5 * step)
    assert "No measured step" in run.alarms[0]


def test_pauses_grow_and_metrics_are_rare(tokens):
    ended = replace(training(), status="Completed")
    source = Script(training(at(tokens, 1.0)), *[training() for _ in range(12)], ended)
    pauses = []
    run = Run(source, tokens).wait(sleep=pauses.append)
    assert run.done
    assert pauses[0] == 15
    assert pauses == sorted(pauses)
    assert max(pauses) == 300
    assert source.metrics[0]
    assert sum(source.metrics) <= 1 + sum(pauses) / 300


def test_watching_survives_throttling_and_expired_credentials(tokens):
    source = Script(
        training(at(tokens, 1.0)),
        Poll(error="AWS refused GetLogEvents: Rate exceeded", kind="throttled"),
        Poll(error="AWS refused DescribeTrainingJob: The security token expired", kind="expired"),
        replace(training(), status="Completed"),
    )
    pauses = []
    problems = []
    run = Run(source, tokens)
    run.wait(lambda watched: problems.append(watched.problem), sleep=pauses.append)
    assert pauses[1] > pauses[0]
    assert "Renew the credentials" in problems[2]
    assert problems[3] == ""
    assert run.step == 25
    with pytest.raises(RunError, match="Access denied"):
        Run(Script(Poll(error="Access denied")), tokens).poll()


def test_a_run_of_several_jobs_is_followed_to_the_next(monkeypatch):
    first, second = "llm-2026-11-27-08-30-00-123", "llm-2026-12-02-08-31-00-456"
    aws = Aws(first, "llm-2-2026-12-02-08-31-00-456")  # another run

    def child(name, state):
        before = len(aws.calls)
        answer = polled(name, json.loads(state), aws, None)
        assert len(aws.calls) - before == answer["requests"] <= 4
        return answer

    monkeypatch.setattr("smp_advisor.runs.sources.child", child)
    run = Run(TrainingJob(first)).poll()
    assert run.last.status == "InProgress"
    assert run.transitions[-1].startswith("WaitingForNextJob")
    aws.names.append(second)
    run.poll()
    assert second in run.notes[-1]
    run.poll()
    assert run.name == second
    assert not run.done
    alone = Run(TrainingJob(first))
    aws.names = [first]
    alone.wait(sleep=lambda _: None)
    assert alone.last.status == "Stopped"


@pytest.mark.parametrize(
    ("factor", "scatter", "hosts", "name"),
    [
        (1.0, 0.0, {}, None),
        (4.0, 0.0, {}, "unknown cause"),
        (4.0, 0.5, {"algo-1": {"GPUUtilization": 300.0}}, "data loading"),
        (4.0, 0.0, {"algo-1": {"GPUUtilization": 300.0}}, "host or data loading"),
        (4.0, 0.0, {"algo-1": {"GPUUtilization": 776.0}, "algo-2": {"GPUUtilization": 440.0}}, "slow node"),
        (4.0, 0.0, BUSY, "communication or compute"),
        (4.0, 0.0, {**BUSY, "algo-2": {"GPUUtilization": 320.0}}, "slow node"),
        (0.1, 0.0, BUSY, "less work"),
    ],
)
def test_causes_have_evidence_and_a_change(watched, tokens, factor, scatter, hosts, name):
    value = factor * tokens.estimate.step_seconds
    steps = [value * math.exp(scatter * ((number * 7) % 5 - 2) / 2) for number in range(40)]
    run = watched(training(exported([9 * value, *steps]), hosts=hosts))
    found = [cause for cause in run.causes() if cause.name not in ("warm-up", "stalls")]
    assert [cause.name for cause in found] == ([] if name is None else [name])
    assert all(cause.evidence and cause.change and str(cause) in str(run) for cause in found)
    again = training(exported([9 * value, *[value] * 20], first=5), hosts=hosts)
    run = Run(Script(training(exported([9 * value, *steps])), again), tokens).poll().poll()
    assert [cause.name for cause in run.causes()][:2] == ["warm-up", "restart"]


SOCKETS = "ip-10-1-0-1:101:212 [0] NCCL INFO Using network Socket\n"


@pytest.mark.parametrize(
    ("before", "factors", "names"),
    [
        (SOCKETS, [4.0] * 40, ["warm-up", "network"]),
        ("GPU 3 is throttled\n", [4.0] * 40, ["warm-up", "throttling"]),
        ("pytorch allocator cache flushes since last step.\n", [4.0] * 40, ["warm-up", "memory"]),
        ("", [1.0] * 20 + [1.3] * 20, ["warm-up", "change of the step time"]),
        ("", [0.9 + 0.01 * n for n in range(40)], ["warm-up", "trend"]),
        ("", [20.0 if n % 10 == 9 else 1.0 for n in range(40)], ["warm-up", "stalls"]),
        ("", [4.0] * 40, ["warm-up", "unknown cause"]),
    ],
)
def test_causes_are_those_that_the_log_shows(watched, tokens, before, factors, names):
    value = tokens.estimate.step_seconds
    run = watched(training(before + exported([9 * value, *(factor * value for factor in factors)])))
    assert [cause.name for cause in run.causes()] == names
    if "change" in names[-1]:
        assert "before step 22" in run.headline
    if names[-1] == "stalls":
        assert run.causes()[-1].evidence.startswith("4 values (10 %) are far above the median of ")
        left = (tokens.job.tokens / tokens.estimate.tokens_per_step - 41) * 2.9 * value / 86_400
        assert run.remaining_days()[0] == pytest.approx(left, rel=0.1)
        assert "on average, more than the predicted interval" in " ".join(run.alarms)
    if names[-1] in ("network", "throttling"):
        with pytest.raises(CalibrationError, match="known fault"):
            run.calibrated()
        assert "known fault" in str(run)


def test_a_prediction_for_other_instances_is_left_out(watched):
    run = watched(training(exported([1.0] * 30), instances=["ml.g5.48xlarge"], count=1))
    assert "runs on 1 x ml.g5.48xlarge, and the advice is for 2 x ml.p4d.24xlarge" in run.alarms[0]
    assert run.estimate is None
    assert not any("cost" in row.label for row in run.figures())
    with pytest.raises(RunError):
        run.calibrated()


def test_a_failure_without_a_reason_is_that_of_the_log_on_the_next_page_and_of_another_host(watched):
    steps, full = exported([2.0] * 3), "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert watched(training(f"{steps}\n{full}", status="Failed")).failure.of_plan
    run = watched(training(steps, status="Failed", more=True), training(f"{full}\n", status="Failed"))
    assert run.failure.of_plan
    run = watched(training(steps, status="Failed", other_text="==> algo-2-1 <==\n[rank9]: ValueError: bad row 7\n"))
    assert (run.failure.rank, run.failure.cause) == (9, "The script raised ValueError: bad row 7.")
    assert "states no reason" in watched(training(steps, status="Failed")).alarms[0]


def test_the_logs_of_all_hosts_are_read_and_those_with_steps_first(tmp_path, advice):
    (tmp_path / "requirements.txt").write_text("torch\n")
    for rank in (0, 1):
        (tmp_path / "attempt_0" / str(rank)).mkdir(parents=True)
        (tmp_path / "attempt_0" / str(rank) / "stdout.log").write_text("start\n")
    first = tmp_path / "attempt_0" / "0" / "stdout.log"
    run = smpa.watch(tmp_path, advice)
    first.write_text("start\n" + exported([2.0] * 9) + "\n")
    (tmp_path / "attempt_0" / "1" / "stdout.log").write_text("start\nValueError: bad row 7\n")
    assert run.poll().step == 9
    assert "bad row 7" in run.failure.cause
    alone = smpa.watch(first, advice)
    first.unlink()
    assert "no longer there" in alone.poll().problem


def test_a_full_disk_is_a_sentence_at_the_start(advice, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("smp_advisor.runs.start.write_text", full)
    with pytest.raises(RunError, match="cannot be written: No space left on device"):
        advice.start(confirm=True, folder=tmp_path / "run")


def test_a_run_without_steps_or_prediction_says_what_is_missing(watched):
    with pytest.raises(RunError, match="no measured step"):
        watched(training()).causes()
    alone = Run(Script(training(exported([1.0] * 30)))).poll()
    for question in (alone.causes, alone.calibrated):
        with pytest.raises(RunError):
            question()


def test_twenty_regular_steps_calibrate(watched, tokens):
    with pytest.raises(RunError, match="20 are required"):
        watched(training(at(tokens, 1.2, 10))).calibrated()
    run = watched(training(at(tokens, 1.2, 30)))
    learned = run.calibrated()
    for page in (str(run), run._repr_html_()):
        assert "Learned from 30 regular steps" in page
        assert ("is still that of the run" if learned.plan == tokens.plan else "for the next run") in page
    assert "teaches nothing: A step" in str(watched(training(at(tokens, 20, 30))))
    low, high = learned.estimate.step_seconds_range
    before = tokens.estimate.step_seconds_range
    assert high / low < before[1] / before[0]


@pytest.mark.slow
def test_a_cell_carries_its_prediction_exactly_or_not_at_all(tokens):
    module = smpa.advise("sdxl", "ml.p4d.24xlarge")  # traced, and known by name
    large = smpa.advise("llama-3.1-70b", "ml.p4d.24xlarge", instance_count=8, adapter=smpa.Adapter(rank=8))
    for advice in (tokens, module, large):
        of = (advice.model, replace(advice.job, calibration=None), advice.plan)
        variables = carried(*of, {"objective": "headroom", "min_fit_probability": 0.95})
        assert carried_from(variables) == (*of, {"objective": "headroom"})
        cell = advice.cell("v3", environment={"NCCL_DEBUG": "INFO"})
        assert all(text in cell for text in ("NCCL_DEBUG", "SMP_ADVISOR_PREDICTION"))
        assert "SMP_ADVISOR_PREDICTION" in advice.probe_cell("v2")
    learned = tokens.calibrate(step_seconds=2 * tokens.estimate.step_seconds, plan=tokens.plan).job
    packed = (*of, {"pins": "x" * 6000})
    assert carried_from(variables := carried(*packed)) == packed
    assert max(map(len, variables.values())) <= 512
    own = replace(tokens.model, name="mine", family="mine", config_json="{}")
    for more in ((own, *of[1:], {}), (of[0], learned, of[2], {})):  # too long, or exact
        assert (variables := carried(*more)) == {} or carried_from(variables) == more
    assert carried(*of, {"pins": random.Random(0).randbytes(50_000).hex()}) == {}
    bomb = b64encode(zlib.compress(bytes(10**7))).decode()
    for wrong in ("[]", "{", "eJy", "?", bomb):
        with pytest.raises(StorageError, match="holds no prediction"):
            carried_from({"SMP_ADVISOR_PREDICTION": wrong})


def test_a_log_is_read_as_it_grows_and_a_folder_without_one_is_refused(tmp_path, tokens):
    log = tmp_path / "train.log"
    lines = at(tokens, 1.0).splitlines(keepends=True)
    log.write_text("".join(lines[:10]))
    (tmp_path / "status.json").touch()
    run = smpa.watch(tmp_path, tokens)
    assert isinstance(run.source, LogFile)
    (tmp_path / "run.json").touch()
    with pytest.raises(RunError, match="a run on this machine by an earlier version"):
        smpa.watch(tmp_path, tokens)
    assert run.step == 9
    with log.open("a") as file:
        file.write("".join(lines[10:15]) + lines[15][:20])
    assert run.poll().step == 14
    with log.open("a") as file:
        file.write(lines[15][20:])
    assert run.poll().step == 15
    (tmp_path / "empty").mkdir()
    for wrong in (tmp_path / "empty", "no such job", "", 7):
        with pytest.raises(AdvisorError) as caught:
            smpa.watch(wrong)
        assert "\n" not in str(caught.value)


def test_the_command_watches_and_shares_what_it_learned(tokens, tmp_path, capsys):
    log, shared = tmp_path / "train.log", tmp_path / "team.json"
    log.write_text(at(tokens, 1.2, 30) + "\n")
    tokens.save(tmp_path / "advice.json")
    status = main(["watch", str(tmp_path), "--once", "--learn", str(shared)])
    assert status == 0
    assert "predicted" in capsys.readouterr().out
    assert len(smpa.load_calibration(shared).runs) == 1
    main(["watch", str(log), "--once", "--learn", str(shared)])  # the same run is not added again
    assert len(smpa.load_calibration(shared).runs) == 1
    log.write_text(at(tokens, 4.0, 30) + "\n")
    assert main(["watch", str(tmp_path), "--once"]) == 1  # an alarm


def test_assistants_watch_files_of_their_folder_only(tokens, tmp_path):
    (tmp_path / "train.log").write_text(at(tokens, 4.0, 30) + "\n")
    tokens.save(tmp_path / "advice.json")
    data = call("watch", {"run": "train.log"}, Caller(roots=(tmp_path,)))
    assert len(json.dumps(data, ensure_ascii=False).encode()) <= 4000
    assert data["alarms"]
    assert "Learned from 30 regular steps" in " ".join(data["explained"])
    with pytest.raises(AdvisorError, match="only files of this folder"):
        call("watch", {"run": str(tmp_path / "train.log")}, Caller(roots=(tmp_path / "inner",)))
