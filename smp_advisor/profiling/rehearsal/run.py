"""Run of a rehearsal in a child process."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
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
    from smp_advisor.profiling.scaled.build import Copy
    from smp_advisor.workload.job import Job

__all__ = ["run"]

_MAX_TOKENS = 32
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
        The copy cannot be built, or a rank fails.
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
    degrees, not_rehearsed = degrees_of(plan, 2 if data_parallel_degree is None else data_parallel_degree)
    progress(0, 3, "building the copy")
    with ExitStack() as stack:
        share = memory_bytes // _MEMORY_DIVISOR
        copy = make_copy(profiled, stack, memory_bytes=share, dtype=torch.float32, blocks=max(2, degrees.pipeline))
        # Evaluation mode: dropout, and statistics over differently divided batches, would make the runs differ.
        model = copy.model.eval()
        example = example_inputs(model, inputs, config=copy.profiled.config)
        sequence = min(job.sequence_length, _MAX_TOKENS, example.longest or _MAX_TOKENS) if example.has_sequence else 1
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
        not_rehearsed.append("Dropout and batch statistics: both are disabled, so that the two runs are comparable.")
        worst = max(ranks, key=lambda result: result["difference"])
        by_stage = {result["stage"]: result for result in ranks}
        return Rehearsal(
            name=profiled.name,
            degrees=degrees,
            planned=_planned(plan, data_parallel_degree),
            reductions=tuple(map(str, copy.reductions)),
            divided=ranks[0]["divided"],
            stages=_stages(degrees, by_stage),
            stage_blocks=tuple(by_stage[number]["blocks"] for number in sorted(by_stage)),
            loss=ranks[0]["loss"],
            single_loss=single["loss"],
            gradient_difference=worst["difference"],
            worst_parameter=worst["worst"],
            parameter_difference=max(result["parameter_difference"] for result in ranks),
            parameters_compared=len({name for result in ranks for name in result["compared"]}),
            parameter_elements=tuple(result["parameter_elements"] for result in ranks),
            optimizer_elements=tuple(result["optimizer_elements"] for result in ranks),
            not_rehearsed=tuple(not_rehearsed),
            seconds=time.perf_counter() - begun,
        )


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
