"""Plans that the loops are adapted to, and each loop adapted once for all tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from smp_advisor import Plan
from smp_advisor.scripts.adapt import propose

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
REFUSED = {("grad_scaler", "tensor_fp16"), ("grad_scaler", "sharded")}
"""A loop that scales its own loss, and the plans under which the library does."""


@cache
def adapt(loop: Path, name: str, library: str | None = None):
    """Adapt a loop to the plan of this name."""
    return propose(loop, PLANS[name], library=library)
