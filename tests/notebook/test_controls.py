"""Which positions the controls offer: only those that the cluster and the model allow."""

from __future__ import annotations

from smp_advisor.advice.live.controls import controls
from smp_advisor.advice.live.settings import settings_of


def by_name(advice):
    return {control.name: control for control in controls(advice, settings_of(advice.plan))}


def test_each_control_has_a_position_for_what_is_set(advice, pipeline_advice):
    for one in (advice, pipeline_advice):
        settings = settings_of(one.plan)
        for control in controls(one, settings):
            assert settings[control.name] in control.values
            assert len(control.values) == len(set(control.values)) == len(control.texts)


def test_degrees_divide_the_cluster_and_the_heads(advice):
    found = by_name(advice)
    assert found["tensor_parallel_degree"].values == (1, 2, 4, 8, 16, 32)
    assert all(32 % degree == 0 for degree in found["pipeline_parallel_degree"].values)
    assert max(found["pipeline_parallel_degree"].values) <= advice.model.layer_count


def test_microbatches_divide_the_batch_and_batches_are_their_multiples(pipeline_advice):
    found = by_name(pipeline_advice)
    assert found["microbatches"].values == (1, 2, 4, 8, 16)
    assert all(size % 4 == 0 for size in found["batch_size"].values)


def test_the_schedule_has_one_value_without_a_pipeline(advice, pipeline_advice):
    for name in ("active_microbatches", "pipeline"):
        control = by_name(advice)[name]
        assert (len(control.values), control.fixed_because) == (1, "Only with pipeline stages.")
    assert by_name(pipeline_advice)["active_microbatches"].values == (1, 2, 3, 4)
