"""Which part of a plan a few local processes can rehearse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from smp_advisor.libraries.plan import Plan

__all__ = ["Degrees", "Sharding", "degrees_of"]

Sharding = Literal["none", "optimizer", "full"]

_MOST_PROCESSES = 8
_MOST_MICROBATCHES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Degrees:
    """Degrees and schedule of a rehearsal: each of the plan's, at most two unless it is the only one."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    microbatches: int = 1
    schedule: Literal["interleaved", "simple"] = "interleaved"
    """Backward passes as soon as they are ready, or after all forward passes."""
    sharding: Sharding = "none"
    """What data-parallel ranks divide among them: nothing, the optimizer's state, or parameters too (FSDP)."""

    @property
    def world(self) -> int:
        """Processes."""
        return self.tensor * self.pipeline * self.data

    def __str__(self) -> str:
        return f"tensor {self.tensor} × pipeline {self.pipeline} × data {self.data}, {self.microbatches} microbatches"


def degrees_of(plan: Plan, data_parallel_degree: int) -> tuple[Degrees, list[str]]:
    """The rehearsal of a plan, and what of the plan it cannot show, each in a sentence.

    Parameters
    ----------
    plan
        A plan of SMP v1 or of another library, read by the names of its fields.
    data_parallel_degree
        Replicas of the model in the planned job.
    """
    tensor = _degree(plan, "tensor_parallel_degree")
    pipeline = _degree(plan, "pipeline_parallel_degree")
    sharded = _degree(plan, "sharded_data_parallel_degree", "hybrid_shard_degree")
    sharding: Sharding = "full" if sharded > 1 or plan.library in {"smp-v2", "fsdp"} else "none"
    if sharding == "none" and getattr(plan, "shard_optimizer_state", False):
        sharding = "optimizer"
    data = data_parallel_degree if sharding != "full" else max(sharded, min(data_parallel_degree, 2))
    alone = sum(one > 1 for one in (tensor, pipeline, data)) == 1
    most = 4 if alone else 2
    microbatches = plan.microbatches * plan.gradient_accumulation_steps
    used = Degrees(
        tensor=min(tensor, 2),
        pipeline=min(pipeline, most),
        data=min(data, 2),
        microbatches=max(min(microbatches, _MOST_MICROBATCHES), min(pipeline, most) if pipeline > 1 else 1),
        schedule="simple" if getattr(plan, "pipeline", "interleaved") == "simple" else "interleaved",
        sharding=sharding if data > 1 else "none",
    )
    assert used.world <= _MOST_PROCESSES  # noqa: S101 (two of each are eight)
    return used, _left_out(plan, used)


def _degree(plan: Plan, *names: str) -> int:
    return max((value for name in names if isinstance(value := getattr(plan, name, None), int)), default=1)


def _left_out(plan: Plan, used: Degrees) -> list[str]:
    """What of the plan PyTorch on processors has no like of."""
    sentences = ["Times and bandwidths: processors and gloo say nothing of GPUs and their network."]
    if used.tensor > 1 and plan.library == "smp-v1":
        sentences.append(
            "The library's own fused layers under tensor parallelism: the model's own layers were divided by PyTorch."
        )
    active = getattr(plan, "active_in_flight", None)
    if used.pipeline > 1 and used.schedule == "interleaved" and active is not None and active < used.pipeline:
        sentences.append(
            f"active_microbatches={active}, fewer than the pipeline is deep: PyTorch's schedules have no such bound."
        )
    if used.pipeline > 1 and plan.library == "smp-v1":
        sentences.append("The library's own partition of the model: stages were cut at equal numbers of blocks.")
    if getattr(plan, "offload_activations", False) or getattr(plan, "sm_activation_offloading", False):
        sentences.append("Offloading of activations: there is no GPU to offload from.")
    for name, words in (("context_parallel_degree", "Context"), ("expert_parallel_degree", "Expert")):
        if _degree(plan, name) > 1:
            sentences.append(f"{words} parallelism: PyTorch has none that goes with any model on processors.")
    if plan.precision != "fp32":
        sentences.append(f"{plan.precision}: the rehearsal computes in fp32, so that rounding hides no fault.")
    return sentences
