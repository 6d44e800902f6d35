"""Probes: a short job that teaches about a plan, what is worth measuring, and its way back into the choice."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

import smp_advisor as smpa
from smp_advisor.errors import CalibrationError
from smp_advisor.runs.effect import candidates
from tests.runs.logs import exported


@pytest.fixture(scope="module")
def large():
    """A plan for 128 GPUs."""
    return smpa.advise("7B", "ml.p4d.24xlarge", instance_count=16, library="fsdp", global_batch_size=512)


def test_the_chosen_probe_is_small_fits_and_teaches_as_much_as_any(large):
    probes = list(candidates(large.model, large.cluster, large.job, large.plan))
    own = candidates(large.model, large.cluster, large.job, large.plan, scalable=False)
    assert all(probe.layers[0] == probe.layers[1] for probe in own)  # a script of the user builds the full model
    assert any(probe.layers[0] < probe.layers[1] for probe in probes)
    chosen = large.probe()
    assert chosen in probes
    assert {probe.cluster.nodes for probe in probes} == {1, 2}
    for probe in probes:
        assert probe.estimate.fit_probability >= 0.95
        assert 0 < probe.width < 1
        assert probe.usd is not None
        assert probe.plan.batch_size == large.plan.batch_size
        assert chosen.width <= probe.width + 0.01
    assert chosen.usd is not None
    assert large.estimate.usd_per_hour is not None
    assert chosen.usd < large.estimate.usd_per_hour / 10


def test_the_expected_interval_is_that_of_a_probe_as_predicted(large):
    probe = large.probe()
    log = exported([9.0] + [probe.estimate.step_seconds] * 20, tokens=probe.estimate.tokens_per_step)
    calibrated = large.calibrate(log, probe=True)
    job = calibrated.job
    after = smpa.estimate(large.model, large.cluster, job, large.plan)
    low, high = after.step_seconds_range
    assert (low, high) == pytest.approx(probe.interval, rel=0.02)


@pytest.mark.parametrize("sdk", ["v2", "v3"])
def test_the_cell_states_its_price_and_runs_the_probe(large, sdk):
    probe, cell = large.probe(), large.probe_cell(sdk)
    ast.parse(cell)
    assert cell.startswith("# Probe: 5 + 20 steps")
    for text in (f"{probe.usd:,.2f} USD", "Expected effect", '"max_steps": 25', '"log_every": 1'):
        assert text in cell.replace("\n# ", " ")
    assert all(len(line) <= 88 for line in probe.comment.splitlines())
    assert cell.startswith(probe.comment)
    script = large.probe_script_cell()
    assert script.startswith("%%writefile")
    ast.parse(script.split("\n", 1)[1])


def test_a_plan_that_fits_on_no_two_nodes_is_refused_with_a_remedy():
    own = smpa.advise("70B", "ml.p4d.24xlarge", instance_count=32, library="fsdp", script="train.py", precision="bf16")
    with pytest.raises(CalibrationError, match="measure the first steps"):
        own.probe()


def request(tokens):
    return smpa.advise("gpt-neox-20b", "ml.p4d.24xlarge", instance_count=4, library="smp-v2", tokens=tokens)


@pytest.fixture(scope="module")
def worth():
    return request("100B").worth_measuring()


def test_close_plans_of_a_long_run_are_worth_a_probe_and_those_of_a_short_one_are_not(worth):
    assert worth.measure
    assert 0 < worth.cost_usd < worth.expected_saving_usd <= worth.certain_saving_usd
    assert worth.cost_usd == pytest.approx(sum(probe.usd or 0 for probe in worth.probes))
    assert worth.decision == (
        f"A probe of 20 steps of these 2 plans costs {worth.cost_usd:,.2f} USD and saves up to "
        f"{worth.expected_saving_usd:,.0f} USD on average: measure."
    )
    short = request("100M").worth_measuring()
    assert not short.measure
    assert short.certain_saving_usd == pytest.approx(worth.certain_saving_usd / 1000, rel=0.03)
    assert short.decision.startswith("Not worth measuring: a probe of 20 steps")


def test_its_cells_run_the_probes_with_their_own_plans(worth):
    cells = worth.cells("v2")
    jobs = [cell for cell in cells if not cell.startswith("%%writefile")]
    assert len(jobs) == len(worth.probes) == len(worth.plans)
    for cell, probe in zip(jobs, worth.probes, strict=True):
        ast.parse(cell)
        assert cell.startswith(probe.comment)
        assert '"max_steps": 25' in cell
        assert "%smp_calibrate --job" in cell
    scripts = [cell for cell in cells if cell.startswith("%%writefile")]
    assert len(scripts) == len(jobs)


def test_what_the_probes_measure_decides(worth):
    def log(row, factor):
        estimate = worth.probes[row].estimate
        seconds = [9 * estimate.step_seconds] + [factor * estimate.step_seconds] * 24
        return exported(seconds, tokens=estimate.tokens_per_step)

    slow_first, slow_second = worth.learn(log(0, 1.3), log(1, 1.0)), worth.learn(log(0, 1.0), log(1, 1.3))
    assert slow_first.plan != worth.plans[0]
    assert slow_second.plan == worth.plans[0]
    assert len(slow_second.learned.runs) == 2
    with pytest.raises(CalibrationError, match="takes 2 logs"):
        worth.learn(log(0, 1.0))


def test_without_the_cost_of_the_run_there_is_no_saving():
    advice = smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp")
    with pytest.raises(CalibrationError, match="tokens="):
        advice.worth_measuring()
    single = smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp", tokens="1B").worth_measuring()
    assert (single.measure, single.plans, single.cells()) == (False, (), ())
    assert "cheapest in every draw" in single.decision
    assert replace(single, certain_saving_usd=1.0).decision == single.decision
