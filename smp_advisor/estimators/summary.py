"""What a configuration and its corrected text amount to, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.libraries.schema import schema

if TYPE_CHECKING:
    from smp_advisor.estimators.report import EstimatorReport, Reading

__all__ = ["lines", "outcome"]


def outcome(report: EstimatorReport) -> list[str]:
    """What the corrected text amounts to, and what nobody but its author can correct."""
    if report.mended is None:
        return []
    left = [one for one in report.of("error") if one.fix is None]
    said = [f"Left to you ({one.id}): {one.message}" for one in left]
    return said if left and report.mended.plan is None else [f"Corrected: {_described(report.mended)}", *said]


def _described(reading: Reading) -> str:
    """The plan in one line; why there is none otherwise."""
    if reading.plan is None:
        return f"{reading.title}: no plan can be read from its settings."
    settings = reading.plan.parameters | reading.plan.hyperparameters
    words = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    return f"{reading.title} is {schema(reading.plan.library).name} {reading.plan.version}: {words}."


def lines(reading: Reading) -> list[str]:
    """What one job was read into, and what was inferred."""
    from smp_advisor.guidance.wording import fit, gib

    said = [f"Line {reading.line}: {_described(reading)}"]
    if reading.cluster is not None:
        said.append(f"  On {reading.cluster.summary}.")
    said += [f"  Inferred: {sentence}" for sentence in reading.inferred]
    if reading.estimate is not None:
        now = reading.estimate
        said.append(f"  By the memory model it needs {gib(now.needed_gib)} a GPU: it {fit(now, 0.95)}.")
    return said
