"""What the widget's panel for a pasted cell shows: a check of its text, as plain data."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.advice import Advice
    from smp_advisor.estimators import EstimatorReport
    from smp_advisor.libraries.plan import Plan

__all__ = ["pasted"]


def pasted(text: str, advice: Advice, plan: Plan, names: Mapping[str, Any]) -> dict[str, Any]:
    """Check a pasted text and set its plan against the one on screen.

    Parameters
    ----------
    text
        A cell, dictionary, recipe or request.
    advice
        Its model and job are what is trained.
    plan
        The plan on screen.
    names
        The notebook's names, for those that the text takes from other cells.
    """
    from smp_advisor.estimators import check_estimator
    from smp_advisor.notebook.estimator_cell import plain_names

    try:
        job = replace(advice.job, global_batch_size=None)
        report = check_estimator(text, model=advice.model, job=job, variables=plain_names(names, text))
    except AdvisorError as error:
        return _nothing(str(error))
    return {
        "summary": f"{report.totals or 'No findings'}, for {advice.model.name}.",
        "read": [line.strip() for line in (*report.introduction, *report.outcome)],
        "findings": [{**finding.plain(), "place": f"line {finding.line}:"} for finding in report],
        "unresolved": [f"Line {one.line}: {one.what}" for one in report.unresolved],
        "diff": report.diff,
        "corrected": report.corrected if report.diff else "",
        "comparison": _comparison(report, advice, plan),
    }


def _comparison(report: EstimatorReport, advice: Advice, plan: Plan) -> dict[str, Any] | None:
    """From the pasted plan, or its corrected form, to the one on screen; None where it does not read into one."""
    from smp_advisor.estimators.comparison import compare

    read = report.main if report.plan is not None else report.mended
    if read is None or read.plan is None or read.job is None:
        return None
    try:
        found = compare(
            advice.model,
            read.plan,
            plan,
            cluster=read.cluster or advice.cluster,
            job=read.job,
            recommended_cluster=advice.cluster,
            recommended_job=advice.job,
            min_fit_probability=advice.min_fit_probability,
        )
    except AdvisorError as error:
        return {"gain": str(error), "rows": []}
    rows = [[one.setting, one.reference, one.recommended, one.because] for one in found.differences]
    return {"gain": found.gain, "rows": rows}


def _nothing(summary: str) -> dict[str, Any]:
    nothing: dict[str, Any] = {"read": [], "findings": [], "unresolved": [], "diff": "", "corrected": ""}
    return {"summary": summary, **nothing, "comparison": None}
