"""Effective time: the parts of a run besides its training steps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate
from smp_advisor.costs.effective_time import best_interval_seconds, elapsed_per_work, seconds_between_failures
from smp_advisor.costs.evaluate import trained as trained_by
from smp_advisor.errors import JobError
from smp_advisor.libraries import Plan
from smp_advisor.workload import Adapter, Job, Overheads
from smp_advisor.workload.job import OVERHEADS
from tests.costs.shapes import P4D, gpt

MODEL = gpt(layers=24, hidden=2048, heads=16)
PLAN = Plan(library="fsdp", batch_size=4)
SECONDS = st.floats(0.1, 1e4)


def job(overheads: object = "all", tokens: float | None = 10e9) -> Job:
    return Job(precision="bf16", tokens=tokens, overheads=overheads)  # type: ignore[arg-type]


@given(SECONDS, SECONDS, st.floats(200, 1e8), SECONDS)
def test_failures_and_checkpoints_only_add_time(interval: float, save: float, between: float, restart: float) -> None:
    smooth = elapsed_per_work(interval, save)
    assert smooth == pytest.approx(1 + save / interval)
    failing = elapsed_per_work(interval, save, between, restart)
    assert failing >= smooth * (1 - 1e-12)
    assert math.isfinite(failing)
    assert elapsed_per_work(interval, save, 2 * between, restart) <= failing
    assert elapsed_per_work(interval, 2 * save, between, restart) >= failing
    assert elapsed_per_work(interval, save, between, 2 * restart) >= failing


@given(st.floats(0.1, 600), st.floats(3600, 1e7), st.floats(0.2, 5).filter(lambda x: abs(x - 1) > 0.05))
def test_the_best_interval_loses_the_least(save: float, between: float, factor: float) -> None:
    best = best_interval_seconds(save, between)
    assert elapsed_per_work(best, save, between) <= elapsed_per_work(factor * best, save, between) * 1.001


def test_a_published_run_of_16384_gpus_spends_nine_tenths_in_training() -> None:
    """Llama 3 405B: over 90 % with a failure every three hours. Its checkpoints of 5 TB take seconds."""
    between = seconds_between_failures(16_384)
    assert between == pytest.approx(54 * 86_400 / 419, rel=1e-3)
    save, restart = 10.0, 900.0
    share = 1 / elapsed_per_work(best_interval_seconds(save, between), save, between, restart)
    assert 0.85 < share < 0.95


@given(st.sampled_from([1, 2, 4, 16]), st.lists(st.sampled_from(OVERHEADS), unique=True), st.booleans())
def test_shares_add_up_and_every_part_can_be_left_out(nodes: int, parts: list[str], asynchronous: bool) -> None:
    counted = Overheads(parts=tuple(parts), asynchronous=asynchronous)
    value = estimate(MODEL, Cluster(P4D, nodes), job(counted), PLAN).effective
    assert {part.name for part in value.parts} == set(parts)
    assert 0 < value.share <= 1
    assert all(part.share >= 0 and part.detail and part.source for part in value.parts)
    assert value.share + sum(part.share for part in value.parts) == pytest.approx(1)
    everything = estimate(MODEL, Cluster(P4D, nodes), job(Overheads(asynchronous=asynchronous)), PLAN).effective
    assert everything.share <= value.share + 1e-12


def test_names_in_one_text_are_those_of_a_list() -> None:
    assert job("restarts, checkpoints").overheads == job(["checkpoints", "restarts"]).overheads
    assert job("all").overheads == job(OVERHEADS).overheads


def test_without_parts_days_and_dollars_are_those_of_the_steps() -> None:
    value = estimate(MODEL, Cluster(P4D, 2), job("none"), PLAN)
    assert value.effective.share == 1
    assert value.days == pytest.approx(10e9 / value.tokens_per_second / 86_400)
    counted = estimate(MODEL, Cluster(P4D, 2), job(), PLAN)
    assert counted.days is not None
    assert value.days is not None
    assert value.usd_total is not None
    assert counted.days == pytest.approx(value.days / counted.effective.share)
    assert counted.usd_total == pytest.approx(value.usd_total / counted.effective.share)
    assert counted.usd_per_million_tokens == pytest.approx(counted.usd_total / 10e3)
    assert counted.tokens_per_second == value.tokens_per_second


def test_more_gpus_fail_more_often() -> None:
    restarts = Overheads(parts=("restarts",), checkpoint_minutes=60)
    shares = [estimate(MODEL, Cluster(P4D, n), job(restarts), PLAN).effective.share for n in (1, 2, 4, 8, 16, 32)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1]


def test_larger_and_blocking_checkpoints_take_more_time() -> None:
    sizes = [estimate(gpt(layers=n, hidden=2048, heads=16), Cluster(P4D, 2), job(), PLAN) for n in (12, 24, 48)]
    gib = [value.effective.checkpoint_gib for value in sizes]
    seconds = [value.effective.checkpoint_seconds for value in sizes]
    assert gib == sorted(gib)
    assert seconds == sorted(seconds)
    # fp32 parameters and Adam's moments
    assert gib[1] * 2**30 == pytest.approx(12 * MODEL.parameter_count)
    blocking, background = (
        estimate(MODEL, Cluster(P4D, 2), job(Overheads(parts=("checkpoints",), asynchronous=a)), PLAN).effective
        for a in (False, True)
    )
    assert background.share > blocking.share


def test_the_start_counts_only_with_a_number_of_tokens() -> None:
    parts = {
        tokens: {
            part.name: part.share for part in estimate(MODEL, Cluster(P4D, 1), job("all", tokens), PLAN).effective.parts
        }
        for tokens in (None, 1e9)
    }
    assert parts[None]["startup"] == 0 < parts[1e9]["startup"]
    assert parts[None]["data_loading"] > 0


@pytest.mark.parametrize(
    "wrong",
    ["nothing", ["startup", "coffee"], 3, {"checkpoint_minutes": 0}, {"storage": "tape"}, {"asynchronous": "yes"}],
)
def test_wrong_settings_are_refused_in_a_sentence(wrong: object) -> None:
    with pytest.raises(JobError, match=r"\.$"):
        Overheads(**wrong) if isinstance(wrong, dict) else job(wrong)


@pytest.mark.parametrize(("bits", "libraries"), [(16, ("ddp", "fsdp")), (4, ("ddp",))])
def test_checkpoints_of_adapters_contain_what_the_script_saves(bits: int, libraries: tuple[str, ...]) -> None:
    """The generated script leaves the frozen weights to the channel that has them."""
    trained = Job(precision="bf16", adapter=Adapter(rank=8, base_bits=bits))  # type: ignore[arg-type]
    node = Cluster(P4D, 1)
    own = sum(group.count * group.block.adapter_parameters for group in trained_by(MODEL, trained).groups)
    for library in libraries:
        gib = estimate(MODEL, node, trained, Plan(library=library)).effective.checkpoint_gib
        assert gib == pytest.approx(12 * own / 2**30)  # fp32 values with Adam's two moments
    sharded = estimate(MODEL, node, trained, Plan(library="smp-v2", hybrid_shard_degree=8)).effective
    assert sharded.checkpoint_gib > MODEL.parameter_count * bits / 8 / 2**30  # by a script of the user
