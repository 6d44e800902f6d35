"""Data of the panel for pasted cells: findings, corrections and a comparison."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.schema import schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.advice import Advice
    from smp_advisor.estimators import EstimatorReport
    from smp_advisor.libraries.plan import Plan

__all__ = ["pasted"]


def pasted(text: str, advice: Advice, plan: Plan, names: Mapping[str, Any]) -> dict[str, Any]:
    """Check a pasted text, and compare its plan with the plan on screen.

    Parameters
    ----------
    text
        A cell, dictionary, recipe or request.
    advice
        Recommendation with the model and the job.
    plan
        The plan on screen.
    names
        Variables of the notebook, for names that other cells define.
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
        "unresolved": [f"Line {part.line}: {part.what}" for part in report.unresolved],
        "diff": report.diff,
        "corrected": report.corrected if report.diff else "",
        "comparison": _comparison(report, advice, plan),
    }


def _comparison(report: EstimatorReport, advice: Advice, plan: Plan) -> dict[str, Any] | None:
    """Comparison of the pasted plan, or its corrected form, with the plan on screen; None without a plan."""
    from smp_advisor.estimators.report import compare

    read = report.main if report.plan is not None else report.mended
    if read is None or read.plan is None or read.job is None:
        return None
    try:
        comparison = compare(
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
    rows = [
        [_label(plan.library, row.setting), row.reference, row.recommended, row.because]
        for row in comparison.differences
    ]
    return {"gain": comparison.gain, "rows": rows}


def _label(library: str, setting: str) -> str:
    described = schema(library).described(setting)
    return described.title if described else setting


def _nothing(summary: str) -> dict[str, Any]:
    nothing: dict[str, Any] = {"read": [], "findings": [], "unresolved": [], "diff": "", "corrected": ""}
    return {"summary": summary, **nothing, "comparison": None}
