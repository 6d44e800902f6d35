"""Loops, and the plans that they are adapted to."""

from __future__ import annotations

from pathlib import Path

from smp_advisor import Plan

LOOPS = sorted((Path(__file__).parent / "loops").glob("*.py"))

PLANS = {
    "pipeline": Plan(pipeline_parallel_degree=2, microbatches=2, batch_size=4),
    "tensor_fp16": Plan(
        pipeline_parallel_degree=2,
        tensor_parallel_degree=2,
        microbatches=2,
        prescaled_batch=True,
        shard_optimizer_state=True,
        fp16=True,
        batch_size=4,
        activation_checkpointing="each",
    ),
    "sharded": Plan(sharded_data_parallel_degree=2, bf16=True, activation_checkpointing="each"),
    "data": Plan(),
}
REFUSED = {("grad_scaler", "tensor_fp16"), ("grad_scaler", "sharded"), *(("ddp", name) for name in PLANS)}
"""Loops that scale their own loss under a plan where SMP v1 does, or that start a process group of their own."""
