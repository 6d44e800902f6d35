"""The search: ranks of plans, their communication spans, and the best plan of each combination of techniques."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.advice.request import within_usual_batch
from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate
from smp_advisor.costs.world import World
from smp_advisor.libraries import Plan
from smp_advisor.libraries.layout import layout_of
from smp_advisor.search.rank import NEAR_BEST, Resolution, Scores, communication_span, order, undominated_first
from smp_advisor.search.search import alternatives, representatives, search
from smp_advisor.workload import Job, Model

CLUSTER = Cluster("ml.p4d.24xlarge", 2)
JOB = Job(sequence_length=512, max_tokens_per_step=400_000)


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.from_shape(layers=24, hidden=2048, heads=16, vocab=50_000, max_positions=1024)


def scores(speed: list[float], techniques: list[int], **columns: list) -> Scores:
    n = len(speed)
    ones = ("tokens_per_step", "span", "nodes", "context_nodes", "microbatches")
    usual = {"headroom": 0.5, "worth": 1.0, "doublings_missing": 0.0, "pipelined": False, "published": True}
    values = {name: [value] * n for name, value in (dict.fromkeys(ones, 1) | usual).items()} | columns
    return Scores(
        tokens_per_second=np.array(speed, dtype=float),
        techniques=np.array(techniques),
        **{name: np.array(column) for name, column in values.items()},
    )


def test_objectives_rank_by_what_they_name() -> None:
    columns = {"headroom": [0.9, 0.9, 0.1], "tokens_per_step": [8, 2, 1], "worth": [0.8, 1.0, 1.0]}
    three = scores([120, 95, 100], [1, 1, 0], **columns)
    assert order(three, "headroom")[0] == 1
    two = scores([70, 69], [0, 0], tokens_per_step=[8, 2], span=[1, 1])
    assert order(two, "simplicity")[0] == 1

    four = scores([100, 99, 98, 98], [1, 1, 1, 1], headroom=[0.1, 0.2, 0.9, 0.8], span=[8, 4, 4, 8])
    assert order(four, "throughput")[0] == 2
    assert order(scores([100, 99], [1, 1], headroom=[0.1, 0.9], microbatches=[1, 2]), "throughput")[0] == 0

    four = scores([100, 60, 55, 40], [3, 1, 2, 0], headroom=[0.05, 0.4, 0.6, 0.9])
    assert order(four, "throughput")[0] == 0
    assert order(four, "cost")[0] == 0
    assert order(four, "headroom")[0] == 0  # more memory is not bought below 90 % of the best speed
    near = scores([100, 95, 91, 89], [3, 1, 2, 0], headroom=[0.05, 0.4, 0.6, 0.9])
    assert order(near, "headroom")[0] == 2
    assert order(four, "simplicity")[0] == 1


@given(st.lists(st.tuples(st.floats(1, 1e6), st.integers(0, 7)), min_size=1, max_size=40))
def test_each_further_technique_of_the_winner_gains_5_percent_and_none_is_missing(rows: list[tuple]) -> None:
    some = scores(*[list(column) for column in zip(*rows, strict=True)])
    ranked = order(some, "throughput")
    assert sorted(ranked.tolist()) == list(range(len(rows)))
    count, speed = some.techniques[ranked[0]], some.tokens_per_second
    leaders = {level: speed[some.techniques == level].max() for level in set(some.techniques.tolist())}
    assert speed[ranked[0]] >= (1 - NEAR_BEST) * leaders[count]
    for level, leader in leaders.items():
        if level > count:
            assert leader * 0.95 ** (level - count) <= leaders[count] * (1 + 1e-9)
        if level < count:
            assert leaders[count] * 0.95 ** (count - level) >= leader * (1 - 1e-9)


def test_what_decides_between_plans_that_are_close() -> None:
    columns = {"span": [8, 8, 16, 8], "tokens_per_step": [4, 2, 1, 2], "microbatches": [1, 4, 1, 2]}
    assert order(scores([100, 99, 99, 98], [1, 1, 1, 1], **columns), "throughput").tolist() == [3, 1, 0, 2]
    pipelines = scores([100, 100, 100], [1, 1, 1], microbatches=[8, 1, 4], pipelined=[True] * 3)
    assert order(pipelines, "throughput").tolist() == [2, 1, 0]

    kinds = Resolution(np.array([0, 1, 1]), np.array([[0.0, 0.12], [0.12, 0.0]]))
    three = scores([100, 90, 94], [1, 1, 1], span=[4, 8, 16], published=[False, True, True])
    assert order(three, "throughput", kinds)[0] == 2
    # Of the family, the plan with the smaller span is more than 3 % slower.
    assert order(three, "throughput", Resolution(kinds.kind, np.zeros((2, 2))))[0] == 0

    assert order(scores([100, 96], [1, 0]), "throughput")[0] == 1
    assert order(scores([100, 94], [1, 0]), "throughput")[0] == 0
    assert order(scores([100, 91], [2, 0]), "throughput")[0] == 1
    kinds = Resolution(np.array([0, 1]), np.array([[0.0, 0.12], [0.12, 0.0]]))
    assert order(scores([100, 89], [1, 0]), "throughput", kinds)[0] == 1
    assert order(scores([100, 87], [1, 0]), "throughput", kinds)[0] == 0


def test_what_must_gain() -> None:
    batches = {"tokens_per_step": [2, 8], "worth": [1.0, 0.95**2]}
    assert order(scores([100, 112], [0, 0], **batches), "throughput")[0] == 0
    assert order(scores([100, 117], [0, 0], **batches), "throughput")[0] == 1

    columns = {"span": [128, 16, 8], "nodes": [16, 2, 1]}
    assert order(scores([100, 99, 96], [1, 1, 1], **columns), "throughput")[0] == 2
    assert order(scores([100, 99, 94], [1, 1, 1], **columns), "throughput")[0] == 1
    # Of the plans inside a node, those within 3 % of the best are equal.
    inside = {"span": [128, 8, 4], "nodes": [16, 1, 1]}
    assert order(scores([100, 99, 95.5], [1, 1, 1], **inside), "throughput")[0] == 1

    three = scores([98, 100, 101], [1, 1, 1], span=[8, 8, 16], headroom=[0.9, 0.1, 0.1])
    ranked = order(three, "throughput")
    assert ranked[0] == 0
    assert undominated_first(ranked, three, np.array([0, 1, 2])).tolist() == [1, 0, 2]
    # Plans of one combination of techniques share a row of the table.
    assert undominated_first(ranked, three, np.array([0, 0, 1]))[0] == 0


REQUESTS = st.fixed_dictionaries(
    {
        "parameters": st.sampled_from([125e6, 350e6, 1.3e9, 2.7e9, 6.7e9, 10e9, 13e9, 30e9]),
        "instance": st.sampled_from(["ml.p4d.24xlarge", "ml.p4de.24xlarge", "ml.g5.48xlarge"]),
        "nodes": st.sampled_from([1, 2, 3, 4, 8]),
        "library": st.sampled_from(["smp-v1", "smp-v2", "fsdp", "ddp"]),
        "sequence_length": st.sampled_from([512, 2048, 4096]),
        "samples": st.sampled_from([None, None, 1, 4, 16]),
        "training": st.sampled_from(["auto", "fine-tuning"]),
    }
)


def check_undominated(request: dict) -> None:
    cluster = Cluster(request["instance"], request["nodes"])
    samples = request["samples"]
    job = Job(
        sequence_length=request["sequence_length"],
        precision="bf16" if request["library"] == "smp-v2" else "fp16",
        global_batch_size=samples and samples * cluster.gpus,
        training=request["training"],
    )
    model = Model.from_parameters(request["parameters"], sequence_length=request["sequence_length"])
    job = within_usual_batch(job, model)
    result = search(model, cluster, job, library=request["library"])
    if not len(result.ranked):
        return
    listed = representatives(result).scores
    dominating = listed.tokens_per_second > listed.tokens_per_second[0]
    for values in (listed.techniques, listed.span, listed.tokens_per_step):
        dominating &= values <= values[0]
    assert not dominating.any()
    assert samples or listed.tokens_per_step[0] <= job.max_tokens_per_step


@pytest.mark.slow
@given(REQUESTS)
def test_no_plan_of_the_table_dominates_the_chosen_one_in_many_requests(request: dict) -> None:
    check_undominated(request)


def test_scores_agree_with_estimates_and_probabilities(model: Model) -> None:
    result = search(model, CLUSTER, JOB)
    for position in (0, len(result.ranked) // 2, len(result.ranked) - 1):
        plan = result.space.plan(int(result.ranked[position]))
        value = estimate(model, CLUSTER, JOB, plan)
        assert value.tokens_per_second == pytest.approx(result.scores.tokens_per_second[position])
        assert value.step_seconds == pytest.approx(result.step_seconds[position])
        assert value.headroom_gib / value.usable_gpu_memory_gib == pytest.approx(result.scores.headroom[position])
        assert value.fit_probability >= 0.95
        assert value.fits

    lax, strict = (search(model, CLUSTER, JOB, min_fit_probability=p) for p in (0.5, 0.999))
    assert set(strict.ranked.tolist()) < set(lax.ranked.tolist())
    assert strict.scores.headroom.min() > lax.scores.headroom.min()


def test_alternatives_name_each_combination_once_and_say_why_it_lost(model: Model) -> None:
    result = search(model, CLUSTER, JOB)
    table = alternatives(result, model, JOB, min_fit_probability=0.95)
    assert table["why"].iloc[0] == "Recommended."
    assert (table["why"] == "Recommended.").sum() == 1
    degrees = ("tensor", "pipeline", "sharded_data")
    keys = [*(f"{name}_parallel_degree" for name in degrees), "shard_optimizer_state"]
    assert not table.duplicated([*keys, "activation_checkpointing", "offload_activations"]).any()
    best = result.best()
    assert [table[key].iloc[0] for key in keys] == [getattr(best, key) for key in keys]
    assert table["why"].str.endswith(".").all()
    fits = table["tokens_per_second"].notna()
    assert (table.loc[fits, "fit_probability"] >= 0.95).all()
    for name in ("tokens_per_second", "step_seconds"):
        assert (table.loc[fits, f"{name}_low"] < table.loc[fits, name]).all()
        assert (table.loc[fits, name] < table.loc[fits, f"{name}_high"]).all()
    slower = table[table["why"].str.fullmatch(r"\d+ % slower\.")]
    assert (slower["tokens_per_second"] < 0.97 * table["tokens_per_second"].iloc[0]).all()
    usable = CLUSTER.instance.usable_gpu_memory_gib
    assert (table["headroom_gib"] == usable - table["needed_gib"]).all()
    assert ((table["headroom_gib"] >= 0) == (table["fit_probability"] >= 0.5)).all()
    # What is told as a difference is one: not "-0 %", not "0.0 GiB".
    assert not table["why"].str.contains(r"\b0 %|\b0\.0 GiB").any()
    over = table[table["why"].str.contains("GiB over")]
    assert (over["headroom_gib"] < 0).all()


FOUR_NODES = Cluster("ml.p4d.24xlarge", 4)
TEN_BILLION = Model.from_parameters(10e9, sequence_length=512)


def span(plan: Plan, cluster: Cluster = FOUR_NODES) -> int:
    job = Job(sequence_length=512, precision="bf16" if plan.library == "smp-v2" else "fp16")
    layout = layout_of([plan], job, cluster)
    return int(communication_span(World.of(TEN_BILLION, cluster, job, layout), layout)[0])


def test_the_span_of_groups() -> None:
    assert span(Plan(sharded_data_parallel_degree=8, fp16=True)) == 8
    assert span(Plan(tensor_parallel_degree=2, sharded_data_parallel_degree=8, prescaled_batch=True, fp16=True)) == 16
    assert span(Plan(library="smp-v2", hybrid_shard_degree=0)) == 32
    # The state that all replicas share travels once per step, like the gradients.
    assert span(Plan(shard_optimizer_state=True, fp16=True)) == 1

    cluster = Cluster("ml.p4d.24xlarge", 5)
    assert span(Plan(library="smp-v2", hybrid_shard_degree=10), cluster) == 40
    assert span(Plan(library="smp-v2", hybrid_shard_degree=20), cluster) == 40
    assert span(Plan(library="smp-v2", hybrid_shard_degree=4), cluster) == 4
