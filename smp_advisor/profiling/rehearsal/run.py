"""A rehearsal from beginning to end."""

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
    from smp_advisor.profiling.scaled.making import Copy
    from smp_advisor.profiling.subject import Subject
    from smp_advisor.workload.job import Job

__all__ = ["run"]

_MOST_TOKENS = 32
_SHARES = 3
"""Ranks share the memory of the copy but for what they divide or train: together about twice what one trains in."""


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """What the child is to do."""

    subject: Subject
    inputs: Any
    sequence: int
    degrees: Degrees
    planned: str
    left_out: tuple[str, ...]
    memory_bytes: int


def run(
    subject: Subject,
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

    A scaled copy is trained for one step under PyTorch's tensor parallelism, pipeline schedules and FSDP or sharded
    optimizer, over gloo, with each degree of the plan at most two (four where it is the only one).

    Parameters
    ----------
    subject
        What is profiled; a live module is neither changed nor copied in this process.
    job
        Sequence length.
    plan
        Degrees, microbatches, schedule and sharding.
    data_parallel_degree
        Replicas of the model in the planned job; two are rehearsed where they are not known.
    inputs
        Example inputs of a model for which they cannot be inferred.
    memory_bytes, seconds
        All processes together are stopped beyond them.
    on_line, on_progress
        Called with each line of the log, and with how far it is.

    Raises
    ------
    ProfileError
        The copy cannot be made, or a rank fails.
    """
    degrees, left_out = degrees_of(plan, 2 if data_parallel_degree is None else data_parallel_degree)
    limits = Limits(memory_bytes=memory_bytes, seconds=seconds)
    limits = replace(limits, memory_bytes=limits.resolved_memory_bytes())
    settings = _Settings(
        subject=subject,
        inputs=inputs,
        sequence=min(job.sequence_length, _MOST_TOKENS),
        degrees=degrees,
        planned=_planned(plan, data_parallel_degree),
        left_out=tuple(left_out),
        memory_bytes=limits.resolved_memory_bytes(),
    )
    result = run_isolated(
        _rehearse,
        settings,
        what=f"the rehearsal of {subject.name}",
        limits=limits,
        on_line=on_line,
        on_progress=on_progress,
    )
    return Rehearsal.from_dict(result)


def _planned(plan: Plan, data_parallel_degree: int | None) -> str:
    tensor, pipeline = plan.tensor_parallel_degree, plan.pipeline_parallel_degree
    microbatches = plan.microbatches * plan.gradient_accumulation_steps
    data = "as the cluster allows" if data_parallel_degree is None else data_parallel_degree
    return f"tensor {tensor} × pipeline {pipeline} × data {data}, {microbatches} microbatches"


def _rehearse(settings: _Settings) -> dict[str, Any]:
    """In the child: make the copy, train it in one process, then in several, and compare."""
    import torch

    from smp_advisor.errors import ProfileError
    from smp_advisor.profiling.inputs import example_inputs, filled
    from smp_advisor.profiling.rehearsal.ranks import run_ranks
    from smp_advisor.profiling.rehearsal.stage import find_boundary
    from smp_advisor.profiling.rehearsal.work import Prepared, by_name, microbatches_of, named_batch, reference, work
    from smp_advisor.profiling.scaled.making import make_copy, token_count

    begun = time.perf_counter()
    torch.manual_seed(0)
    degrees, left_out = settings.degrees, list(settings.left_out)
    progress(0, 3, "making the copy")
    with ExitStack() as stack:
        copy = make_copy(
            settings.subject, stack, memory_bytes=settings.memory_bytes // _SHARES, dtype=torch.float32,
            blocks=max(2, degrees.pipeline),
        )  # fmt: skip
        # No dropout, and no statistics of a batch that is cut in another way: both have to compute the same.
        model = copy.model.eval()
        example = example_inputs(model, settings.inputs, config=copy.subject.config)
        sequence = min(settings.sequence, example.longest or settings.sequence) if example.has_sequence else 1
        batches = tuple(
            named_batch(filled(example.make(degrees.microbatches, sequence), token_count(copy), seed=replica))
            for replica in range(degrees.data)
        )
        paths = _row(copy)
        boundary = None
        if degrees.pipeline > 1:
            first = microbatches_of(batches[0], degrees.microbatches)[0]
            try:
                boundary = find_boundary(model, paths, degrees.pipeline, lambda: by_name(model, first))
            except ProfileError as error:
                left_out.append(f"Pipeline parallelism: {str(error)[0].lower()}{str(error)[1:]}")
                degrees = replace(degrees, pipeline=1)
        progress(1, 3, "one process")
        alone = reference(model, batches, degrees.microbatches)
        print(f"one process: loss {alone['loss']:.7g}", flush=True)  # noqa: T201 (the live log)
        progress(2, 3, f"{degrees.world} processes")
        prepared = Prepared(
            model=model, config=copy.subject.config, paths=paths, boundary=boundary, batches=batches, degrees=degrees,
            **alone,
        )  # fmt: skip
        answers = run_ranks(degrees.world, lambda rank: work(prepared, rank))
        print(f"{degrees.world} processes: loss {answers[0]['loss']:.7g}", flush=True)  # noqa: T201
        missing = set(prepared.gradients) - {name for answer in answers for name in answer["compared"]}
        if missing:
            raise ProfileError(f"No rank of the rehearsal has a gradient for {', '.join(sorted(missing)[:5])}.")
        return _result(settings, copy, degrees, left_out, alone["loss"], answers, time.perf_counter() - begun).as_dict()


def _row(copy: Copy) -> tuple[str, ...]:
    """Blocks of the largest row, in which a pipeline is cut."""
    from smp_advisor.profiling.structure import stacks

    rows = sorted(stacks(copy.model), key=lambda one: one.parameters)
    return rows[-1].paths if rows else ()


def _result(
    settings: _Settings,
    copy: Copy,
    degrees: Degrees,
    left_out: list[str],
    single_loss: float,
    answers: list[dict[str, Any]],
    seconds: float,
) -> Rehearsal:
    from smp_advisor.profiling.rehearsal.result import StageSlots
    from smp_advisor.profiling.rehearsal.schedule import expected_slots, in_flight

    stages = []
    by_stage = {answer["stage"]: answer for answer in answers}
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
    worst = max(answers, key=lambda answer: answer["difference"])
    left_out.append("Dropout and batch statistics: they are off, so that both runs compute the same.")
    return Rehearsal(
        name=settings.subject.name,
        degrees=degrees,
        planned=settings.planned,
        reductions=tuple(map(str, copy.reductions)),
        divided=answers[0]["divided"],
        stages=tuple(stages),
        stage_blocks=tuple(by_stage[number]["blocks"] for number in sorted(by_stage)),
        loss=answers[0]["loss"],
        single_loss=single_loss,
        gradient_difference=worst["difference"],
        worst_parameter=worst["worst"],
        parameter_difference=max(answer["moved"] for answer in answers),
        parameters_compared=len({name for answer in answers for name in answer["compared"]}),
        held=tuple(answer["held"] for answer in answers),
        optimizer_held=tuple(answer["held_state"] for answer in answers),
        not_rehearsed=tuple(left_out),
        seconds=seconds,
    )
