"""The report as plain text: what was read, then the findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.scripts.text import as_text as findings_text

if TYPE_CHECKING:
    from smp_advisor.estimators.report import EstimatorReport, Reading

__all__ = ["as_text", "lines"]


def as_text(report: EstimatorReport) -> str:
    """The whole report."""
    head = "\n".join(line for reading in report.readings for line in lines(reading))
    diff = f"\n\nCorrected:\n{report.diff}" if report.diff else ""
    return f"{head}\n\n{findings_text(report)}{diff}"


def lines(reading: Reading) -> list[str]:
    """What one job was read into, and what was inferred."""
    from smp_advisor.guidance.wording import fit, gib

    said = []
    if reading.plan is not None:
        settings = reading.plan.parameters | reading.plan.hyperparameters
        words = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        said.append(f"Line {reading.line}: {reading.title} is {reading.library} {reading.plan.version}: {words}.")
    else:
        said.append(f"Line {reading.line}: {reading.title} does not read into a plan.")
    if reading.cluster is not None:
        said.append(f"  On {reading.cluster.summary}.")
    said += [f"  Inferred: {sentence}" for sentence in reading.inferred]
    if reading.estimate is not None:
        now = reading.estimate
        said.append(f"  By the memory model {gib(now.memory.peak.total_gib)} a GPU: it {fit(now, 0.95)}.")
    return said
