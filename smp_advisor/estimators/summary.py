"""Sentences about a configuration and its corrected text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.libraries.schema import schema

if TYPE_CHECKING:
    from smp_advisor.estimators.report import EstimatorReport, Reading
    from smp_advisor.libraries.plan import Plan

__all__ = ["lines", "outcome"]


def outcome(report: EstimatorReport) -> list[str]:
    """The corrected plan, and errors that only the author can correct."""
    if report.mended is None:
        return []
    left = [finding for finding in report.of("error") if finding.fix is None]
    sentences = [f"Not corrected automatically ({finding.id}): {finding.message}" for finding in left]
    return sentences if left and report.mended.plan is None else [f"Corrected: {_described(report.mended)}", *sentences]


def _described(reading: Reading) -> str:
    """The plan in one line."""
    if reading.plan is None:
        return f"{reading.title}: no plan can be read from its settings."
    settings = reading.plan.parameters | reading.plan.hyperparameters
    words = ", ".join(f"{name}={_shown(reading.plan, name, value)!r}" for name, value in settings.items())
    return f"{reading.title} is {schema(reading.plan.library).name} {reading.plan.version}: {words}."


def _shown(plan: Plan, name: str, value: object) -> object:
    """A setting as Python writes it: flags of scripts are 1 and 0."""
    flag = isinstance(value, int) and value in (0, 1) and isinstance(getattr(plan, name, None), bool)
    return bool(value) if flag else value


def lines(reading: Reading) -> list[str]:
    """The plan and cluster of one job, and inferred settings."""
    from smp_advisor.guidance.wording import fit, gib

    sentences = [f"Line {reading.line}: {_described(reading)}"]
    if reading.cluster is not None:
        sentences.append(f"  On {reading.cluster.summary}.")
    sentences += [f"  Inferred: {sentence}" for sentence in reading.inferred]
    if reading.estimate is not None:
        now = reading.estimate
        sentences.append(f"  By the memory model, it needs {gib(now.needed_gib)} per GPU: it {fit(now, 0.95)}.")
    return sentences
