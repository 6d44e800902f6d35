"""Rehearsal of a plan: a copy is trained in one process and in several, and both are compared.

Its microbatches have the plan's size where memory and FLOPs allow, and the user's values.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.inputs import example_inputs, filled, mapped, microbatches_of, samples_of, valid_ids
from smp_advisor.profiling.rehearsal.diagnosis import difference_of_ranks, shared_weights, usage
from smp_advisor.profiling.rehearsal.division import find_boundary
from smp_advisor.profiling.rehearsal.ranks import LEARNING_RATE, Prepared, RanksFailed, run_rank, run_ranks
from smp_advisor.profiling.rehearsal.result import Rehearsal, degrees_of
from smp_advisor.profiling.rehearsal.single_process import (
    batch_norms,
    by_name,
    check_division,
    named_batch,
    reference,
    repeatable,
    restored_buffers,
    seeded,
    shared_by_blocks,
    unnamed,
    used_by,
)
from smp_advisor.profiling.scaled.build import make_copy
from smp_advisor.profiling.step import measure_step
from smp_advisor.profiling.structure import parameter_total, stacks
from smp_advisor.sandbox import Limits, progress, run_isolated
from smp_advisor.sandbox.limits import default_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.profiling.inferred_inputs import ExampleInputs
    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.profiling.rehearsal.division import Boundary
    from smp_advisor.profiling.rehearsal.result import Degrees
    from smp_advisor.profiling.scaled.build import Copy
    from smp_advisor.workload.job import Job


_EXPLAINS_RANKS = frozenset({"NaN", "state between calls", "shared weights"})
"""Problems whose consequence is that ranks differ from one process."""


def run(
    profiled: ProfiledModel,
    job: Job,
    plan: Plan,
    *,
    data_parallel_degree: int | None = None,
    inputs: Any = None,
    memory_bytes: int | None = None,
    seconds: float = 1800.0,
    on_line: Callable[[str], None] | None = None,
    on_progress: Callable[[float, float, str], None] | None = None,
) -> Rehearsal:
    """Run a plan's parallelism on local processes and compare it with one process.

    A scaled copy is trained for one step over gloo, with PyTorch's tensor parallelism, pipeline schedules, and FSDP or
    sharded optimizer. Each degree of the plan is limited to two, or four if it is the only one.

    Sizes follow from counts of bytes and FLOPs, and ranks that wait for each other are recognized by their state, so
    no result depends on the speed of the machine; `seconds` is a last guard, whose error names it.
    """
    memory_bytes = default_memory_bytes() if memory_bytes is None else memory_bytes
    result = run_isolated(
        lambda: _rehearse(profiled, job, plan, data_parallel_degree, inputs, memory_bytes).as_dict(),
        what=f"the rehearsal of {profiled.name}",
        limits=Limits(memory_bytes=memory_bytes, seconds=seconds),
        on_line=on_line,
        on_progress=on_progress,
    )
    return Rehearsal.from_dict(result)


def _rehearse(
    profiled: ProfiledModel, job: Job, plan: Plan, data_parallel_degree: int | None, inputs: Any, memory_bytes: int
) -> Rehearsal:
    """Build the copy, train it in one process and in several, and compare; runs in the child process."""
    torch.manual_seed(0)
    progress(0, 4, "building the copy")
    with ExitStack() as stack:
        attention_dropouts: list[float] = []
        stack.enter_context(repeatable(attention_dropouts))
        setup = set_up(profiled, job, plan, data_parallel_degree, inputs, memory_bytes, stack)
        model, degrees, paths = setup.copy.model, setup.degrees, setup.paths
        progress(1, 4, "the entire batch")
        parts = [part for batch in setup.batches for part in microbatches_of(batch, degrees.microbatches)]
        problems, comparisons, entire = check_division(model, parts, paths)
        progress(2, 4, "one process")
        single = reference(model, setup.batches, degrees.microbatches, LEARNING_RATE)
        print(f"one process: loss {single.loss:.7g}", flush=True)  # noqa: T201 (the live log)
        probes = [used_by(model, batch) for batch in setup.probes]
        usage_problems, notes = usage(model, [*single.used, *probes], degrees, paths)
        problems = [*usage_problems, *problems]
        if degrees.pipeline > 1:
            problems += shared_weights(model, paths, degrees)
        progress(3, 4, f"{degrees.world} processes")
        trainable = {name for name, p in model.named_parameters() if p.requires_grad}
        prepared = Prepared(
            model=model, paths=paths, boundary=setup.boundary, degrees=degrees,
            batches=setup.batches, reference=single, checkpointing=bool(plan.activation_checkpointing),
            all_used=all(used == trainable for used in single.used),
        )  # fmt: skip
        ranks: list[dict[str, Any]] = []
        if not any(problem.kind == "hang" for problem in problems):
            try:
                ranks = run_ranks(degrees.world, lambda rank: run_rank(prepared, rank))
                print(f"{degrees.world} processes: loss {ranks[0]['loss']:.7g}", flush=True)  # noqa: T201
            except RanksFailed as failure:
                problems.insert(0, failure.problem)
        if ranks and not any(problem.kind in _EXPLAINS_RANKS for problem in problems):
            problems += difference_of_ranks(model, parts, ranks, single)
        not_rehearsed = [*setup.not_rehearsed, *comparisons]
        if attention_dropouts:
            rate = max(attention_dropouts)
            not_rehearsed.append(f"Dropout inside the attention kernel (rate {rate:g}), which was disabled.")
        nothing: dict[str, Any] = {"difference": None, "worst": ""}
        worst = max(ranks, key=lambda result: float(result["difference"]), default=nothing)
        by_stage = {result["stage"]: result for result in ranks}
        return Rehearsal(
            name=profiled.name,
            degrees=degrees,
            planned=f"tensor {plan.tensor_parallel_degree} × pipeline {plan.pipeline_parallel_degree} × data "
            f"{'unspecified' if data_parallel_degree is None else data_parallel_degree}, "
            f"{plan.microbatches * plan.gradient_accumulation_steps} microbatches",
            reductions=tuple(map(str, setup.copy.reductions)),
            divided=ranks[0]["divided"] if ranks else "",
            stage_blocks=tuple(by_stage[number]["blocks"] for number in sorted(by_stage)),
            loss=ranks[0]["loss"] if ranks else None,
            single_loss=single.loss,
            gradient_difference=worst["difference"],
            worst_parameter=worst["worst"],
            parameter_difference=max((result["parameter_difference"] for result in ranks), default=None),
            parameters_compared=len({name for result in ranks for name in result["compared"]}),
            parameter_elements=tuple(result["parameter_elements"] for result in ranks),
            optimizer_elements=tuple(result["optimizer_elements"] for result in ranks),
            not_rehearsed=tuple(not_rehearsed),
            samples=setup.samples,
            checkpointed=prepared.checkpointing and bool(paths),
            entire_loss=entire,
            problems=tuple(problems),
            notes=tuple(notes),
        )


_FLOPS = 2e11
"""FLOPs of all passes of a rehearsal."""
_PASSES = 12
"""Forward and backward runs of the entire batch: references, comparisons and ranks."""
_MAX_SAMPLES = 64
_MAX_TOKENS = 32
_PROBES = 8
_SMALL_PARAMETERS = 3_000_000
_SMALL_BLOCKS = 16
"""A module with at most this many parameters and blocks is rehearsed with all its blocks."""
_MEMORY_DIVISOR = 3
"""Share of the memory limit for the copy: ranks share its pages, except for state they divide or update."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The copy and its data, before any comparison."""

    copy: Copy
    degrees: Degrees
    paths: tuple[str, ...]
    boundary: Boundary | None
    samples: int
    batches: tuple[dict[str, Any], ...]
    """One batch per replica, with all its microbatches."""
    probes: tuple[dict[str, Any], ...]
    """Small batches of other data, which show whether the data decides which parameters are used."""
    not_rehearsed: tuple[str, ...]


def set_up(
    profiled: ProfiledModel,
    job: Job,
    plan: Plan,
    data_parallel_degree: int | None,
    inputs: Any,
    memory_bytes: int,
    stack: ExitStack,
) -> Setup:
    """Build the copy, and choose its batches."""
    degrees, not_rehearsed = degrees_of(plan, 2 if data_parallel_degree is None else data_parallel_degree)
    copy = _copy(profiled, stack, memory_bytes // _MEMORY_DIVISOR, degrees, not_rehearsed)
    model = copy.model.train()
    largest = max(stacks(model), key=lambda row: row.parameters, default=None)  # which a pipeline divides
    paths = largest.paths if largest else ()
    seeded(model, paths)
    example = example_inputs(model, inputs)
    planned_sequence = min(job.sequence_length, example.longest or job.sequence_length)
    sequence = min(planned_sequence, _MAX_TOKENS) if example.has_sequence else 1
    source = _BatchSource(
        example=example, supplied=inputs, sequence=sequence, tokens=valid_ids(model),
        is_reduced=any(part.name == "vocabulary" for part in copy.reductions),
    )  # fmt: skip
    planned = max(1, plan.batch_size // plan.microbatches)
    minimum = min(planned, 2) if batch_norms(model) else 1
    samples = _affordable_samples(model, source, degrees, planned, memory_bytes, minimum)
    batches = tuple(source.batch(degrees.microbatches * samples, seed) for seed in range(degrees.data))
    count = _PROBES if degrees.data > 1 else 0
    probes = tuple(source.batch(minimum, degrees.data * degrees.microbatches * samples + seed) for seed in range(count))
    is_shortened = example.has_sequence and not source.has_values
    if samples != planned:
        not_rehearsed.append(f"Microbatches of {planned} samples: each had {samples}.")
    if is_shortened and sequence != planned_sequence:
        not_rehearsed.append(f"Sequences of {planned_sequence:,} tokens: each had {sequence}.")
    if plan.activation_checkpointing and not paths:
        not_rehearsed.append("Activation checkpointing: the model has no repeated blocks.")
    boundary = None
    if degrees.pipeline > 1:
        first = microbatches_of(batches[0], degrees.microbatches)[0]
        try:
            boundary = find_boundary(model, paths, degrees.pipeline, lambda: by_name(model, first))
        except ProfileError as error:
            not_rehearsed.append(f"Pipeline parallelism: {str(error)[0].lower()}{str(error)[1:]}")
            degrees = replace(degrees, pipeline=1)
    return Setup(
        copy=copy, degrees=degrees, paths=paths, boundary=boundary, samples=samples, batches=batches, probes=probes,
        not_rehearsed=tuple(not_rehearsed),
    )  # fmt: skip


def _copy(
    profiled: ProfiledModel, stack: ExitStack, memory_bytes: int, degrees: Degrees, not_rehearsed: list[str]
) -> Copy:
    """The copy, with all blocks of a small module and with every block that shares a weight with another."""

    def copy(blocks: int) -> Copy:
        return make_copy(profiled, stack, memory_bytes=memory_bytes, dtype=torch.float32, blocks=blocks)

    fewest = max(2, degrees.pipeline)
    module = profiled.module
    repeated = [] if module is None else stacks(module)
    if module is None or not repeated:
        return copy(fewest)
    longest = max(len(row.names) for row in repeated)
    shared = shared_by_blocks(module, [path for row in repeated for path in row.paths])
    if shared or (parameter_total([module]) <= _SMALL_PARAMETERS and longest <= _SMALL_BLOCKS):
        try:
            return copy(longest)
        except ProfileError:
            name = next(iter(shared.values()), ("",))[0]
            if shared:
                not_rehearsed.append(f"Weights shared by blocks that are not in the copy, such as {name}.")
    return copy(fewest)


@dataclass(frozen=True, kw_only=True)
class _BatchSource:
    """Source of batches for any number of samples."""

    example: ExampleInputs
    supplied: Any
    """The user's inputs."""
    sequence: int
    tokens: int
    """Number of valid token ids of the copy."""
    is_reduced: bool
    """Whether the copy may have fewer token ids than the model."""

    @property
    def has_values(self) -> bool:
        """Whether the user supplied tensors with values, which keep their shape."""
        if self.supplied is None or callable(self.supplied):
            return False
        return not any(leaf.is_meta for leaf in tree_leaves(self.supplied) if isinstance(leaf, Tensor))

    def batch(self, samples: int, seed: int) -> dict[str, Any]:
        """A batch by name; the user's samples are repeated, and inferred ones are random."""
        if not self.has_values:
            return named_batch(filled(self.example.make(samples, self.sequence), self.tokens, seed=seed))
        own = (self.supplied,) if isinstance(self.supplied, Tensor) else self.supplied
        own = tree_map_only(
            Tensor, lambda leaf: leaf.detach().cpu(), dict(own) if isinstance(own, Mapping) else tuple(own)
        )
        indices = (torch.arange(samples) + seed * samples) % samples_of(own)
        batch = mapped(lambda rows: rows[indices], own)
        return named_batch(filled(batch, self.tokens) if self.is_reduced else batch)


def _affordable_samples(
    model: nn.Module, source: _BatchSource, degrees: Degrees, planned: int, memory_bytes: int, minimum: int
) -> int:
    """Samples per microbatch: as planned, or fewer if the steps are too large or have too many FLOPs."""
    if planned <= minimum:
        return max(planned, 1)
    with restored_buffers(model):
        step = measure_step(model, unnamed(source.batch(2, 0)), attention="eager")
    total = degrees.data * degrees.microbatches
    by_memory = memory_bytes / 2 / max(step.saved_bytes / 2 * total * degrees.tensor, 1)
    by_flops = _FLOPS / max((step.forward_flops + step.backward_flops) / 2 * total * _PASSES, 1)
    return max(minimum, min(planned, _MAX_SAMPLES, int(by_memory), int(by_flops)))
