"""Faults that a rehearsal names, and sound models on which it raises no alarm.

``benchmarks/rehearsal_faults.py`` has all cases; these are the ones of its fast share.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smp_advisor import Job, Plan
from smp_advisor.sandbox import deadlock
from tests.deferred import Deferred, deferred

torch = Deferred("torch")
cases = Deferred("benchmarks.rehearsal_cases")
is_found, report = deferred("benchmarks.rehearsal_faults", "is_found", "report")
read_model = Deferred("smp_advisor.profiling.profiled_model", "read_model")
run = Deferred("smp_advisor.profiling.rehearsal.run", "run")
Rehearsal = Deferred("smp_advisor.profiling.rehearsal.result", "Rehearsal")
repeatable = Deferred("smp_advisor.profiling.rehearsal.single_process", "repeatable")
check_division, joined, largest_difference = deferred(
    "smp_advisor.profiling.rehearsal.single_process", "check_division", "joined", "largest_difference"
)
microbatches_of = Deferred("smp_advisor.profiling.inputs", "microbatches_of")

pytestmark = pytest.mark.torch

FAULTS = (
    "sum of squares", "contrastive loss", "mean without padding", "root of zero", "far blocks share a weight",
    "second rank fails",
)  # fmt: skip
SOUND = ("feed-forward blocks", "dropout", "frozen layers", "unused layer")
"""Names of the fast cases."""


def case_of(name):
    (case,) = (case for case in (*cases.FAULTS, *cases.SOUND) if case.name == name)
    return case


def test_the_benchmark_has_thirty_faults_and_thirty_sound_models():
    assert len({case.name for case in cases.FAULTS}) == 30
    assert len({case.name for case in cases.SOUND}) == 30
    assert all(case.causes for case in cases.FAULTS)
    fast = [case.name for case in (*cases.FAULTS, *cases.SOUND) if "fast" in case.tags]
    assert fast == [*FAULTS, *SOUND]


@pytest.mark.parametrize("name", FAULTS)
def test_an_injected_fault_is_named_with_its_cause(name):
    case = case_of(name)
    ok, text = report(case)
    assert not ok
    assert is_found(case, text), text


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_model_raises_no_alarm(name):
    ok, text = report(case_of(name))
    assert ok, text


@pytest.mark.usefixtures("fast_clocks")
def test_the_users_line_and_microbatch_size_are_in_the_report():
    case = case_of("sum of squares")
    done = run(read_model(case.make()), Job(), cases.DDP, data_parallel_degree=2, seconds=1e9)
    assert done.samples == cases.DDP.batch_size
    assert done.same_loss
    assert done.same_gradients
    assert not done.ok
    assert "square().sum()" in done.problems[0].line
    assert "is a sum over" in done.summary
    assert Rehearsal.from_dict(json.loads(json.dumps(done.as_dict()))) == done


def test_unused_parameters_are_a_note_and_checkpointing_is_on():
    class Unused(cases.Words):
        def __init__(self) -> None:
            super().__init__()
            self.spare = torch.nn.Linear(4, 4)

    done = run(read_model(Unused()), Job(sequence_length=8), cases.DDP_CHECKPOINTED, data_parallel_degree=2)
    assert done.ok, str(done)
    assert done.checkpointed
    assert "spare.weight" in " ".join(done.notes)


def test_a_module_without_values_keeps_its_ties_in_the_copy():
    with torch.device("meta"):
        module = cases.Words()
        module.blocks[3].fc.weight = module.blocks[0].fc.weight
    plan = Plan(pipeline_parallel_degree=2, microbatches=2, batch_size=4)
    done = run(read_model(module), Job(sequence_length=8), plan, data_parallel_degree=1)
    assert [(problem.kind, problem.parameter) for problem in done.problems] == [
        ("shared weights", "blocks.0.fc.weight")
    ]


@pytest.mark.usefixtures("fast_clocks")
def test_ranks_that_wait_for_each_other_are_a_hang():
    class Waits(cases.Rows):
        def forward(self, x):
            import torch.distributed as dist

            loss = self.hidden(x).square().mean()
            if dist.is_initialized() and dist.get_rank() == 0:
                dist.broadcast(torch.zeros(1), src=1)
            return loss

    plan = Plan(library="ddp", batch_size=2)
    rehearsal = run(read_model(Waits()), Job(), plan, data_parallel_degree=2, seconds=1e9)
    assert re.search(r"did not complete.*\(a hang\).*rank 0 waited at .*dist.broadcast", rehearsal.summary)
    assert [problem.kind for problem in rehearsal.problems] == ["hang"]


@pytest.fixture
def stopped() -> Iterator[int]:
    """A process that does not take signals."""
    with subprocess.Popen(["sleep", "600"]) as rank:
        rank.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, rank.pid, os.WSTOPPED)
        yield rank.pid
        rank.kill()


STACK = (
    f"{deadlock._STACK}\n",
    '  File "/torch/distributed/distributed_c10d.py", line 1 in broadcast\n',
    '  File "a.py"\n',
)


def test_the_stack_of_a_rank_that_has_not_written_all_of_it_is_not_read(stopped, tmp_path, monkeypatch):
    monkeypatch.setattr(deadlock, "ANSWER_SECONDS", 0)
    file = tmp_path / "0.stack"
    file.write_text("".join(STACK))
    assert deadlock._stack(stopped, file) == []


def test_a_rank_that_has_taken_the_signal_and_not_begun_to_write_is_waited_for(stopped, tmp_path, monkeypatch):
    """Between being taken and its handler, a signal is neither pending nor blocked."""
    file, left = tmp_path / "0.stack", list(STACK)
    file.touch()

    def write(_):
        with file.open("a") as stream:
            stream.write(left.pop(0))

    monkeypatch.setattr(deadlock.time, "sleep", write)
    monkeypatch.setattr(deadlock, "is_handling", lambda *_: 0 < len(left) < len(STACK))
    assert deadlock._stack(stopped, file) == "".join(STACK).splitlines()


def test_a_rank_that_takes_longer_than_the_others_is_no_hang():
    class Late(cases.Rows):
        def forward(self, x):
            import torch.distributed as dist

            if dist.is_initialized() and dist.get_rank() == 0:
                time.sleep(4)  # asleep for longer than ranks in a hang are observed
            return self.hidden(x).square().mean()

    assert run(read_model(Late()), Job(), Plan(library="ddp", batch_size=2), data_parallel_degree=2).ok


@settings(max_examples=20, deadline=None)
@given(scale=st.sampled_from([1e-6, 1.0, 1e6]))
def test_differences_do_not_depend_on_the_scale_of_the_loss(scale):
    expected = {"weight": torch.ones(8) * scale, "key.bias": torch.full((8,), 1e-9) * scale}
    rounded = {"weight": expected["weight"] * (1 + 1e-7), "key.bias": -expected["key.bias"]}
    assert largest_difference(rounded, expected)[0] < 1e-6
    wrong = {"weight": expected["weight"] * 1.1}
    assert largest_difference(wrong, expected)[0] == pytest.approx(0.1, rel=1e-3)
    assert largest_difference({"weight": expected["weight"] * float("nan")}, expected)[0] == float("inf")


@pytest.mark.parametrize(("is_contrastive", "kind"), [(False, "unequal mean"), (True, "batch dependence")])
def test_a_weighted_mean_is_distinguished_from_a_contrastive_loss(is_contrastive, kind):
    class Loss(cases.Rows):
        def forward(self, x):
            hidden = self.hidden(x)
            if is_contrastive:
                return (hidden @ hidden.T).logsumexp(-1).mean()
            weights = x[:, 0].exp()
            return (hidden.square().mean(-1) * weights).sum() / weights.sum()

    parts = microbatches_of({"x": torch.randn(8, 12, generator=torch.Generator().manual_seed(0))}, 4)
    problems, _, _ = check_division(Loss().train(), parts, ())
    assert [problem.kind for problem in problems] == [kind]
