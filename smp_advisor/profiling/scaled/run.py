"""Run of the scaled copy: two training steps in a child process, compared with its trace."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.parts import restored
from smp_advisor.profiling.precision import higher_precision, training_precision
from smp_advisor.profiling.scaled.result import ScaledRun
from smp_advisor.sandbox import run_isolated

if TYPE_CHECKING:
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.sandbox import Limits
    from smp_advisor.workload.job import Job


_MOST_MICROBATCHES = 4
_MOST_SAMPLES = 2
_MEMORY_BYTES = 4 * 2**30
"""Memory that a copy is built for, also on a machine that has less available: the copy is the same everywhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSteps:
    """Microbatches and settings of a copy under a job and its plan, with its limits."""

    optimizer: str
    sequence: int
    """Tokens per sample of the job."""
    sizes: tuple[int, ...]
    """Samples of each microbatch of the copy."""
    checkpointing: bool
    notes: tuple[str, ...]
    """A sentence for each difference from the plan and the job."""
    precision: str
    memory_bytes: int
    """Memory that the copy is built for."""

    @classmethod
    def of(cls, job: Job, plan: Plan | None, *, precision: str, memory_bytes: int) -> PlannedSteps:
        """Return the steps of a copy under a plan; without one, a microbatch of two samples without checkpointing."""
        checkpointing = plan.activation_checkpointing if plan else False
        planned = plan.microbatches * plan.gradient_accumulation_steps if plan else 1
        samples = max(1, plan.batch_size // plan.microbatches) if plan else 2
        used = min(planned, _MOST_MICROBATCHES), min(samples, _MOST_SAMPLES)
        notes = (
            (
                checkpointing and str(checkpointing) != "each",
                f"activation_checkpointing={checkpointing!r} was applied to each block.",
            ),
            (job.optimizer not in {"adam", "sgd", "plain-sgd"}, f"AdamW was used instead of {job.optimizer}."),
            (planned != used[0], f"microbatches reduced from {planned} to {used[0]}."),
            (samples != used[1], f"samples per microbatch reduced from {samples} to {used[1]}."),
        )
        return cls(
            optimizer=job.optimizer,
            sequence=job.sequence_length,
            sizes=(used[1],) * used[0],
            checkpointing=bool(checkpointing),
            notes=tuple(note for differs, note in notes if differs),
            precision=precision,
            memory_bytes=memory_bytes,
        )


def run(
    model: Any,
    job: Job,
    plan: Plan | None = None,
    *,
    name: str,
    precision: str,
    inputs: Any = None,
    limits: Limits | None = None,
    **report: Any,
) -> ScaledRun:
    """Train a scaled copy of a model for two steps in a child process, which leaves a live module as it is."""
    memory_bytes = (limits and limits.memory_bytes) or _MEMORY_BYTES
    planned = PlannedSteps.of(job, plan, precision=precision, memory_bytes=memory_bytes)
    notes: list[str] = []
    while True:  # until it runs in a precision; there are three
        higher = higher_precision(planned.precision)
        try:
            arguments = (model, inputs, planned)
            result = run_isolated(_trained, *arguments, what=f"the scaled copy of {name}", limits=limits, **report)
        except ProfileError as error:
            # Kernels of recurrent layers crash on some CPUs in 16 bits.
            if error.kind != "crash" or not higher:
                raise
            planned = replace(planned, precision="fp32")
            notes.append(f"{error.sentence} It was trained in fp32.")
            continue
        if "problem" not in result:
            break
        failing = training_precision(planned.precision).title
        if not higher:
            raise ProfileError(f"The scaled copy of {name} failed in {failing}: {result['problem']}.")
        label = training_precision(higher).label
        notes.append(f"The copy fails in {failing}: {result['problem']}. It was trained with {label}.")
        planned = replace(planned, precision=higher)
    run: ScaledRun = restored(ScaledRun, result)
    return replace(run, notes=(*notes, *run.notes))


def _trained(model: Any, inputs: Any, planned: PlannedSteps) -> dict[str, Any]:
    """The result as plain data; only the ``problem`` if the copy fails because of the types of this precision."""
    from smp_advisor.profiling.failures import is_about_types, source_frame
    from smp_advisor.profiling.profiled_model import read_model
    from smp_advisor.profiling.scaled.training import train

    try:
        return asdict(train(read_model(model), inputs, planned))
    except Exception as error:
        if not is_about_types(error):
            raise
        frame = source_frame(error)
        return {"problem": " ".join(str(error).split())[:160].rstrip(".") + (f" ({frame})" if frame else "")}
