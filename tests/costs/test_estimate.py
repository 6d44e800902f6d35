"""Estimates as a whole: consistent, monotonic, and the same alone or among many."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.cluster import Cluster
from smp_advisor.costs import Estimate, estimate
from smp_advisor.costs.compute import _passes_of_parts
from smp_advisor.costs.constants import constants
from smp_advisor.costs.distinct import BLOCKS
from smp_advisor.costs.effective_time import best_interval_seconds, elapsed_per_work, seconds_between_failures
from smp_advisor.costs.evaluate import memory_columns, seconds_columns
from smp_advisor.costs.evaluate import trained as trained_by
from smp_advisor.costs.world import World
from smp_advisor.errors import PlanError
from smp_advisor.libraries import Plan
from smp_advisor.libraries.layout import layout_of, layout_of_plan
from smp_advisor.libraries.space import enumerate_plans
from smp_advisor.workload import Adapter, Job, Model, Overheads
from smp_advisor.workload.job import OVERHEADS
from tests.costs.shapes import P4D, a100s, gpt

CLUSTER = Cluster(P4D, 2)
JOB = Job(sequence_length=512)
MODEL = gpt(layers=24, hidden=2048, heads=16)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Valid plans for two p4d nodes."""
    tp = draw(st.sampled_from([1, 2, 4, 8]))
    pp = draw(st.sampled_from([p for p in (1, 2, 4) if 16 % (tp * p) == 0]))
    microbatches = draw(st.sampled_from([1, 2, 4, 8]))
    simple = draw(st.booleans()) and pp > 1
    checkpointing = draw(st.sampled_from([False, "each", "group_2", "contiguous"]))
    sharding = draw(st.sampled_from(["none", "optimizer", "all"] if pp == 1 and tp < 16 else ["none", "optimizer"]))
    shards = draw(st.sampled_from([d for d in (2, 4, 8, 16) if 16 // (tp * pp) % d == 0] or [1]))
    active = microbatches if simple else draw(st.integers(1, microbatches))
    return Plan(
        tensor_parallel_degree=tp, pipeline_parallel_degree=pp, microbatches=microbatches, active_microbatches=active,
        pipeline="simple" if simple else "interleaved", batch_size=microbatches * draw(st.integers(1, 8)),
        prescaled_batch=tp > 1 and draw(st.booleans()), shard_optimizer_state=sharding == "optimizer",
        sharded_data_parallel_degree=shards if sharding == "all" else 1, activation_checkpointing=checkpointing,
        offload_activations=bool(checkpointing) and draw(st.booleans()), fp16=True,
    )  # fmt: skip


def peak(value: Estimate) -> float:
    return value.memory.peak.total_gib


@given(plans())
def test_parts_are_positive_and_rates_agree(plan: Plan) -> None:
    value = estimate(MODEL, CLUSTER, JOB, plan)
    assert all(part >= 0 for part in (getattr(value.time, name) for name in value.time.__dataclass_fields__))
    assert 0 < value.mfu < 0.8
    assert value.tflops_per_gpu / value.mfu == pytest.approx(312)
    assert value.samples_per_second * value.step_seconds == pytest.approx(value.global_batch_size)
    assert value.tokens_per_second == pytest.approx(512 * value.samples_per_second)
    assert 0 <= value.fit_probability <= 1
    assert value.fits == (value.headroom_gib >= 0 and value.host_memory_fits)
    assert value.needed_gib <= peak(value) + 1e-9


@pytest.mark.slow
@given(plans(), st.floats(0.7, 1.5))
def test_room_is_left_exactly_where_fitting_is_likelier_than_not(plan: Plan, share: float) -> None:
    needed = estimate(MODEL, a100s(80.0, nodes=2), JOB, plan).needed_gib
    # The last bit decides: just too small, just enough, and anything around it.
    for usable in (np.nextafter(needed, 0), needed, np.nextafter(needed, 1e9), share * needed):
        value = estimate(MODEL, a100s(float(usable), nodes=2), JOB, plan)
        assert (value.needed_gib, value.headroom_gib) == (needed, usable - needed)
        assert (value.headroom_gib >= 0) == (value.fit_probability >= 0.5)
        assert value.fits == (usable >= needed and value.host_memory_fits)


@given(plans())
def test_more_samples_take_more_memory_and_time(plan: Plan) -> None:
    small = estimate(MODEL, CLUSTER, JOB, plan)
    large = estimate(MODEL, CLUSTER, JOB, replace(plan, batch_size=2 * plan.batch_size))
    # Equal where the optimizer's step is what takes the most.
    step_peaks = small.memory.peak.optimizer_step_gib > 0
    assert peak(large) >= peak(small) if step_peaks else peak(large) > peak(small)
    assert large.step_seconds > small.step_seconds

    # Near full memory the allocator slows the step down, which is another law.
    def rate(value: Estimate) -> float:
        return value.tokens_per_step / (value.step_seconds - value.time.allocator_seconds)

    assert rate(large) > 0.999 * rate(small)


@given(plans())
def test_each_technique_saves_the_memory_it_is_for(plan: Plan) -> None:
    without = estimate(MODEL, CLUSTER, JOB, plan)
    if plan.sharded_data_parallel_degree == 1 and not plan.shard_optimizer_state:
        assert peak(estimate(MODEL, CLUSTER, JOB, replace(plan, shard_optimizer_state=True))) <= peak(without)
    if not plan.activation_checkpointing:
        checked = estimate(MODEL, CLUSTER, JOB, replace(plan, activation_checkpointing="each"))
        assert peak(checked) < peak(without)
        assert checked.time.recomputation_seconds > 0
    elif not plan.offload_activations:
        assert peak(estimate(MODEL, CLUSTER, JOB, replace(plan, offload_activations=True))) <= peak(without)


@given(plans())
def test_more_active_microbatches_never_slow_the_pipeline(plan: Plan) -> None:
    if plan.pipeline == "simple":
        return
    some = (replace(plan, active_microbatches=active) for active in (1, plan.microbatches))
    few, all_ = (estimate(MODEL, CLUSTER, JOB, changed) for changed in some)
    assert all_.step_seconds <= few.step_seconds * (1 + 1e-9)
    assert peak(all_) >= peak(few)


def test_every_constant_has_a_source_and_a_date() -> None:
    assert len(constants()) > 20
    for entry in constants().values():
        assert entry.source
        assert entry.date.startswith("20")


def test_a_job_with_defaults_is_explained_for_a_plan_in_bf16_with_fused_attention():
    plan = Plan(library="fsdp")
    with pytest.raises(PlanError, match=r"precision='bf16' in the job; .* is advice\.job"):
        estimate(MODEL, CLUSTER, Job(precision="fp32"), plan)
    eager, fused = (
        estimate(MODEL, CLUSTER, Job(precision="bf16", attention=attention), plan).assumptions
        for attention in ("auto", "fused")
    )
    assert any("pass attention='fused', or advice.job" in sentence for sentence in eager)
    assert not any("Attention is eager" in sentence for sentence in fused)


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
    assert counted.usd_per_hour == pytest.approx(2 * 25.251286)
    assert counted.usd_total == pytest.approx(counted.days * 24 * counted.usd_per_hour)
    without_price = estimate(MODEL, a100s(39.0, nodes=2), job(tokens=None), PLAN)
    for name in ("usd_per_hour", "usd_total", "usd_per_million_tokens", "days"):
        assert getattr(without_price, name) is None


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


def test_the_verdict_is_that_of_the_worst_phase_which_is_named() -> None:
    model, cluster = Model.from_name("llama-3-70b"), Cluster("ml.p4d.24xlarge", 1)
    adapter = Adapter(rank=16, base_bits=4)
    job = Job(sequence_length=2048, precision="bf16", attention="fused", adapter=adapter)
    plan = Plan(library="fsdp", batch_size=1, activation_checkpointing="each")
    found = estimate(model, cluster, job, plan)
    load, update, steps, save = found.phases
    assert [phase.name for phase in found.phases] == ["load", "first update", "steps", "save"]
    # The whole quantized model on every GPU before it is sharded: more than a step needs.
    assert load.gpu_gib > found.usable_gpu_memory_gib > steps.gpu_gib > update.gpu_gib
    assert (found.needed_gib, found.fits) == (load.gpu_gib, False)
    assert found.fit_probability < 0.5
    assert found.assumptions[0].startswith("Loading the quantized model on every GPU needs 4")
    assert memory_columns(model, cluster, job, layout_of([plan], job, cluster)).margin[0] < 0
    assert save.disk_gib_per_node > 0
    # A script of one's own may load a part on each GPU; a sharded 16-bit base is in the first process's host memory.
    own = estimate(model, cluster, replace(job, stack="hf-sdpa"), plan)
    assert own.fits
    assert any("How your code loads a quantized base is not counted" in sentence for sentence in own.assumptions)
    whole = estimate(model, cluster, replace(job, adapter=Adapter(rank=16)), plan)
    assert whole.host_memory_gib_per_node == pytest.approx(2 * model.parameter_count / 2**30)


def test_stacked_experts_load_in_16_bits_and_smp_v1_traces_on_one_gpu() -> None:
    def loaded(**settings: bool) -> float:
        adapter = Adapter(rank=16, base_bits=4, **settings)
        job = Job(sequence_length=2048, precision="bf16", attention="fused", adapter=adapter)
        plan = Plan(library="fsdp", activation_checkpointing="each")
        return estimate(Model.from_name("mistralai/Mixtral-8x7B-v0.1"), Cluster(P4D, 1), job, plan).phases[0].gpu_gib

    assert loaded() > 3 * loaded(before_transformers_5=True)
    model, cluster = Model.from_parameters("70B", family="gpt2"), Cluster(P4D, 4)
    settings = {"pipeline_parallel_degree": 8, "tensor_parallel_degree": 4, "ddp": True, "batch_size": 4}
    plan = Plan(library="smp-v1", microbatches=4, activation_checkpointing="each", fp16=True, **settings)
    job = Job(sequence_length=2048)
    traced, untraced = (estimate(model, cluster, job, replace(plan, skip_tracing=skip)) for skip in (False, True))
    assert traced.phases[0].name == "trace"
    assert traced.phases[0].gpu_gib == pytest.approx(2 * model.parameter_count / 4 / 2**30, rel=0.1)
    assert untraced.phases[0].gpu_gib < traced.phases[0].gpu_gib
    model = Model.from_parameters("30B", family="gpt2")
    found = estimate(
        model,
        cluster,
        job,
        replace(plan, tensor_parallel_degree=1, pipeline_parallel_degree=16, shard_optimizer_state=True),
    )
    assert not found.fits
    assert found.assumptions[0].startswith("Tracing the model on one GPU needs")
    # The search leaves tracing out where one GPU cannot hold the model.
    space = enumerate_plans(model, cluster, job, {"tensor_parallel_degree": 1, "pipeline_parallel_degree": 16})
    assert space.plan(0).skip_tracing


@pytest.mark.parametrize(("library", "size"), [("smp-v1", "13B"), ("smp-v2", "meta-llama/Llama-3.1-70B")])
def test_plans_that_share_work_in_columns_have_their_own_figures(library: str, size: str) -> None:
    model = Model.from_name(size) if "/" in size else Model.from_parameters(size, family="gpt2")
    cluster, job = Cluster("ml.p5.48xlarge", 8), Job(sequence_length=2048, precision="bf16", attention="fused")
    space = enumerate_plans(model, cluster, job, library=library)
    memory, parts = (of(model, cluster, job, space.layout) for of in (memory_columns, seconds_columns))
    seconds = sum(parts.values())
    assert len(space) > 1000
    for row in range(0, len(space), len(space) // 40):
        alone = space.layout.take(np.array([row]))
        own = memory_columns(model, cluster, job, alone)
        assert (own.needed_bytes[0], own.margin[0]) == (memory.needed_bytes[row], memory.margin[row])
        assert own.host_bytes_per_node[0] == memory.host_bytes_per_node[row]
        assert sum(seconds_columns(model, cluster, job, alone).values())[0] == pytest.approx(seconds[row], rel=1e-12)


class _Reads:
    """A layout that notes which of its fields are read."""

    def __init__(self, layout: object) -> None:
        self.layout, self.names = layout, set[str]()

    def __getattr__(self, name: str) -> object:
        self.names.add(name)
        return getattr(self.layout, name)


def test_passes_of_blocks_read_only_the_columns_by_which_they_are_kept() -> None:
    experts = Model.from_shape(layers=4, hidden=2048, heads=16, family="mixtral", experts=8, experts_per_token=2)
    adapted = Adapter(rank=8, base_bits=4).applied_to(Model.from_parameters("1.3B"))
    divided = {"tensor_parallel_degree": 2, "context_parallel_degree": 2, "expert_parallel_degree": 2}
    reads = _Reads(layout_of_plan(Plan(library="smp-v2", batch_size=2, activation_checkpointing="each"), JOB, CLUSTER))
    reads.layout = replace(reads.layout, **divided)
    for stack in ("hf-sdpa", "megatron", "liger", "torch-compile"):
        for attention in ("eager", "fused"):
            job = replace(JOB, attention=attention, stack=stack, precision="bf16")
            for model in (MODEL, experts, adapted):
                _passes_of_parts(model, CLUSTER, job, reads, World.of(model, CLUSTER, job, reads.layout))
    assert {"shard_level", "tensor_parallel_degree"} < reads.names <= set(BLOCKS)
