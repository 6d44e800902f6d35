"""The report as plain text: what was read, then the findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.library.schema import schema
from smp_advisor.scripts.text import as_text as findings_text

if TYPE_CHECKING:
    from smp_advisor.estimators.report import EstimatorReport, Reading

__all__ = ["as_text", "described", "lines"]


def as_text(report: EstimatorReport) -> str:
    """The whole report."""
    head = "\n".join(line for reading in report.readings for line in lines(reading))
    diff = f"\n\nCorrected:\n{report.diff}" if report.diff else ""
    mended = f"\n{described(report.mended)}" if report.mended is not None else ""
    return f"{head}\n\n{findings_text(report)}{diff}{mended}"


def described(reading: Reading) -> str:
    """The plan in one line; why there is none otherwise."""
    if reading.plan is None:
        return f"{reading.title} does not read into a plan."
    settings = reading.plan.parameters | reading.plan.hyperparameters
    words = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    return f"{reading.title} is {schema(reading.plan.library).name} {reading.plan.version}: {words}."


def lines(reading: Reading) -> list[str]:
    """What one job was read into, and what was inferred."""
    from smp_advisor.guidance.wording import fit, gib

    said = [f"Line {reading.line}: {described(reading)}"]
    if reading.cluster is not None:
        said.append(f"  On {reading.cluster.summary}.")
    said += [f"  Inferred: {sentence}" for sentence in reading.inferred]
    if reading.estimate is not None:
        now = reading.estimate
        said.append(f"  By the memory model it needs {gib(now.needed_gib)} a GPU: it {fit(now, 0.95)}.")
    return said
