"""One live object: the plan on screen, its history, comparisons and reasons."""

import copy
import pickle
from collections.abc import Hashable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.costs import estimate
from smp_advisor.errors import AdvisorError, PlanError
from smp_advisor.session import Advice
from smp_advisor.session.control_state import LONGEST, apply, move
from tests.notebook.advice import make_advice


@pytest.fixture(scope="module")
def value():
    return make_advice(tokens=300e9)


@pytest.fixture
def advice(value):
    return Advice(value)


def test_the_plan_is_readable_settable_and_observed(advice, value):
    changes = []
    advice.observe(changes.append)
    assert advice.plan == value.plan
    summary = advice.move(batch_size=24)
    assert summary.startswith("Batch size 20 → 24")
    assert (advice.plan.batch_size, changes[-1].summary) == (24, summary)
    assert advice.estimate == estimate(value.model, value.cluster, value.job, advice.plan)
    advice.plan = value.plan
    assert advice.is_recommended
    advice.unobserve(changes.append)
    advice.move(batch_size=16)
    assert len(changes) == 2
    assert '"batch_size": 16' in advice.cell()
    assert value.plan.batch_size == 20
    assert advice.recommended is value


def test_plans_that_do_not_suit_are_refused_and_fields_without_a_control_stay(advice, value):
    with pytest.raises(PlanError, match="7"):
        advice.plan = replace(value.plan, tensor_parallel_degree=7)
    with pytest.raises(PlanError):
        advice.move(activation_checkpointing="none", offload_activations=True)
    with pytest.raises(AdvisorError, match=r"set advice\.plan"):
        advice.estimate = None
    assert (advice.plan, len(advice.history)) == (value.plan, 1)

    advice.plan = replace(value.plan, ddp_dist_backend="nccl")
    advice.move(batch_size=24)
    assert (advice.plan.ddp_dist_backend, advice.plan.batch_size) == ("nccl", 24)
    assert "nccl" in [row.second for row in advice.compare().settings]


def test_undo_and_redo_lead_through_the_history(advice):
    for size in (24, 16, 32):
        advice.move(batch_size=size)
    assert advice.undo().startswith("Batch size 32 → 16")
    assert advice.undo(2).startswith("Batch size 16 → 20")
    assert (advice.is_recommended, advice.undone) == (True, 3)
    assert advice.undo() == ""  # there is nothing before it
    advice.redo()
    advice.move(tensor_parallel_degree=2)
    assert (advice.undone, len(advice.history)) == (0, 3)  # what was undone is gone
    assert advice.reset()
    assert advice.undo()
    assert advice.plan.tensor_parallel_degree == 2


def test_the_history_is_bounded_and_a_drag_is_one_entry(advice):
    for size in (21, 22, 24):
        advice.settle(move(advice.controls, "batch_size", size), gesture="view:1")
    assert [entry.summary.partition(" (")[0] for entry in advice.history] == ["Recommended", "Batch size 20 → 24"]
    for size in (22, 20):
        advice.settle(move(advice.controls, "batch_size", size), gesture="view:1")
    assert len(advice.history) == 1

    states = [move(advice.controls, "batch_size", size) for size in (16, 24)]
    for step in range(LONGEST + 5):
        advice.settle(states[step % 2])
    assert len(advice.history) == LONGEST


def test_settings_that_cannot_be_combined_are_on_screen_but_no_entry(advice):
    advice.move(batch_size=24)
    problems = []
    advice.observe(lambda change: problems.append(change.problem))
    wrong = {**advice.controls.settings, "activation_checkpointing": "none", "offload_activations": True}
    advice.settle(apply(advice.controls, wrong, moved="offload_activations"))
    assert problems[-1]
    assert (advice.plan.batch_size, len(advice.history)) == (24, 2)
    advice.undo()  # back to the last valid settings
    assert (advice.controls.problem, advice.plan.batch_size) == ("", 24)


def test_two_plans_are_compared_with_the_price_of_the_difference(advice, value):
    advice.move(batch_size=4)
    comparison = advice.compare()
    assert comparison.names == ("Recommended", "On screen")
    row = comparison.settings[0]
    assert (row.label, row.first, row.second) == ("Batch size", "20", "4")
    figures = {row.label: row for row in comparison.figures}
    assert figures["Cost of the run"].change.startswith("+$")
    assert figures["Full run"].change.startswith("+")
    assert comparison.summary.endswith("for the full run.")
    assert "Memory needed per GPU" in str(comparison)
    assert "<table" in comparison._repr_html_()
    small = advice.plan
    assert advice.compare(small, value.plan).figures[1].change == figures["Memory needed per GPU"].change.replace(
        "−", "+"
    )
    with pytest.raises(AdvisorError, match="Two plans"):
        advice.compare(small, small, small)
    with pytest.raises(AdvisorError, match="not None"):
        advice.compare(None)  # e.g. the plan of a report that could read none
    with pytest.raises(AdvisorError, match="not 'small'"):
        advice.compare("small")
    with pytest.raises(AdvisorError, match=r"not 1\.5"):
        advice.compare(1.5)


def test_the_reasons_are_those_of_the_plan_on_screen(advice, value):
    assert advice.steps is value.steps
    advice.move(activation_checkpointing="none", batch_size=1)
    step = next(step for step in advice.steps if step.technique == "activation_checkpointing")
    assert step.decision == "not used"
    assert "Batch size 20 → 1" in advice.because
    assert advice.reference.needed_gib != value.reference.needed_gib
    assert "next to the recommended plan" in advice.report()
    advice.reset()
    assert advice.because == value.because


def test_another_recommendation_takes_its_place_and_undo_leads_back(advice, value):
    advice.move(batch_size=24)
    smaller = make_advice(nodes=8)
    advice.renew(smaller, "Instances 16 → 8")
    assert (advice.cluster.nodes, advice.recommended, advice.plan) == (8, smaller, smaller.plan)
    advice.undo()
    assert (advice.cluster.nodes, advice.plan.batch_size) == (16, 24)
    assert advice.recommended is value


def test_a_failing_observer_does_not_stop_the_others(advice):
    calls = []
    advice.observe(lambda _: 1 / 0)
    advice.observe(calls.append)
    with pytest.raises(ZeroDivisionError):
        advice.move(batch_size=24)
    assert len(calls) == 1
    with pytest.raises(AdvisorError, match="function"):
        advice.observe("print")


def test_equality_is_by_value(advice, value):
    advice.move(batch_size=4)
    for again in (copy.copy(advice), copy.deepcopy(advice), pickle.loads(pickle.dumps(advice))):
        assert again == advice
        again.move(batch_size=24)
        assert again != advice
        again.undo()
        assert again == advice
    assert advice != Advice(value)
    assert advice != value
    assert not isinstance(advice, Hashable)


@given(actions=st.lists(st.sampled_from(["4", "16", "24", "undo", "redo", "reset"]), max_size=12))
def test_any_walk_keeps_plan_and_estimate_together(actions, value):
    advice = Advice(value)
    for action in actions:
        if action.isdigit():
            advice.move(batch_size=int(action))
        else:
            getattr(advice, action)()
        assert advice.history[len(advice.history) - 1 - advice.undone].state.plan == advice.plan
        assert advice.estimate.global_batch_size == advice.plan.batch_size * 32
