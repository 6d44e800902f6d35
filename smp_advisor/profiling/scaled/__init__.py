"""Real training steps of a copy of the model, scaled down to fit on this machine, in a child process."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.parts import restored
from smp_advisor.profiling.scaled.result import Reduction, ScaledRun
from smp_advisor.sandbox import run_isolated

if TYPE_CHECKING:
    from smp_advisor.sandbox import Limits

__all__ = ["Reduction", "ScaledRun", "run"]

_MEMORY_BYTES = 4 * 2**30
"""Memory that a copy is built for, also on a machine that has less available: the copy is the same everywhere."""


def run(
    model: Any, *, name: str, sequence: int, inputs: Any = None, limits: Limits | None = None, **report: Any
) -> ScaledRun:
    """Train a scaled copy of a model for two steps in a child process, which leaves a live module as it is."""
    memory_bytes = (limits and limits.memory_bytes) or _MEMORY_BYTES
    arguments = (model, inputs, sequence, memory_bytes)
    result = run_isolated(_trained, *arguments, what=f"the scaled copy of {name}", limits=limits, **report)
    run: ScaledRun = restored(ScaledRun, result)
    return run


def _trained(model: Any, inputs: Any, sequence: int, memory_bytes: int) -> dict[str, Any]:
    from smp_advisor.profiling.profiled_model import read_model
    from smp_advisor.profiling.scaled.training import train

    return asdict(train(read_model(model), inputs, sequence=sequence, memory_bytes=memory_bytes))
