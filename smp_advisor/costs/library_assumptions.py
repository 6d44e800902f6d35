"""What the figures of a library's plans rest on that no source states."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.library.plan import Plan

__all__ = ["library_assumptions"]


def library_assumptions(plan: Plan) -> Iterator[str]:
    """One sentence each, for libraries other than SMP v1."""
    if plan.library in {"smp-v2", "fsdp"}:
        yield "FSDP is taken to wrap each block and to hold two gathered at a time: the one that runs and the next."
        if plan.sharding_strategy in {"shard_grad_op", "_hybrid_shard_zero2"}:
            yield (
                f"{plan.sharding_strategy} keeps every gathered block until the backward pass; that it then need not"
                " gather again is not counted in the time."
            )
    if plan.library == "smp-v2":
        if plan.tensor_parallel_degree > 1:
            yield "Tensor parallelism is taken to divide norms and residuals too (sequence parallelism)."
        if plan.expert_parallel_degree > 1:
            yield "Tokens are taken to go to the experts evenly."
        if plan.offload_activations:
            yield "No more layers' inputs are on the GPU than activation_loading_horizon says."
    if plan.library == "training-compiler":
        yield (
            "A compiled step is taken to need the memory and the time that PyTorch needs: what compilation changes"
            " shows in a run only."
        )
    if plan.library == "smp-v1-tensorflow":
        yield "TensorFlow is taken to keep the activations that PyTorch keeps."
