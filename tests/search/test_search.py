"""Ranking: what wins, by which rule, and that it can be relied on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate
from smp_advisor.search.alternatives import alternatives
from smp_advisor.search.rank import NEAR_BEST, Scores, order
from smp_advisor.search.search import search
from smp_advisor.workload import Job, Model

CLUSTER = Cluster("ml.p4d.24xlarge", 2)
JOB = Job(sequence_length=512, max_tokens_per_step=400_000)


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.from_shape(layers=24, hidden=2048, heads=16, vocab=50_000, max_positions=1024)


def scores(
    speed: list[float], headroom: list[float], techniques: list[int], batches: list[int] | None = None
) -> Scores:
    return Scores(
        tokens_per_second=np.array(speed, dtype=float),
        usd_per_token=1 / np.array(speed, dtype=float),
        headroom=np.array(headroom, dtype=float),
        techniques=np.array(techniques),
        tokens_per_step=np.array(batches or [1] * len(speed)),
    )


def test_among_plans_within_3_percent_fewest_techniques_then_most_headroom_win() -> None:
    ranked = order(scores([100, 98, 97.5, 97.2, 90], [0.1, 0.2, 0.5, 0.3, 0.9], [4, 2, 3, 2, 0]), "throughput")
    assert ranked.tolist() == [3, 1, 2, 0, 4]


def test_among_equals_the_smaller_batch_wins() -> None:
    ranked = order(scores([98, 100, 99], [0.3, 0.3, 0.3], [1, 1, 1], [512, 2048, 1024]), "throughput")
    assert ranked.tolist() == [0, 2, 1]


def test_each_objective_ranks_by_what_it_names() -> None:
    four = scores([100, 60, 55, 40], [0.05, 0.4, 0.6, 0.9], [3, 1, 2, 0])
    assert order(four, "throughput")[0] == 0
    assert order(four, "cost")[0] == 0
    assert order(four, "headroom")[0] == 2  # 0.9 free, but less than half as fast, does not count
    assert order(four, "simplicity")[0] == 1


@given(st.lists(st.tuples(st.floats(1, 1e6), st.floats(0, 1), st.integers(0, 7)), min_size=1, max_size=40))
def test_the_winner_is_within_3_percent_or_simpler_by_techniques_that_gain_too_little(rows: list[tuple]) -> None:
    some = scores(*[list(column) for column in zip(*rows, strict=True)])
    ranked = order(some, "throughput")
    assert sorted(ranked.tolist()) == list(range(len(rows)))
    top = ranked[0]
    near = some.tokens_per_second >= some.tokens_per_second.max() * (1 - NEAR_BEST)
    fewest = some.techniques[near].min()
    assert some.techniques[top] <= fewest
    leaders = some.tokens_per_second[some.techniques == some.techniques[top]].max()
    assert some.tokens_per_second[top] >= leaders * (1 - NEAR_BEST)
    assert leaders >= some.tokens_per_second.max() * min(0.95 ** (fewest - some.techniques[top]), 1 - NEAR_BEST)


def test_a_technique_must_gain_5_percent_and_more_than_the_doubt_about_the_comparison() -> None:
    assert order(scores([100, 96], [0.1, 0.1], [1, 0]), "throughput")[0] == 1
    assert order(scores([100, 94], [0.1, 0.1], [1, 0]), "throughput")[0] == 0
    assert order(scores([100, 91], [0.1, 0.1], [2, 0]), "throughput")[0] == 1
    assert order(scores([100, 89], [0.1, 0.1], [1, 0]), "throughput", {0: 0.12})[0] == 1
    assert order(scores([100, 87], [0.1, 0.1], [1, 0]), "throughput", {0: 0.12})[0] == 0


def test_scores_agree_with_the_estimate_of_the_plan(model: Model) -> None:
    result = search(model, CLUSTER, JOB)
    for position in (0, len(result.ranked) // 2, len(result.ranked) - 1):
        plan = result.space.plan(int(result.ranked[position]))
        value = estimate(model, CLUSTER, JOB, plan)
        assert value.tokens_per_second == pytest.approx(result.scores.tokens_per_second[position])
        assert value.step_seconds == pytest.approx(result.step_seconds[position])
        assert value.headroom_gib / value.usable_gpu_memory_gib == pytest.approx(result.scores.headroom[position])
        assert value.fit_probability >= 0.95
        assert value.fits


def test_the_search_repeats_itself(model: Model) -> None:
    first, second = (search(model, CLUSTER, JOB) for _ in range(2))
    assert first.best() == second.best()
    assert np.array_equal(first.ranked, second.ranked)


def test_a_higher_fit_probability_leaves_fewer_plans_and_more_headroom(model: Model) -> None:
    lax, strict = (search(model, CLUSTER, JOB, min_fit_probability=p) for p in (0.5, 0.999))
    assert set(strict.ranked.tolist()) < set(lax.ranked.tolist())
    assert strict.scores.headroom.min() > lax.scores.headroom.min()


def test_a_global_batch_is_kept_by_every_plan(model: Model) -> None:
    job = Job(sequence_length=512, global_batch_size=96)
    result = search(model, CLUSTER, job)
    assert len(result.ranked) > 0
    layout = result.space.layout
    replicas = 16 // (layout.tensor_parallel_degree * layout.pipeline_parallel_degree)
    assert set((layout.batch_samples * replicas).tolist()) == {96}


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
    assert (table["needed_gib"] <= table["peak_gib"] + 1e-9).all()
    assert ((table["headroom_gib"] >= 0) == (table["fit_probability"] >= 0.5)).all()
    # What is told as a difference is one: not "-0 %", not "0.0 GiB".
    assert not table["why"].str.contains(r"\b0 %|\b0\.0 GiB").any()
    over = table[table["why"].str.contains("GiB over")]
    assert (over["headroom_gib"] < 0).all()
