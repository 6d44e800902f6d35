"""Run of a rehearsal in a child process."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.rehearsal.degrees import Degrees, degrees_of
from smp_advisor.profiling.rehearsal.result import Rehearsal
from smp_advisor.profiling.sandbox import Limits, progress, run_isolated

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.profiling.scaled.build import Copy
    from smp_advisor.workload.job import Job

__all__ = ["run"]

_MAX_TOKENS = 32
_MEMORY_DIVISOR = 3
"""Share of the memory limit for the copy: ranks share its pages, except for state they divide or update."""


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """Settings of the run in the child process."""

    profiled: ProfiledModel
    inputs: Any
    sequence: int
    degrees: Degrees
    planned: str
    not_rehearsed: tuple[str, ...]
    memory_bytes: int


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

    Parameters
    ----------
    profiled
        The model to profile; a live module is neither modified nor copied in this process.
    job
        Sequence length.
    plan
        Degrees, microbatches, schedule and sharding.
    data_parallel_degree
        Model replicas in the planned job; None rehearses two.
    inputs
        Example inputs, required if they cannot be inferred.
    memory_bytes, seconds
        Limits of all processes together.
    on_line, on_progress
        Called with each line of the log, and with the progress.

    Raises
    ------
    ProfileError
        The copy cannot be built, or a rank fails.
    """
    degrees, not_rehearsed = degrees_of(plan, 2 if data_parallel_degree is None else data_parallel_degree)
    limits = Limits(memory_bytes=memory_bytes, seconds=seconds)
    limits = replace(limits, memory_bytes=limits.resolved_memory_bytes())
    settings = _Settings(
        profiled=profiled,
        inputs=inputs,
        sequence=min(job.sequence_length, _MAX_TOKENS),
        degrees=degrees,
        planned=_planned(plan, data_parallel_degree),
        not_rehearsed=tuple(not_rehearsed),
        memory_bytes=limits.resolved_memory_bytes(),
    )
    result = run_isolated(
        _rehearse,
        settings,
        what=f"the rehearsal of {profiled.name}",
        limits=limits,
        on_line=on_line,
        on_progress=on_progress,
    )
    return Rehearsal.from_dict(result)


def _planned(plan: Plan, data_parallel_degree: int | None) -> str:
    tensor, pipeline = plan.tensor_parallel_degree, plan.pipeline_parallel_degree
    microbatches = plan.microbatches * plan.gradient_accumulation_steps
    data = "unspecified" if data_parallel_degree is None else data_parallel_degree
    return f"tensor {tensor} × pipeline {pipeline} × data {data}, {microbatches} microbatches"


def _rehearse(settings: _Settings) -> dict[str, Any]:
    """Build the copy, train it in one process and in several, and compare; runs in the child process."""
    import torch

    from smp_advisor.errors import ProfileError
    from smp_advisor.profiling.inputs import example_inputs, filled
    from smp_advisor.profiling.rehearsal.rank_step import (
        Prepared,
        by_name,
        microbatches_of,
        named_batch,
        reference,
        run_rank,
    )
    from smp_advisor.profiling.rehearsal.ranks import run_ranks
    from smp_advisor.profiling.rehearsal.stage import find_boundary
    from smp_advisor.profiling.scaled.build import make_copy, token_count

    begun = time.perf_counter()
    torch.manual_seed(0)
    degrees, not_rehearsed = settings.degrees, list(settings.not_rehearsed)
    progress(0, 3, "building the copy")
    with ExitStack() as stack:
        copy = make_copy(
            settings.profiled, stack, memory_bytes=settings.memory_bytes // _MEMORY_DIVISOR, dtype=torch.float32,
            blocks=max(2, degrees.pipeline),
        )  # fmt: skip
        # Evaluation mode: dropout, and statistics over differently divided batches, would make the runs differ.
        model = copy.model.eval()
        example = example_inputs(model, settings.inputs, config=copy.profiled.config)
        sequence = min(settings.sequence, example.longest or settings.sequence) if example.has_sequence else 1
        batches = tuple(
            named_batch(filled(example.make(degrees.microbatches, sequence), token_count(copy), seed=replica))
            for replica in range(degrees.data)
        )
        paths = _largest_stack(copy)
        boundary = None
        if degrees.pipeline > 1:
            first = microbatches_of(batches[0], degrees.microbatches)[0]
            try:
                boundary = find_boundary(model, paths, degrees.pipeline, lambda: by_name(model, first))
            except ProfileError as error:
                not_rehearsed.append(f"Pipeline parallelism: {str(error)[0].lower()}{str(error)[1:]}")
                degrees = replace(degrees, pipeline=1)
        progress(1, 3, "one process")
        single = reference(model, batches, degrees.microbatches)
        print(f"one process: loss {single['loss']:.7g}", flush=True)  # noqa: T201 (the live log)
        progress(2, 3, f"{degrees.world} processes")
        prepared = Prepared(
            model=model, config=copy.profiled.config, paths=paths, boundary=boundary, batches=batches, degrees=degrees,
            **single,
        )  # fmt: skip
        ranks = run_ranks(degrees.world, lambda rank: run_rank(prepared, rank))
        print(f"{degrees.world} processes: loss {ranks[0]['loss']:.7g}", flush=True)  # noqa: T201
        missing = set(prepared.gradients) - {name for result in ranks for name in result["compared"]}
        if missing:
            raise ProfileError(f"No rank of the rehearsal has a gradient for {', '.join(sorted(missing)[:5])}.")
        return _result(
            settings, copy, degrees, not_rehearsed, single["loss"], ranks, time.perf_counter() - begun
        ).as_dict()


def _largest_stack(copy: Copy) -> tuple[str, ...]:
    """Block paths of the stack with the most parameters, which a pipeline divides into stages."""
    from smp_advisor.profiling.structure import stacks

    ordered = sorted(stacks(copy.model), key=lambda stack: stack.parameters)
    return ordered[-1].paths if ordered else ()


def _result(
    settings: _Settings,
    copy: Copy,
    degrees: Degrees,
    not_rehearsed: list[str],
    single_loss: float,
    ranks: list[dict[str, Any]],
    seconds: float,
) -> Rehearsal:
    from smp_advisor.profiling.rehearsal.result import StageSlots
    from smp_advisor.profiling.rehearsal.schedule import expected_slots, in_flight

    stages = []
    by_stage = {result["stage"]: result for result in ranks}
    if degrees.pipeline > 1:
        for number, slots in enumerate(expected_slots(degrees)):
            stages.append(
                StageSlots(
                    order=tuple(by_stage[number]["order"]),
                    expected=tuple(f"{kind[0].upper()}{microbatch}" for kind, microbatch in slots),
                    in_flight=by_stage[number]["in_flight"],
                    expected_in_flight=in_flight(slots),
                )
            )
    worst = max(ranks, key=lambda result: result["difference"])
    not_rehearsed.append("Dropout and batch statistics: both are disabled, so that the two runs are comparable.")
    return Rehearsal(
        name=settings.profiled.name,
        degrees=degrees,
        planned=settings.planned,
        reductions=tuple(map(str, copy.reductions)),
        divided=ranks[0]["divided"],
        stages=tuple(stages),
        stage_blocks=tuple(by_stage[number]["blocks"] for number in sorted(by_stage)),
        loss=ranks[0]["loss"],
        single_loss=single_loss,
        gradient_difference=worst["difference"],
        worst_parameter=worst["worst"],
        parameter_difference=max(result["parameter_difference"] for result in ranks),
        parameters_compared=len({name for result in ranks for name in result["compared"]}),
        parameter_elements=tuple(result["parameter_elements"] for result in ranks),
        optimizer_elements=tuple(result["optimizer_elements"] for result in ranks),
        not_rehearsed=tuple(not_rehearsed),
        seconds=seconds,
    )
