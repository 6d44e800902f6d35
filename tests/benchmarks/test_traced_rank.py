"""A traced rank: its peak memory is that of PyTorch's own tracker."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

import smp_advisor as smpa
from tests.deferred import Deferred, deferred

gpu_kernels = Deferred("smp_advisor.profiling.gpu_kernels", "gpu_kernels")
read_model = Deferred("smp_advisor.profiling.profiled_model", "read_model")
call_model, loss_of = deferred("smp_advisor.profiling.step", "call_model", "loss_of")
LiveMemory, RankOptimizer = deferred("benchmarks.rank_steps.live_memory", "LiveMemory", "RankOptimizer")
RankStep, fake_process_group = deferred("benchmarks.rank_steps.step", "RankStep", "fake_process_group")
rank_of = Deferred("benchmarks.rank_steps.rank", "rank_of")

pytestmark = pytest.mark.torch

CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 4096, "max_position_embeddings": 1024,
}  # fmt: skip
CLUSTER = smpa.Cluster("ml.p4d.24xlarge", 2)


def peak_by_torch(step: Any) -> int:
    """Peak bytes of the same step by PyTorch's own tracker."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    with ExitStack() as stack:
        stack.enter_context(gpu_kernels("fused", lambda *_: None))
        part, _ = step.divided(stack)
        stack.enter_context(step.mode)
        optimizer = RankOptimizer.of(step.rank, list(part.module.parameters()), LiveMemory())
        tracker = FSDPMemTracker(part.module, optimizer.optimizer)
        tracker.track_inputs(tuple(step.inputs.values()))
        tracker.track_external(*(value for state in optimizer.optimizer.state.values() for value in state.values()))
        with tracker:
            loss = loss_of(call_model(part.module, step.inputs))
            loss.backward()
            del loss
            optimizer.step()
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    return int(peak["Total"])


def test_a_sharded_step_has_the_peak_of_pytorchs_own_tracker() -> None:
    model = smpa.Model.from_config(CONFIG)
    plan = smpa.Plan(library="fsdp", batch_size=2, sharding_strategy="hybrid_shard", activation_checkpointing="each")
    job = smpa.Job(precision="bf16", attention="fused", sequence_length=512)
    rank, _ = rank_of(model, CLUSTER, job, plan, 0)
    with fake_process_group(rank.world, 0):
        peak = RankStep.of(read_model(model), rank).run()
        assert peak.total == peak_by_torch(RankStep.of(read_model(model), rank))
    assert peak.by_category["optimizer_state"] == pytest.approx(model.parameter_count, rel=0.01)
