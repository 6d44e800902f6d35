"""The certainty of the choice, and batches: policy by size and kind of training, and true sentences about them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import smp_advisor as smpa
from smp_advisor.costs.predictive import layout_draws
from smp_advisor.costs.uncertainty import DIVISIONS, comparison_spread, plan_divisions
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.layout import layout_of
from smp_advisor.search.candidates import allows_bf16, search_in_bf16_if_possible
from smp_advisor.search.decision import FAMILIES, _leading, decide
from smp_advisor.search.rank import NEAR_BEST, batch_policy, published_for
from smp_advisor.search.search import search
from smp_advisor.workload import Adapter, Job, Model


@pytest.fixture(scope="module")
def advice() -> smpa.Advice:
    return smpa.advise(
        "10B", "ml.p4d.24xlarge", instance_count=16, sequence_length=512, library="smp-v1", family="gpt2"
    )


@pytest.mark.slow
def test_probability_and_regret_are_shares_and_repeat_themselves(advice: smpa.Advice) -> None:
    decision = advice.decision
    assert 0 < decision.near_best_probability < 1
    assert 0 <= decision.expected_regret < 0.5
    assert decision.family in FAMILIES.values()
    assert decision.family not in decision.indistinct
    assert set(decision.indistinct) <= set(FAMILIES.values())
    repeated = smpa.advise(
        "10B", "ml.p4d.24xlarge", instance_count=16, sequence_length=512, library="smp-v1", family="gpt2"
    )
    assert decision == repeated.decision


def test_a_publication_is_named_where_families_are_as_fast(advice: smpa.Advice) -> None:
    assert advice.decision.indistinct
    assert advice.decision.family == "sharded data parallelism"
    assert advice.decision.published == published_for("smp-v1", advice.model.parameter_count)[1] != ""
    assert published_for("ddp", 10**10) == ("", "")


def test_measured_runs_narrow_the_draws_and_move_their_middle(advice: smpa.Advice) -> None:
    measured = advice.calibrate(step_seconds=1.2 * advice.estimate.step_seconds, plan=advice.plan)
    layout = advice.result.space.layout.take(np.arange(1))
    before, after = (
        np.log(layout_draws(advice.model, advice.cluster, job, [layout]))[:, 0] for job in (advice.job, measured.job)
    )
    assert after.std() < 0.9 * before.std()
    assert after.mean() > before.mean()


def test_a_search_with_one_plan_is_certain() -> None:
    pins = {"batch_size": 2, "gradient_accumulation_steps": 1, "activation_checkpointing": "each"}
    advice = smpa.advise("125M", "ml.p4d.24xlarge", library="ddp", **pins)
    assert advice.decision.near_best_probability == 1
    assert advice.decision.expected_regret == 0


def test_a_plan_in_bf16_is_compared_with_the_plans_that_require_fp16(advice: smpa.Advice) -> None:
    """SMP v1 trains in bf16 only with sharded data parallelism; its other plans compete in fp16."""
    terms = {"library": "smp-v1", "min_fit_probability": 0.95, "pins": None}
    found = (advice.model, advice.cluster, replace(advice.job, precision="fp16"), "throughput", terms)
    job, best, compared = search_in_bf16_if_possible(*found, user_settings=frozenset())
    assert (job.precision, best.best()) == ("bf16", advice.plan)
    assert compared[0].precision == "fp16"
    plans = [compared[1].space.plan(int(row)) for row in compared[1].ranked[_leading(compared[1])]]
    assert allows_bf16(plans[0], advice.cluster)
    divisions = plan_divisions(layout_of(plans, compared[0], advice.cluster))
    families = [FAMILIES[DIVISIONS[division]] for division in divisions]
    rivals = {family for family, plan in zip(families, plans, strict=True) if not allows_bf16(plan, advice.cluster)}
    assert {"tensor parallelism", "pipeline parallelism"} <= rivals
    assert set(advice.decision.indistinct) & rivals
    assert decide(advice.model, *compared, terms) == advice.decision


def test_measured_runs_refine_the_resolution_between_families(advice: smpa.Advice) -> None:
    measured = advice.calibrate(step_seconds=advice.estimate.step_seconds, plan=advice.plan)
    assert comparison_spread("hf-eager", "sharded, nodes", "tensor, nodes", (0.5, 0.5)) < comparison_spread(
        "hf-eager", "sharded, nodes", "tensor, nodes"
    )
    assert measured.decision.expected_regret <= advice.decision.expected_regret
    assert len(measured.decision.indistinct) <= len(advice.decision.indistinct)


def test_offloading_is_never_faster_than_the_same_plan_without_it() -> None:
    advice = smpa.advise("llama-3-70b", "ml.p5.48xlarge", instance_count=16, library="smp-v2")
    decision = advice.decision
    assert 0 <= decision.expected_regret < 0.12


def test_fine_tuning_and_adapters_count_samples_but_never_forbid_one_per_gpu() -> None:
    model = Model.from_parameters(7e9, family="gpt2")
    tuned = batch_policy(model, Job(sequence_length=1024, training="fine-tuning"))
    assert tuned.target_tokens == 128 * 1024
    assert tuned.cap_tokens == 2**22
    adapter = batch_policy(model, Job(sequence_length=1024, adapter=Adapter(rank=8)))
    assert adapter.target_tokens == 64 * 1024
    assert (tuned.kind, adapter.kind) == ("fine-tuning", "adapters")


def test_a_free_batch_is_a_power_of_two_per_replica_within_the_cap() -> None:
    advice = smpa.advise("1.3B", "ml.p4d.24xlarge", instance_count=3, library="smp-v1", family="gpt2")
    batch = advice.decision.batch
    assert advice.job.max_tokens_per_step == batch.cap_tokens == 2**22
    assert advice.plan.batch_size & (advice.plan.batch_size - 1) == 0
    assert batch.tokens_per_step == advice.estimate.tokens_per_step <= 2**22


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [125e6, 1.3e9, 6.7e9, 13e9])
@pytest.mark.parametrize("library", ["smp-v1", "fsdp", "ddp"])
def test_the_sentences_about_the_batch_are_true(parameters: float, library: str) -> None:
    instance = "ml.g5.48xlarge" if library == "ddp" else "ml.p4d.24xlarge"
    nodes = 4 if (parameters in {1.3e9, 13e9}) != (library == "fsdp") else 1  # each pair of values once or more
    try:
        settings = {"library": library, "sequence_length": 1024, "precision": "fp16"}
        advice = smpa.advise(parameters, instance, instance_count=nodes, **settings)
    except AdvisorError:
        return
    batch, now = advice.decision.batch, advice.estimate
    result = search(advice.model, advice.cluster, advice.job, library=library)
    gain = {
        tokens: result.scores.tokens_per_second[result.scores.tokens_per_step == tokens].max(initial=0.0)
        / now.tokens_per_second
        for tokens in set(result.scores.tokens_per_step.tolist())
    }
    if "larger ones are not noticeably faster" in advice.because:
        assert all(ratio < 1 + NEAR_BEST for tokens, ratio in gain.items() if tokens > now.tokens_per_step)
    if "because the limit is" in advice.because:
        assert 2 * now.tokens_per_step > advice.job.max_tokens_per_step
    if batch.twice is not None and 2 * now.tokens_per_step in gain:
        assert batch.twice <= gain[2 * now.tokens_per_step] * (1 + 1e-9)


def test_where_the_cap_binds_its_cost_is_that_of_half_the_possible_batch() -> None:
    limited = smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp", max_tokens_per_step=2**15)
    batch = limited.decision.batch
    assert batch.cap_binds
    assert batch.twice is not None
    assert batch.cap_cost == pytest.approx(max(batch.twice - 1, 0.0))
    assert "because the limit is 32.8 K tokens per step" in limited.because


def test_the_documentation_has_the_targets_of_the_data_file() -> None:
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "selection.md").read_text("utf-8")
    for parameters, row in ((1e9, "up to 1 B"), (4e9, "up to 4 B"), (25e9, "up to 25 B"), (100e9, "up to 100 B")):
        policy = batch_policy(Model.from_parameters(parameters * 0.9, family="gpt2"), Job())
        target, cap = (int(tokens).bit_length() - 1 for tokens in (policy.target_tokens, policy.cap_tokens))
        line = f"| {row} | 2^{target} tokens | 2^{cap} | {100 * policy.doubling_gain:.0f} % |"
        assert line in page


@pytest.mark.parametrize(
    ("model", "instance", "nodes"),
    [("10B", "ml.p4d.24xlarge", 16), ("llama-3-70b", "ml.p5.48xlarge", 16), ("llama-3-8b", "ml.g5.48xlarge", 2)],
)
def test_a_free_batch_is_from_the_floor_to_the_target_unless_its_steps_take_minutes(
    model: str, instance: str, nodes: int
) -> None:
    advice = smpa.advise(model, instance, instance_count=nodes, library="smp-v2")
    policy = advice.decision.batch.policy
    assert policy is not None
    tokens, seconds = advice.estimate.tokens_per_step, advice.estimate.step_seconds
    below = policy.floor_tokens // tokens
    assert tokens <= policy.target_tokens
    assert below <= 1 or 2 * seconds > policy.longest_step_seconds
    assert seconds <= policy.longest_step_seconds


def test_doublings_below_the_floor_count_until_steps_take_minutes() -> None:
    policy = batch_policy(smpa.Model.from_parameters(10e9, family="gpt2"), smpa.Job())
    tokens, fast, slow = np.array([policy.floor_tokens // 8]), np.array([1e6]), np.array([1000.0])
    assert policy.doublings_missing(tokens, fast, 2**40) == 3
    assert policy.doublings_missing(tokens, fast, policy.floor_tokens // 4) == 1
    assert policy.doublings_missing(tokens, slow, 2**40) == 0
    assert policy.doublings_missing(8 * tokens, fast, 2**40) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "instance", "nodes", "settings"),
    [
        ("gpt-j-6b", "ml.p4d.24xlarge", 1, {}),
        ("gpt-j-6b", "ml.p3.16xlarge", 4, {"library": "smp-v1"}),
        ("llama-3-8b", "ml.p4d.24xlarge", 1, {"training": "fine-tuning", "sequence_length": 4096}),
    ],
)
def test_many_microbatches_need_a_batch_of_the_user(model: str, instance: str, nodes: int, settings: dict) -> None:
    free = smpa.advise(model, instance, instance_count=nodes, **settings).plan
    stages = free.pipeline_parallel_degree
    assert free.gradient_accumulation_steps <= 32
    assert free.microbatches <= (8 * stages if stages > 1 else 32)


def test_context_parallelism_leaves_the_node_only_for_a_gain() -> None:
    advice = smpa.advise("llama-3-8b", "ml.p5.48xlarge", instance_count=4, sequence_length=131072, library="smp-v2")
    found = search(advice.model, advice.cluster, advice.job, library="smp-v2")
    speed, nodes = found.scores.tokens_per_second * found.scores.worth, found.scores.context_nodes
    assert nodes[0] == 1 or speed[0] >= 1.05 * speed[nodes == 1].max()


def test_headroom_keeps_nine_tenths_of_the_speed_and_names_its_price() -> None:
    settings = {"instance_count": 16, "sequence_length": 512, "library": "smp-v1", "objective": "headroom"}
    advice = smpa.advise("10B", "ml.p4d.24xlarge", **settings)
    speed = advice.result.scores.tokens_per_second
    assert speed[0] >= 0.9 * (1 - NEAR_BEST) * speed.max()
    assert "% of speed against the fastest" in advice.because


def test_without_a_published_batch_it_follows_the_memory_of_a_sample_and_the_gpus() -> None:
    base = replace(Model.from_shape(layers=12, hidden=768, heads=12, vocab=100), family="own")
    targets = {
        tokens: batch_policy(replace(base, fixed_sequence_length=tokens), Job(), gpus).target_tokens // tokens
        for tokens, gpus in ((16, 4), (512, 4), (4096, 4), (16384, 4), (65536, 64))
    }
    assert targets[16] == 256 > targets[512] > targets[4096] >= 16 == targets[16384]
    assert targets[65536] == 64
    calls = batch_policy(replace(base, sample_is_call=True, fixed_sequence_length=1), Job(), 48)
    assert (calls.floor_tokens, calls.target_tokens) == (48, 48)
    assert "pass a function of the batch" in calls.example
