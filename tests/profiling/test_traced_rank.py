"""A traced rank: memory as PyTorch's own tracker counts it, next to the formulas."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import smp_advisor as smpa
from smp_advisor.errors import ProfileError
from tests.deferred import Deferred, deferred

if TYPE_CHECKING:
    from smp_advisor.profiling.traced_rank.live_memory import Peak
    from smp_advisor.profiling.traced_rank.rank import Rank

gpu_kernels = Deferred("smp_advisor.profiling.gpu_kernels", "gpu_kernels")
read_model = Deferred("smp_advisor.profiling.profiled_model", "read_model")
call_model, loss_of = deferred("smp_advisor.profiling.step", "call_model", "loss_of")
trace_rank = Deferred("smp_advisor.profiling.traced_rank", "trace_rank")
LiveMemory = Deferred("smp_advisor.profiling.traced_rank.live_memory", "LiveMemory")
RankOptimizer = Deferred("smp_advisor.profiling.traced_rank.live_memory", "RankOptimizer")
passes = Deferred("smp_advisor.profiling.traced_rank.step", "passes")
fake_process_group = Deferred("smp_advisor.profiling.traced_rank.step", "fake_process_group")
rank_of = Deferred("smp_advisor.profiling.traced_rank.rank", "rank_of")
RankStep = Deferred("smp_advisor.profiling.traced_rank.step", "RankStep")
PlainGPT = Deferred("tests.profiling.plain_models", "PlainGPT")

pytestmark = pytest.mark.torch

CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 4096, "max_position_embeddings": 1024,
}  # fmt: skip
CLUSTER = smpa.Cluster("ml.p4d.24xlarge", 2)
JOB = smpa.Job(precision="bf16", attention="fused", sequence_length=512)


@pytest.fixture(scope="module")
def model() -> smpa.Model:
    return smpa.Model.from_config(CONFIG)


def step_of(model: smpa.Model, rank: Rank) -> Any:
    return RankStep.of(read_model(model), rank)


def peak_by_torch(step: Any) -> int:
    """Peak bytes of the same step by PyTorch's own tracker."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    with ExitStack() as stack:
        stack.enter_context(gpu_kernels("fused", lambda *_: None))
        part, _ = step.divided(stack)
        parameters = list(part.module.parameters())
        stack.enter_context(step.mode)
        optimizer = RankOptimizer.of(step.rank, parameters, LiveMemory())
        tracker = FSDPMemTracker(part.module, optimizer.optimizer)
        tracker.track_inputs(tuple(step.inputs.values()))
        moments = [value for state in optimizer.optimizer.state.values() for value in state.values()]
        tracker.track_external(*moments)
        with tracker:
            loss = loss_of(call_model(part.module, step.inputs))
            loss.backward()
            del loss
            optimizer.step()
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    return int(peak["Total"])


def test_a_sharded_step_has_the_peak_of_pytorchs_own_tracker(model: smpa.Model) -> None:
    plan = smpa.Plan(library="fsdp", batch_size=2, sharding_strategy="hybrid_shard", activation_checkpointing="each")
    rank, _ = rank_of(model, CLUSTER, JOB, plan, 0)
    with fake_process_group(rank.world, 0):
        peak = step_of(model, rank).run()
        assert peak.total == peak_by_torch(step_of(model, rank))
    assert peak.by_category["optimizer_state"] == pytest.approx(model.parameter_count, rel=0.01)


def traced(model: smpa.Model, plan: smpa.Plan, stage: int = 0, **settings: Any) -> Peak:
    """Peak of a rank, traced in this process."""
    job = smpa.Job(**({"precision": "bf16", "attention": "fused", "sequence_length": 512} | settings))
    rank, _ = rank_of(model, CLUSTER, job, plan, stage)
    with fake_process_group(rank.world, rank.process):
        return step_of(model, rank).run()


def saved_by_formula(model: smpa.Model, plan: smpa.Plan) -> float:
    return 2**30 * smpa.estimate(model, CLUSTER, JOB, plan).memory.stages[0].activations_gib


def test_tensor_parallelism_divides_what_the_formula_divides(model: smpa.Model) -> None:
    plan = smpa.Plan(library="smp-v2", batch_size=4, tensor_parallel_degree=4, hybrid_shard_degree=4)
    peak = traced(model, plan)
    assert peak.by_category["activations"] == pytest.approx(saved_by_formula(model, plan), rel=0.05)
    assert peak.by_category["parameters"] == pytest.approx(4 * model.parameter_count / 16, rel=0.05)


@pytest.mark.parametrize("version", ["2.4.0", "2.8.0"])
def test_parameters_stay_gathered_until_the_backward_pass_on_request(model: smpa.Model, version: str) -> None:
    plan = smpa.Plan(library="fsdp", version=version, sharding_strategy="shard_grad_op", batch_size=4)
    peak = traced(model, plan)
    assert peak.by_category["parameters"] == pytest.approx(4 * model.parameter_count / 16, rel=0.01)
    assert peak.by_category["communication"] >= 2 * model.parameter_count, peak
    formula = 2**30 * smpa.estimate(model, CLUSTER, JOB, plan).memory.stages[0].communication_gib
    assert formula == pytest.approx(peak.by_category["communication"], rel=0.02)


def test_pipeline_stages_have_their_own_parameters_and_microbatches(model: smpa.Model) -> None:
    plan = smpa.Plan(
        pipeline_parallel_degree=2, microbatches=8, batch_size=16, fp16=True, shard_optimizer_state=True,
        activation_checkpointing="each",
    )  # fmt: skip
    peaks = [traced(model, plan, stage, precision="fp16") for stage in (0, 1)]
    assert sum(peak.by_category["parameters"] for peak in peaks) == pytest.approx(2 * model.parameter_count, rel=0.01)
    assert peaks[0].by_category["optimizer_state"] == pytest.approx(8 / 8 * model.parameter_count / 2, rel=0.01)
    assert peaks[0].by_category["fp32_copies"] == pytest.approx(8 / 8 * model.parameter_count / 2, rel=0.01)
    assert peaks[0].by_category["activations"] > 3 * 2 * 2 * 512 * 256 * 2
    assert "logits" not in peaks[0].by_category


def test_passes_of_a_stage_alternate_once_enough_are_in_flight(model: smpa.Model) -> None:
    plan = smpa.Plan(pipeline_parallel_degree=2, microbatches=8, active_microbatches=2, batch_size=8, fp16=True)
    rank, _ = rank_of(model, CLUSTER, smpa.Job(), plan, 0)
    assert "".join(f"{kind[0]}{index} " for kind, index in passes(rank)) == "f0 f1 b0 f2 b1 b2 "


def test_accumulated_gradients_stay_unsharded_on_request(model: smpa.Model) -> None:
    plan = smpa.Plan(library="fsdp", gradient_accumulation_steps=8)
    peaks = [traced(model, plan, sequence_length=128, unsharded_accumulation=unsharded) for unsharded in (False, True)]
    assert peaks[0].by_category["gradients"] == pytest.approx(4 * model.parameter_count / 16, rel=0.01)
    assert peaks[1].total - peaks[0].total > model.parameter_count


def test_advice_traces_its_plan_and_shows_the_result() -> None:
    advice = smpa.advise(CONFIG, "ml.g5.12xlarge", library="fsdp", sequence_length=256, batch_size=2)
    assert advice.traced() is None
    result = advice.traced_rank()
    assert advice.traced() is result
    by_name = {category.name: category for category in result.categories}
    for name in ("parameters", "optimizer_state"):
        assert by_name[name].traced_gib == pytest.approx(by_name[name].formula_gib, rel=0.01)
    assert abs(result.difference) < 0.25
    assert result.summary in advice.report()
    assert "fully_shard (FSDP2) of 2 layers over 4 GPUs" in advice.report(details=True)
    assert "<table>" in result.as_html()


def test_replicas_of_a_users_module_keep_their_gradients(model: smpa.Model) -> None:
    module, model = PlainGPT(), replace(model, config_json="{}")
    cluster, plan = smpa.Cluster("ml.g5.12xlarge", 1), smpa.Plan(library="ddp", precision="fp32")
    result = trace_rank(model, cluster, smpa.Job(sequence_length=32, precision="fp32"), plan, module=module)
    sizes = {category.name: round(category.traced_gib * 2**30) for category in result.categories}
    state = 4 * sum(parameter.numel() for parameter in module.parameters())
    assert sizes["gradients"] == state
    assert sizes["optimizer_state"] == pytest.approx(2 * state, rel=0.01)
    with pytest.raises(ProfileError, match="pass the module itself"):
        trace_rank(model, cluster, smpa.Job(sequence_length=32, precision="fp32"), plan)


def test_plans_that_pytorch_cannot_express_are_refused_in_one_sentence(model: smpa.Model) -> None:
    plan = smpa.Plan(library="smp-v2", context_parallel_degree=2)
    with pytest.raises(ProfileError, match="A rank with context parallelism cannot be traced"):
        trace_rank(model, CLUSTER, JOB, plan)
