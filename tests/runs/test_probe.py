"""Probes: a short job that teaches about a plan, and its way back into the choice."""

import ast

import pytest

import smp_advisor as smpa
from smp_advisor.errors import CalibrationError
from smp_advisor.runs.probes import candidates
from tests.runs.logs import exported


@pytest.fixture(scope="module")
def large():
    """A plan for 128 GPUs."""
    return smpa.advise("7B", "ml.p4d.24xlarge", instance_count=16, library="fsdp", global_batch_size=512)


def test_a_plan_is_measured_as_it_is_where_it_runs_on_two_nodes(large):
    probes = list(candidates(large.model, large.cluster, large.job, large.plan))
    own = candidates(large.model, large.cluster, large.job, large.plan, scalable=False)
    assert all(probe.layers[0] == probe.layers[1] for probe in own)  # a script of the user builds the full model
    assert any(probe.layers[0] < probe.layers[1] for probe in probes)
    assert {probe.cluster.nodes for probe in probes} == {1, 2}
    for probe in probes:
        assert probe.estimate.fit_probability >= 0.95
        assert probe.usd is not None
        assert probe.plan.batch_size == large.plan.batch_size
    chosen = large.probe()
    assert chosen in probes
    assert (chosen.cluster.nodes, chosen.layers, chosen.plan) == (2, (27, 27), large.plan)
    assert chosen.usd < large.estimate.usd_per_hour / 10


def test_a_plan_that_is_too_large_for_two_nodes_is_measured_in_part_on_one():
    probe = smpa.advise("70B", "ml.p4d.24xlarge", instance_count=32).probe()
    assert (probe.cluster.nodes, probe.layers[1]) == (1, 80)
    assert 1 < probe.layers[0] < 80
    assert "not the plan" in str(probe)


def test_a_probe_narrows_the_interval_of_its_plan(large):
    probe = large.probe()
    log = exported([9.0] + [probe.estimate.step_seconds] * 20, tokens=probe.estimate.tokens_per_step)
    calibrated = large.calibrate(log, probe=True)
    before, after = (
        smpa.estimate(large.model, large.cluster, job, large.plan).step_seconds_range
        for job in (large.job, calibrated.job)
    )
    assert after[1] / after[0] < 0.5 * before[1] / before[0]


@pytest.mark.parametrize("sdk", ["v2", "v3"])
def test_the_cell_states_its_price_and_runs_the_probe(large, sdk):
    probe, cell = large.probe(), large.probe_cell(sdk)
    ast.parse(cell)
    assert cell.startswith("# Probe: 5 + 20 steps")
    for text in (f"{probe.usd:,.2f} USD", "measures the plan as it is", '"max_steps": 25', '"log_every": 1'):
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
