"""Run of a rehearsal in a child process."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.rehearsal.result import Rehearsal
from smp_advisor.profiling.sandbox import Limits, progress, run_isolated
from smp_advisor.profiling.sandbox.limits import default_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.profiling.profiled_model import ProfiledModel
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

    The sizes of the rehearsal follow from counts of bytes and FLOPs, and ranks that wait for each other are recognized
    by their state, so no result depends on the speed of the machine. The parameters are those of `smp_advisor.profile`;
    `seconds` is a last guard, and the error names it if it strikes. A live module is neither modified nor copied in
    this process.
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
    from smp_advisor.profiling.rehearsal.ranks import LEARNING_RATE, Prepared, RanksFailed, run_rank, run_ranks
    from smp_advisor.profiling.rehearsal.setup import set_up
    from smp_advisor.profiling.rehearsal.single_process import (
        check_division,
        microbatches_of,
        reference,
        repeatable,
        used_by,
    )

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
            planned=_planned(plan, data_parallel_degree),
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
