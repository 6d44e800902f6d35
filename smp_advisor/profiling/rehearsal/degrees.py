"""The part of a plan that a few local processes can rehearse: its degrees, and the schedule of its pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from smp_advisor.costs.schedule import simulate

if TYPE_CHECKING:
    from smp_advisor.libraries.plan import Plan

__all__ = ["Degrees", "Sharding", "Slots", "degrees_of", "expected_slots", "in_flight"]

Sharding = Literal["none", "optimizer", "full"]
Slots = list[tuple[str, int]]
"""Passes of one pipeline stage in order: ``("forward", 0)``, ..."""

_MAX_PROCESSES = 8
_MAX_MICROBATCHES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Degrees:
    """Degrees and schedule of a rehearsal: the plan's degrees, at most two each, or four if only one is above 1."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    microbatches: int = 1
    schedule: Literal["interleaved", "simple"] = "interleaved"
    """Backward passes as soon as possible, or after all forward passes."""
    sharding: Sharding = "none"
    """State sharded across data-parallel ranks: none, the optimizer state, or also the parameters (FSDP)."""

    @property
    def world(self) -> int:
        """Number of processes."""
        return self.tensor * self.pipeline * self.data

    def __str__(self) -> str:
        return f"tensor {self.tensor} × pipeline {self.pipeline} × data {self.data}, {self.microbatches} microbatches"


def degrees_of(plan: Plan, data_parallel_degree: int) -> tuple[Degrees, list[str]]:
    """Degrees to rehearse a plan with, and one sentence per part of the plan that cannot be rehearsed.

    `data_parallel_degree` is the number of model replicas in the planned job.
    """
    tensor, pipeline = plan.tensor_parallel_degree, plan.pipeline_parallel_degree
    sharded = max(plan.sharded_data_parallel_degree, plan.hybrid_shard_degree)
    sharding: Sharding = "full" if plan.shards_parameters else "optimizer" if plan.shard_optimizer_state else "none"
    data = data_parallel_degree if sharding != "full" else max(sharded, min(data_parallel_degree, 2))
    is_only_degree = sum(degree > 1 for degree in (tensor, pipeline, data)) == 1
    max_pipeline = 4 if is_only_degree else 2
    microbatches = plan.microbatches * plan.gradient_accumulation_steps
    degrees = Degrees(
        tensor=min(tensor, 2),
        pipeline=min(pipeline, max_pipeline),
        data=min(data, 2),
        microbatches=max(min(microbatches, _MAX_MICROBATCHES), min(pipeline, max_pipeline) if pipeline > 1 else 1),
        schedule=plan.pipeline,
        sharding=sharding if data > 1 else "none",
    )
    assert degrees.world <= _MAX_PROCESSES  # noqa: S101 (two of each degree make eight)
    return degrees, _not_rehearsed(plan, degrees)


def _not_rehearsed(plan: Plan, degrees: Degrees) -> list[str]:
    """Parts of the plan that PyTorch on CPUs does not have, and parts of the job outside the step."""
    sentences = [
        "Times and bandwidths: CPUs and gloo do not represent GPUs and their network.",
        "More than one step: data loading, learning rates, gradient clipping and checkpoints are in the script.",
        "The optimizer: SGD with momentum updates the copy, since the first step of Adam magnifies rounding.",
        *_sizes(plan, degrees),
        *_divisions(plan, degrees),
    ]
    if plan.activation_checkpointing and str(plan.activation_checkpointing) != "each":
        sentences.append(
            f"activation_checkpointing={plan.activation_checkpointing!r}: each block was recomputed by itself."
        )
    if plan.offload_activations:
        sentences.append("Activation offloading: there is no GPU to offload from.")
    for title, degree in (("Context", plan.context_parallel_degree), ("Expert", plan.expert_parallel_degree)):
        if degree > 1:
            sentences.append(f"{title} parallelism: PyTorch has no implementation for arbitrary models on CPUs.")
    if plan.precision != "fp32":
        sentences.append(f"{plan.precision}: the rehearsal computes in fp32, so that rounding does not hide errors.")
    return sentences


def _sizes(plan: Plan, degrees: Degrees) -> list[str]:
    """Degrees and microbatches above those of local processes."""
    pairs = (
        ("tensor", plan.tensor_parallel_degree, degrees.tensor),
        ("pipeline", plan.pipeline_parallel_degree, degrees.pipeline),
    )
    smaller = [f"{name} {planned} as {used}" for name, planned, used in pairs if planned > used]
    sentences = [f"Degrees above those of local processes: {', '.join(smaller)}."] if smaller else []
    planned = plan.microbatches * plan.gradient_accumulation_steps
    if planned > degrees.microbatches:
        sentences.append(f"All {planned} microbatches: {degrees.microbatches} were run.")
    return sentences


def _divisions(plan: Plan, degrees: Degrees) -> list[str]:
    """Differences between the division of the model by PyTorch and by the library."""
    sentences = []
    if degrees.tensor > 1:
        sentences.append(
            "The library's fused layers under tensor parallelism: PyTorch divided the model's own layers instead."
        )
    if degrees.data > 1 and degrees.sharding != "full" and degrees.tensor * degrees.pipeline > 1:
        sentences.append(
            "DistributedDataParallel: it supports no divided model, so gradients were summed after the backward pass."
        )
    active = plan.active_in_flight
    if degrees.pipeline > 1 and degrees.schedule == "interleaved" and active < degrees.pipeline:
        sentences.append(
            f"active_microbatches={active}, below the pipeline degree: PyTorch's schedules have no such limit."
        )
    if degrees.pipeline > 1:
        sentences.append("The library's partition of the model: stages have equal numbers of blocks instead.")
    return sentences


def expected_slots(degrees: Degrees) -> list[Slots]:
    """Passes of each stage in the order of the cost model's schedule."""
    schedule = simulate(
        degrees.pipeline, degrees.microbatches, degrees.microbatches, simple=degrees.schedule == "simple"
    )
    return [
        [(slot.kind, slot.microbatch) for slot in schedule.slots if slot.stage == stage]
        for stage in range(degrees.pipeline)
    ]


def in_flight(slots: Slots) -> int:
    """Maximum number of microbatches between their forward and their backward pass."""
    current = peak = 0
    for kind, _ in slots:
        current += 1 if kind == "forward" else -1
        peak = max(peak, current)
    return peak
