"""Whether a batch may be divided: faults that one process shows, and sound models that raise no alarm."""

from __future__ import annotations

import json

import pytest

from smp_advisor import Job, Plan
from smp_advisor.profiling.result import Division
from tests.deferred import Deferred, deferred

torch = Deferred("torch")
cases = Deferred("benchmarks.divided_models")
is_found, report = deferred("benchmarks.divided_models", "is_found", "report")
read_model = Deferred("smp_advisor.profiling.profiled_model", "read_model")
run = Deferred("smp_advisor.profiling.division", "run")
check_division, largest_difference = deferred(
    "smp_advisor.profiling.divided_batches", "check_division", "largest_difference"
)
microbatches_of = Deferred("smp_advisor.profiling.inputs", "microbatches_of")

pytestmark = pytest.mark.torch


def test_faults_are_named_with_their_cause_and_sound_models_raise_no_alarm():
    for case in (*cases.FAULTS, *cases.SOUND):
        ok, text = report(case)
        assert ok == (not case.causes), (case.name, text)
        assert ok or is_found(case, text), (case.name, text)


def test_the_users_line_and_microbatch_size_are_in_the_report_that_json_keeps():
    (case,) = (case for case in cases.FAULTS if case.name == "sum of squares")
    done = run(read_model(case.make()), Job(), cases.DDP, data_parallel_degree=2, seconds=1e9)
    assert (done.samples, done.parts) == (cases.DDP.batch_size, 4)
    assert not done.ok
    assert "square().sum()" in done.problems[0].line
    assert "is a sum over" in done.summary
    assert Division.from_dict(json.loads(json.dumps(done.as_dict()))) == done


def test_unused_parameters_are_a_note_and_shared_weights_of_two_stages_a_problem():
    class Unused(cases.Words):
        def __init__(self) -> None:
            super().__init__()
            self.spare = torch.nn.Linear(4, 4)

    done = run(read_model(Unused()), Job(sequence_length=8), cases.DDP, data_parallel_degree=2)
    assert done.ok, str(done)
    assert "spare.weight" in " ".join(done.notes)
    with torch.device("meta"):
        module = cases.Words()
        module.blocks[3].fc.weight = module.blocks[0].fc.weight
    plan = Plan(pipeline_parallel_degree=2, microbatches=2, batch_size=4)
    done = run(read_model(module), Job(sequence_length=8), plan, data_parallel_degree=1)
    found = [(problem.kind, problem.parameter) for problem in done.problems]
    assert found == [("shared weights", "blocks.0.fc.weight")]


def test_differences_do_not_depend_on_the_scale_of_the_loss():
    for scale in (1e-6, 1.0, 1e6):
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
    problems, _, _ = check_division(Loss().train(), parts)
    assert [problem.kind for problem in problems] == [kind]
