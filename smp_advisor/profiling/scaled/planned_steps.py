"""Steps of the scaled copy, as plain data for a child process."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job

__all__ = ["PlannedSteps", "planned_steps"]

_MOST_MICROBATCHES = 4
_MOST_SAMPLES = 2


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
    attention: str
    """Kernel whose saved tensors are extrapolated to the full size."""
    steps: int
    memory_bytes: int
    """Memory that the copy is built for."""
    extrapolates: bool = True
    """Whether copies at other widths and depths are extrapolated to the full size."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PlannedSteps:
        """Inverse of `as_dict`, also after a JSON round trip."""
        return cls(**(dict(values) | {name: tuple(values[name]) for name in ("sizes", "notes")}))


def planned_steps(
    job: Job, plan: Plan | None, *, precision: str, attention: str, steps: int, memory_bytes: int
) -> PlannedSteps:
    """The steps of a copy under a plan; without one, a microbatch of two samples without checkpointing."""
    checkpointing = plan.activation_checkpointing if plan else False
    notes = []
    if checkpointing and str(checkpointing) != "each":
        notes.append(f"activation_checkpointing={checkpointing!r} was applied to each block.")
    if job.optimizer not in {"adam", "sgd", "plain-sgd"}:
        notes.append(f"AdamW was used instead of {job.optimizer}.")
    planned = plan.microbatches * plan.gradient_accumulation_steps if plan else 1
    samples = max(1, plan.batch_size // plan.microbatches) if plan else 2
    reducible = {
        "microbatches": (planned, min(planned, _MOST_MICROBATCHES)),
        "samples per microbatch": (samples, min(samples, _MOST_SAMPLES)),
    }
    notes += [f"{name} reduced from {full} to {used}." for name, (full, used) in reducible.items() if full != used]
    return PlannedSteps(
        optimizer=job.optimizer,
        sequence=job.sequence_length,
        sizes=(min(samples, _MOST_SAMPLES),) * min(planned, _MOST_MICROBATCHES),
        checkpointing=bool(checkpointing),
        notes=tuple(notes),
        precision=precision,
        attention=attention,
        steps=steps,
        memory_bytes=memory_bytes,
    )
