"""Run of a rehearsal in a child process."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.rehearsal.degrees import degrees_of
from smp_advisor.profiling.rehearsal.result import Rehearsal, StageSlots
from smp_advisor.profiling.rehearsal.schedule import expected_slots, in_flight
from smp_advisor.profiling.sandbox import Limits, progress, run_isolated
from smp_advisor.profiling.sandbox.limits import default_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.profiling.rehearsal.degrees import Degrees
    from smp_advisor.profiling.rehearsal.stage import Boundary
    from smp_advisor.profiling.scaled.build import Copy
    from smp_advisor.workload.job import Job

__all__ = ["run"]

_MAX_TOKENS = 32
_PROBES = 8
_PROBE_SECONDS = 5.0
"""Time after which no further probe of other data is run."""
_SMALL_PARAMETERS = 3_000_000
_SMALL_BLOCKS = 16
"""A module with at most this many parameters and blocks is rehearsed with all its blocks."""
_EXPLAINS_RANKS = frozenset({"NaN", "state between calls", "shared weights"})
"""Problems whose consequence is that ranks differ from one process."""
_MEMORY_DIVISOR = 3
"""Share of the memory limit for the copy: ranks share its pages, except for state they divide or update."""


def run(
    profiled: ProfiledModel,
    job: Job,
    plan: Plan,
    *,
    data_parallel_degree: int | None = None,
    inputs: Any = None,
    memory_bytes: int | None = None,
    seconds: float = 180.0,
    on_line: Callable[[str], None] | None = None,
    on_progress: Callable[[float, float, str], None] | None = None,
) -> Rehearsal:
    """Run a plan's parallelism on local processes and compare it with one process.

    A scaled copy is trained for one step over gloo, with PyTorch's tensor parallelism, pipeline schedules, and FSDP or
    sharded optimizer. Each degree of the plan is limited to two, or four if it is the only one.

    The parameters are those of `smp_advisor.profile`. A live module is neither modified nor copied in this process.

    Raises
    ------
    ProfileError
        The copy cannot be built, or does not train in one process. A rank that fails is a problem of the result.
    """
    if memory_bytes is None:
        memory_bytes = default_memory_bytes()
    result = run_isolated(
        lambda: _rehearse(profiled, job, plan, data_parallel_degree, inputs, memory_bytes).as_dict(),
        what=f"the rehearsal of {profiled.name}",
        limits=Limits(memory_bytes=memory_bytes, seconds=seconds),
        on_line=on_line,
        on_progress=on_progress,
    )
    return Rehearsal.from_dict(result)


def _planned(plan: Plan, data_parallel_degree: int | None) -> str:
    tensor, pipeline = plan.tensor_parallel_degree, plan.pipeline_parallel_degree
    microbatches = plan.microbatches * plan.gradient_accumulation_steps
    data = "unspecified" if data_parallel_degree is None else data_parallel_degree
    return f"tensor {tensor} × pipeline {pipeline} × data {data}, {microbatches} microbatches"


def _rehearse(
    profiled: ProfiledModel, job: Job, plan: Plan, data_parallel_degree: int | None, inputs: Any, memory_bytes: int
) -> Rehearsal:
    """Build the copy, train it in one process and in several, and compare; runs in the child process."""
    import torch

    from smp_advisor.profiling.rehearsal.diagnosis import difference_of_ranks, shared_weights, usage
    from smp_advisor.profiling.rehearsal.rank_step import LEARNING_RATE, Prepared, run_rank
    from smp_advisor.profiling.rehearsal.ranks import RanksFailed, run_ranks
    from smp_advisor.profiling.rehearsal.repeatable import repeatable
    from smp_advisor.profiling.rehearsal.single_process import check_division, microbatches_of, reference, used_by

    begun = time.perf_counter()
    torch.manual_seed(0)
    progress(0, 4, "building the copy")
    with ExitStack() as stack:
        attention_dropouts: list[float] = []
        stack.enter_context(repeatable(attention_dropouts))
        setup = _set_up(profiled, job, plan, data_parallel_degree, inputs, memory_bytes, stack)
        model, degrees, paths = setup.copy.model, setup.degrees, setup.paths
        progress(1, 4, "the entire batch")
        parts = [part for batch in setup.batches for part in microbatches_of(batch, degrees.microbatches)]
        problems, comparisons, entire = check_division(model, parts, paths)
        progress(2, 4, "one process")
        single = reference(model, setup.batches, degrees.microbatches, LEARNING_RATE)
        print(f"one process: loss {single.loss:.7g}", flush=True)  # noqa: T201 (the live log)
        probes = []
        deadline = time.perf_counter() + _PROBE_SECONDS
        for batch in setup.probes:
            probes.append(used_by(model, batch))
            if time.perf_counter() > deadline:
                break
        usage_problems, notes = usage(model, [*single.used, *probes], degrees, paths)
        problems = [*usage_problems, *problems]
        if degrees.pipeline > 1:
            problems += shared_weights(model, paths, degrees)
        progress(3, 4, f"{degrees.world} processes")
        trainable = {name for name, p in model.named_parameters() if p.requires_grad}
        prepared = Prepared(
            model=model, config=setup.copy.profiled.config, paths=paths, boundary=setup.boundary, degrees=degrees,
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
            planned=_planned(plan, data_parallel_degree),
            reductions=tuple(map(str, setup.copy.reductions)),
            divided=ranks[0]["divided"] if ranks else "",
            stages=_stages(degrees, by_stage) if ranks else (),
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
            seconds=time.perf_counter() - begun,
            samples=setup.samples,
            checkpointed=prepared.checkpointing and bool(paths),
            entire_loss=entire,
            problems=tuple(problems),
            notes=tuple(notes),
        )


@dataclass(frozen=True, kw_only=True)
class _Setup:
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


def _set_up(
    profiled: ProfiledModel,
    job: Job,
    plan: Plan,
    data_parallel_degree: int | None,
    inputs: Any,
    memory_bytes: int,
    stack: ExitStack,
) -> _Setup:
    from smp_advisor.errors import ProfileError
    from smp_advisor.profiling.inputs import example_inputs
    from smp_advisor.profiling.rehearsal.batches import BatchSource, affordable_samples
    from smp_advisor.profiling.rehearsal.repeatable import batch_norms, seeded
    from smp_advisor.profiling.rehearsal.single_process import by_name, microbatches_of
    from smp_advisor.profiling.rehearsal.stage import find_boundary
    from smp_advisor.profiling.scaled.build import token_count

    degrees, not_rehearsed = degrees_of(plan, 2 if data_parallel_degree is None else data_parallel_degree)
    copy = _copy(profiled, stack, memory_bytes // _MEMORY_DIVISOR, degrees, not_rehearsed)
    model = copy.model.train()
    paths = _largest_stack(copy)
    seeded(model, paths)
    example = example_inputs(model, inputs, config=copy.profiled.config)
    planned_sequence = min(job.sequence_length, example.longest or job.sequence_length)
    sequence = min(planned_sequence, _MAX_TOKENS) if example.has_sequence else 1
    source = BatchSource(
        example=example, supplied=inputs, sequence=sequence, tokens=token_count(copy),
        is_reduced=profiled.model_class is not None,
    )  # fmt: skip
    planned = max(1, plan.batch_size // plan.microbatches)
    minimum = min(planned, 2) if batch_norms(model) else 1
    samples = affordable_samples(model, source, degrees, planned, memory_bytes, minimum)
    batches = tuple(source.batch(degrees.microbatches * samples, seed) for seed in range(degrees.data))
    count = _PROBES if degrees.data > 1 else 0
    probes = tuple(source.batch(minimum, degrees.data * degrees.microbatches * samples + seed) for seed in range(count))
    is_shortened = example.has_sequence and not source.has_values
    not_rehearsed += _reduced_sizes(planned, samples, planned_sequence, sequence if is_shortened else 0)
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
    return _Setup(
        copy=copy, degrees=degrees, paths=paths, boundary=boundary, samples=samples, batches=batches, probes=probes,
        not_rehearsed=tuple(not_rehearsed),
    )  # fmt: skip


def _copy(
    profiled: ProfiledModel, stack: ExitStack, memory_bytes: int, degrees: Degrees, not_rehearsed: list[str]
) -> Copy:
    """The copy, with all blocks of a small module and with every block that shares a weight with another."""
    import torch

    from smp_advisor.errors import ProfileError
    from smp_advisor.profiling.rehearsal.single_process import shared_by_blocks
    from smp_advisor.profiling.scaled.build import make_copy
    from smp_advisor.profiling.structure import parameter_total, stacks

    def copy(blocks: int) -> Copy:
        return make_copy(profiled, stack, memory_bytes=memory_bytes, dtype=torch.float32, blocks=blocks)

    fewest = max(2, degrees.pipeline)
    module = profiled.module
    repeated = [] if module is None or profiled.model_class is not None else stacks(module)
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


def _reduced_sizes(planned: int, samples: int, planned_sequence: int, sequence: int) -> list[str]:
    """Sentences for sizes below those of the plan; a sequence of 0 is none."""
    sentences = []
    if samples != planned:
        sentences.append(f"Microbatches of {planned} samples: each had {samples}.")
    if sequence and sequence != planned_sequence:
        sentences.append(f"Sequences of {planned_sequence:,} tokens: each had {sequence}.")
    return sentences


def _largest_stack(copy: Copy) -> tuple[str, ...]:
    """Block paths of the stack with the most parameters, which a pipeline divides into stages."""
    from smp_advisor.profiling.structure import stacks

    ordered = sorted(stacks(copy.model), key=lambda stack: stack.parameters)
    return ordered[-1].paths if ordered else ()


def _stages(degrees: Degrees, by_stage: dict[int, dict[str, Any]]) -> tuple[StageSlots, ...]:
    """Passes of each pipeline stage, next to those of the cost model; empty without a pipeline."""
    if degrees.pipeline == 1:
        return ()
    return tuple(
        StageSlots(
            order=tuple(by_stage[number]["order"]),
            expected=tuple(f"{kind[0].upper()}{microbatch}" for kind, microbatch in slots),
            in_flight=by_stage[number]["in_flight"],
            expected_in_flight=in_flight(slots),
        )
        for number, slots in enumerate(expected_slots(degrees))
    )
