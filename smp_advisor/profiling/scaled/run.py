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
    from smp_advisor.sandbox import Limits
    from smp_advisor.workload.job import Job


_MEMORY_BYTES = 4 * 2**30
"""Memory that a copy is built for, also on a machine that has less available: the copy is the same everywhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings of the steps of a copy."""

    optimizer: str
    sequence: int
    """Tokens per sample of the job."""
    precision: str
    memory_bytes: int
    """Memory that the copy is built for."""


def run(
    model: Any,
    job: Job,
    *,
    name: str,
    precision: str,
    inputs: Any = None,
    limits: Limits | None = None,
    **report: Any,
) -> ScaledRun:
    """Train a scaled copy of a model for two steps in a child process, which leaves a live module as it is."""
    memory_bytes = (limits and limits.memory_bytes) or _MEMORY_BYTES
    settings = Settings(
        optimizer=job.optimizer, sequence=job.sequence_length, precision=precision, memory_bytes=memory_bytes
    )
    notes: list[str] = []
    while True:  # until it runs in a precision; there are three
        higher = higher_precision(settings.precision)
        try:
            arguments = (model, inputs, settings)
            result = run_isolated(_trained, *arguments, what=f"the scaled copy of {name}", limits=limits, **report)
        except ProfileError as error:
            # Kernels of recurrent layers crash on some CPUs in 16 bits.
            if error.kind != "crash" or not higher:
                raise
            settings = replace(settings, precision="fp32")
            notes.append(f"{error.sentence} It was trained in fp32.")
            continue
        if "problem" not in result:
            break
        failing = training_precision(settings.precision).title
        if not higher:
            raise ProfileError(f"The scaled copy of {name} failed in {failing}: {result['problem']}.")
        label = training_precision(higher).label
        notes.append(f"The copy fails in {failing}: {result['problem']}. It was trained with {label}.")
        settings = replace(settings, precision=higher)
    run: ScaledRun = restored(ScaledRun, result)
    return replace(run, notes=(*notes, *run.notes))


def _trained(model: Any, inputs: Any, settings: Settings) -> dict[str, Any]:
    """The result as plain data; only the ``problem`` if the copy fails because of the types of this precision."""
    from smp_advisor.profiling.failures import is_about_types, source_frame
    from smp_advisor.profiling.profiled_model import read_model
    from smp_advisor.profiling.scaled.training import train

    try:
        return asdict(train(read_model(model), inputs, settings))
    except Exception as error:
        if not is_about_types(error):
            raise
        frame = source_frame(error)
        return {"problem": " ".join(str(error).split())[:160].rstrip(".") + (f" ({frame})" if frame else "")}
