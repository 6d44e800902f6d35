"""The part of a plan that a few local processes can rehearse, and the results."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from smp_advisor.profiling.result_html import NotebookResult

if TYPE_CHECKING:
    from smp_advisor.libraries.plan import Plan


Sharding = Literal["none", "optimizer", "full"]

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
    """Degrees to rehearse a plan with, and one sentence per part of the plan that cannot be rehearsed."""
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


TOLERANCE = 1e-4
"""Maximum relative difference of loss and gradients in fp32, which allows for a different summation order."""

_SHARDING = {"none": "full replicas", "optimizer": "optimizer state sharded", "full": "parameters sharded (FSDP)"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A property of the model, its loss or its data that breaks the planned job."""

    kind: str
    """Cause in two or three words: ``sum loss``."""
    text: str
    parameter: str = ""
    """Name of the parameter with the largest difference; empty if the problem is in no single parameter."""
    rank: int | None = None
    """First rank with the problem; None if one process has it already."""
    line: str = ""
    """The user's file and line; empty if unknown."""

    def __str__(self) -> str:
        details = [
            f"parameter {self.parameter}" if self.parameter else "",
            "" if self.rank is None or self.text.startswith(f"Rank {self.rank} ") else f"first at rank {self.rank}",
            self.line,
        ]
        details = [detail for detail in details if detail]
        return f"{self.text} ({'; '.join(details)})" if details else self.text


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsal(NotebookResult):
    """The plan's parallelism on local processes, compared with one process that trains the same batch."""

    name: str
    degrees: Degrees
    planned: str
    """The plan's degrees, as text for the user."""
    reductions: tuple[str, ...]
    """Reduced dimensions of the copy."""
    divided: str
    """Products divided by tensor parallelism, as text; empty without it."""
    stage_blocks: tuple[int, ...]
    """Number of blocks of each pipeline stage."""
    loss: float | None
    """None if the ranks did not complete the step; `problems` has the cause."""
    single_loss: float
    gradient_difference: float | None
    """Largest relative difference: norm of the difference over norm of the gradient, per parameter."""
    worst_parameter: str
    parameter_difference: float | None
    """Largest relative difference of the parameters after one optimizer step."""
    parameters_compared: int
    parameter_elements: tuple[int, ...]
    """Parameter elements per rank, after sharding and tensor parallelism."""
    optimizer_elements: tuple[int, ...]
    """Elements of optimizer state per rank."""
    not_rehearsed: tuple[str, ...]
    """Parts of the plan that were not rehearsed, one sentence each."""
    samples: int = 1
    """Samples per microbatch."""
    checkpointed: bool = False
    """Whether blocks were recomputed in the backward pass."""
    entire_loss: float | None = None
    """Loss of all samples in one pass of one process; None if it is not comparable."""
    problems: tuple[Problem, ...] = ()
    """Properties of the model, its loss or its data that break the planned job."""
    notes: tuple[str, ...] = ()
    """Requirements of the model that break nothing, one sentence each."""

    @property
    def completed(self) -> bool:
        """Whether every rank completed the step."""
        return self.loss is not None

    @property
    def same_loss(self) -> bool:
        """Whether both runs have the same loss."""
        if self.loss is None:
            return False
        return abs(self.loss - self.single_loss) <= TOLERANCE * max(1.0, abs(self.single_loss))

    @property
    def same_gradients(self) -> bool:
        """Whether every parameter has the same gradient and the same update."""
        return _is_small(self.gradient_difference) and _is_small(self.parameter_difference)

    @property
    def ok(self) -> bool:
        """Whether loss and gradients agree, and nothing that breaks the job was found."""
        return self.same_loss and self.same_gradients and not self.problems

    @property
    def summary(self) -> str:
        """The rehearsal in one line."""
        problems = " ".join(map(str, self.problems))
        if self.loss is None:
            return f"{self.degrees.world} processes ({self.degrees}) did not complete a step. {problems}"
        checks = (
            ("loss", self.same_loss),
            ("gradients", _is_small(self.gradient_difference)),
            ("parameters after a step", _is_small(self.parameter_difference)),
        )
        different = ", ".join(label for label, same in checks if not same)
        outcome = f"do not agree with one process ({different})" if different else "agree with one process"
        if math.isnan(self.loss) and math.isnan(self.single_loss):
            outcome = "have NaN, as one process has"
        losses = f"loss {self.loss:.6g} and {self.single_loss:.6g}"
        return f"{self.degrees.world} processes ({self.degrees}) {outcome}: {losses}. {problems}".rstrip()

    @property
    def findings(self) -> tuple[tuple[str, str], ...]:
        """Label and text of each check."""
        samples = f"{self.samples} sample{'s' if self.samples > 1 else ''} each"
        rows = [
            *(("Problem", str(problem)) for problem in self.problems),
            ("Planned", self.planned),
            ("Rehearsed", f"{self.degrees} of {samples}{', blocks recomputed' if self.checkpointed else ''}"),
            *self._compared,
        ]
        if self.entire_loss is not None:
            rows.append(("Entire batch", f"loss {self.entire_loss:.7g} in one pass of one process"))
        if self.divided:
            rows.append(("Tensor parallelism", f"divided {self.divided}"))
        if self.degrees.pipeline > 1 and self.completed:
            rows.append(("Pipeline", f"stages of {', '.join(map(str, self.stage_blocks))} blocks"))
        if self.degrees.data > 1 and self.completed:
            elements = (
                f"{_range(self.parameter_elements)} parameters, {_range(self.optimizer_elements)} of optimizer state"
            )
            rows.append(("Data parallelism", f"{_SHARDING[self.degrees.sharding]}; {elements} per rank"))
        rows.append(("Reduced", ", ".join(self.reductions) or "nothing"))
        rows += [("Note", sentence) for sentence in self.notes]
        return (*rows, *(("Not rehearsed", sentence) for sentence in self.not_rehearsed))

    @property
    def _compared(self) -> list[tuple[str, str]]:
        """Loss and gradients next to those of one process."""
        if self.loss is None or self.gradient_difference is None or self.parameter_difference is None:
            return [("Loss", f"{self.single_loss:.7g} in one process; the ranks did not complete the step")]
        gradients = (
            f"{self.parameters_compared} parameters, largest relative difference {self.gradient_difference:.1e} "
            f"({self.worst_parameter}); {self.parameter_difference:.1e} after an optimizer step"
        )
        return [("Loss", f"{self.loss:.7g} ({self.single_loss:.7g} in one process)"), ("Gradients", gradients)]

    _repr_pretty_ = NotebookResult._repr_pretty_


def _is_small(difference: float | None) -> bool:
    return difference is not None and difference <= TOLERANCE


def _range(numbers: tuple[int, ...]) -> str:
    distinct = sorted(set(numbers))
    return f"{distinct[0]:,}" if len(distinct) == 1 else f"{distinct[0]:,} to {distinct[-1]:,}"
