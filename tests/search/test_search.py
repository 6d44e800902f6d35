"""The search: ranks of plans, their communication spans, and the best plan of each combination of techniques."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import smp_advisor
from smp_advisor.advice.request import within_usual_batch
from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate
from smp_advisor.costs.evaluate import memory_columns, seconds_columns
from smp_advisor.costs.world import World
from smp_advisor.errors import NoPlanFitsError, PlanError
from smp_advisor.libraries import Plan
from smp_advisor.libraries.groups import global_batch_size
from smp_advisor.libraries.layout import COLUMNS, layout_of
from smp_advisor.libraries.space import Space, enumerate_plans
from smp_advisor.libraries.validation import check_against
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


@pytest.mark.slow
@given(REQUESTS)
def test_no_plan_of_the_table_dominates_the_chosen_one_in_many_requests(request: dict) -> None:
    cluster = Cluster(request["instance"], request["nodes"])
    samples = request["samples"]
    job = Job(
        sequence_length=request["sequence_length"],
        precision="bf16" if request["library"] == "smp-v2" else "fp16",
        global_batch_size=samples and samples * cluster.gpus,
        training=request["training"],
    )
    model = Model.from_parameters(request["parameters"], sequence_length=request["sequence_length"], family="gpt2")
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
TEN_BILLION = Model.from_parameters(10e9, sequence_length=512, family="gpt2")


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


NODES = Cluster("ml.p4d.24xlarge", 2)
LLAMA = Model.from_shape(layers=6, hidden=512, heads=8, kv_heads=4, ffn=1024, vocab=32_000, family="llama")
MIXTRAL = Model.from_shape(
    layers=4, hidden=512, heads=8, kv_heads=4, ffn=1024, vocab=32_000, family="mixtral", experts=8, experts_per_token=2
)
GPT = Model.from_shape(layers=6, hidden=512, heads=8, vocab=50_000, max_positions=2048, family="gpt2")
CASES = [
    ("smp-v2", LLAMA, "bf16"),
    ("smp-v2", MIXTRAL, "bf16"),
    ("smp-v2", GPT, "fp16"),
    ("fsdp", GPT, "bf16"),
    ("ddp", GPT, "fp32"),
    ("training-compiler", GPT, "fp16"),
    ("smp-v1-tensorflow", GPT, "fp32"),
    *(("smp-v1", GPT, precision) for precision in ("fp16", "bf16", "fp32")),
    ("smp-v1", LLAMA, "fp16"),
]


def some(space: Space, most: int = 150) -> dict[int, Plan]:
    rows = np.unique(np.linspace(0, len(space) - 1, min(most, len(space))).astype(int))
    return {int(row): space.plan(int(row)) for row in rows}


@pytest.mark.parametrize(("library", "model", "precision"), CASES)
@pytest.mark.parametrize("batch", [None, 96])
def test_every_plan_is_valid_and_its_columns_are_its_own(library, model, precision, batch) -> None:
    job = Job(sequence_length=256, precision=precision, global_batch_size=batch, max_tokens_per_step=100_000)
    space = enumerate_plans(model, NODES, job, library=library)
    assert len(space) > 0
    plans = some(space)
    for plan in plans.values():
        assert plan.library == library
        check_against(plan, NODES, model, job)
        assert global_batch_size(plan, NODES) * 256 <= 100_000
        assert plan.batch_size % plan.microbatches == 0
        if batch is not None:
            assert global_batch_size(plan, NODES) == batch
    # The row that was scored is the plan that is shown: translated back it is the same row.
    rows, back = space.layout.take(np.array(list(plans))), layout_of(list(plans.values()), job, NODES)
    assert rows.state_bytes == back.state_bytes
    for name in set(COLUMNS) - {"shard_degree"}:  # 0 stands for the whole group
        one, other = (np.asarray(getattr(each, name)) for each in (rows, back))
        differ = one != other
        if name == "active_microbatches":  # without stages there are none
            differ &= rows.pipeline_parallel_degree > 1
        assert not differ.any(), name


@pytest.mark.parametrize(("library", "model", "precision"), CASES)
def test_numbers_and_columns_have_the_same_costs(library, model, precision) -> None:
    """One formula computes one plan from numbers and all plans from columns, in any order of the plans."""
    job = Job(sequence_length=256, precision=precision, max_tokens_per_step=100_000)
    space = enumerate_plans(model, NODES, job, library=library)
    rows = np.random.default_rng(0).permutation(len(space))[:200]
    layout = space.layout.take(rows)
    memory, seconds = memory_columns(model, NODES, job, layout), seconds_columns(model, NODES, job, layout)
    for position in range(0, len(rows), 5):
        value = estimate(model, NODES, job, space.plan(int(rows[position])))
        assert value.needed_gib * 2**30 == pytest.approx(float(memory.needed_bytes[position]), rel=1e-12)
        assert value.memory.peak.total_gib * 2**30 == pytest.approx(float(memory.needed_bytes[position]), rel=1e-12)
        for name, column in seconds.items():
            assert getattr(value.time, name) == pytest.approx(float(column[position]), rel=1e-9, abs=1e-12), name
    listed = np.stack([getattr(space.layout, name).astype(np.int64) for name in COLUMNS], axis=1)
    assert len(np.unique(listed, axis=0)) == len(listed), "a plan is listed twice"


def test_techniques_follow_family_and_version() -> None:
    job = Job(sequence_length=256, precision="bf16", max_tokens_per_step=50_000)

    def degrees(model: Model, technique: str, **pins: object) -> set[int]:
        layout = enumerate_plans(model, NODES, job, pins, library="smp-v2").layout
        return set(getattr(layout, f"{technique}_degree").tolist())

    assert degrees(LLAMA, "tensor_parallel") == {1, 2, 4}
    assert degrees(LLAMA, "context_parallel") == {1, 2, 4, 8, 16}
    assert degrees(LLAMA, "context_parallel", version="2.4.0") == {1}
    assert degrees(LLAMA, "expert_parallel") == {1}
    assert degrees(MIXTRAL, "expert_parallel") == {1, 2, 4, 8}
    assert degrees(MIXTRAL, "context_parallel") == {1}
    assert degrees(GPT, "tensor_parallel") == {1}


NODE = Cluster("ml.p4d.24xlarge", 1)


def test_every_combination_that_the_library_accepts_is_there() -> None:
    """Build all combinations with `Plan` itself, which validates against the schema, and compare."""
    job = Job(sequence_length=256, global_batch_size=16)
    expected = set()
    choices = product((1, 2, 4, 8), (1, 2, 4, 8), (False, True), (1, 2, 4, 8), (1, 2), (False, "each"), (False, True))
    for tp, pp, state, shards, microbatches, checkpointing, offload in choices:
        if tp * pp > 8:
            continue
        batch = 16 * tp * pp // 8
        try:
            plan = Plan(
                tensor_parallel_degree=tp,
                pipeline_parallel_degree=pp,
                shard_optimizer_state=state,
                sharded_data_parallel_degree=shards,
                microbatches=microbatches,
                active_microbatches=microbatches if pp > 1 else None,
                prescaled_batch=tp > 1,
                activation_checkpointing=checkpointing,
                offload_activations=offload,
                batch_size=batch,
                skip_tracing=shards > 1,
                delayed_parameter_initialization=shards > 1,
                fp16=True,
            )
            check_against(plan, NODE, GPT, job)
        except PlanError:
            continue
        if state and pp == 8:
            continue  # one rank a stage: nothing to shard over
        expected.add(plan)
    space = enumerate_plans(GPT, NODE, job)
    found = {space.plan(row) for row in range(len(space))}
    assert expected
    assert expected - found == set()


def test_pins_hold_and_undistributed_families_have_no_tensor_parallelism() -> None:
    job = Job(sequence_length=256, precision="bf16", max_tokens_per_step=200_000)
    pins = {"hybrid_shard_degree": 4, "batch_size": 3, "offload_activations": True, "random_seed": 7}
    space = enumerate_plans(LLAMA, NODES, job, pins, library="smp-v2")
    for plan in some(space).values():
        assert {name: getattr(plan, name) for name in pins} == pins

    job = Job(sequence_length=512, max_tokens_per_step=50_000)
    own, other = (enumerate_plans(model, NODE, job) for model in (GPT, LLAMA))
    assert set(own.layout.tensor_parallel_degree.tolist()) == {1, 2, 4, 8}
    assert set(other.layout.tensor_parallel_degree.tolist()) == {1}
    assert not any(plan.prescaled_batch for plan in some(other).values())

    cluster = Cluster("ml.p4d.24xlarge", 64)
    with pytest.raises(PlanError, match="more than 1,500,000 plans: set a global batch"):
        enumerate_plans(Model.from_parameters(175e9, family="gpt2"), cluster, Job(max_tokens_per_step=10**15))


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_limit_below_one_sample_per_replica_is_named_with_what_the_user_can_change(nodes):
    with pytest.raises(NoPlanFitsError, match="max_tokens_per_step") as refusal:
        smp_advisor.advise("7B", "ml.p5.48xlarge", instance_count=nodes, max_tokens_per_step=1)
    assert ("fewer nodes" in str(refusal.value)) == (nodes > 1)
    assert not refusal.value.ways_out.ways


def test_the_largest_global_batch_is_compared_with_no_larger_one():
    advice = smp_advisor.advise("125m", "ml.p5.48xlarge", global_batch_size=10**9, library="ddp")
    assert advice.estimate.global_batch_size == 10**9


def test_the_largest_batch_divides_the_global_one_and_a_short_model_has_its_own_length():
    batches = {
        total: smp_advisor.advise("125M", "ml.p5.48xlarge", library="fsdp", global_batch_size=total)
        .largest()
        .batch_size
        for total in (40, 96)
    }
    assert batches == {40: 5, 96: 12}
    bert = smp_advisor.advise("bert-base-uncased", "ml.p4d.24xlarge", library="ddp").largest()
    assert bert.sequence_length == 512


def test_a_script_of_tensorflow_is_offered_no_plan_of_another_library():
    with pytest.raises(NoPlanFitsError) as refused:
        smp_advisor.advise("13B", "ml.p4d.24xlarge", instance_count=1, framework="tensorflow")
    assert "SMP v2" not in str(refused.value)
