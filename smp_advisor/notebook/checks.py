"""Checks of cells and scripts from the page and the cell magic."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import user_path
from smp_advisor.core.words import escape
from smp_advisor.errors import AdvisorError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.cluster import Cluster, Instance
    from smp_advisor.estimators import EstimatorReport
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.session import Advice


_CONFIGURATIONS = (".yaml", ".yml", ".json")


def check_if_estimator(
    source: str | Path,
    names: Mapping[str, Any],
    advice: Advice | None = None,
    *,
    cluster: Cluster | Instance | None = None,
    forced: bool = False,
) -> EstimatorReport | None:
    """Check a job's configuration with `names` of the notebook, and `cluster` if it names none; None for scripts."""
    from smp_advisor.estimators import check_estimator, looks_like_estimator

    by_name = isinstance(source, Path) and source.suffix.lower() in _CONFIGURATIONS
    forced = forced or cluster is not None
    if not forced and not by_name and not looks_like_estimator(source):
        return None
    model, job = (advice.model, advice.job) if advice is not None else (None, None)
    variables = plain_names(names, source) if isinstance(source, str) else None
    return check_estimator(source, model=model, job=job, cluster=cluster, variables=variables)


def plain_names(names: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Numbers, texts and collections among the notebook's variables that the text uses."""
    used = set(re.findall(r"[A-Za-z]\w*", text))
    kinds = (bool, int, float, str, dict, list, tuple)
    return {name: value for name, value in names.items() if name in used and isinstance(value, kinds)}


def pasted(text: str, advice: Advice, plan: Plan, names: Mapping[str, Any]) -> dict[str, str]:
    """Check a pasted text, and compare its plan with the plan on screen."""
    from smp_advisor.estimators import check_estimator

    try:
        job = replace(advice.job, global_batch_size=None)
        report = check_estimator(text, model=advice.model, job=job, variables=plain_names(names, text))
    except AdvisorError as error:
        return _answer(str(error))
    html = f"{report._repr_html_()}{_comparison(report, advice, plan)}"
    return _answer(
        f"{report.totals or 'No findings'}, for {advice.model.name}.", html, report.corrected * bool(report.diff)
    )


def _comparison(report: EstimatorReport, advice: Advice, plan: Plan) -> str:
    """Comparison of the pasted plan, or its corrected form, with the plan on screen; empty without a plan."""
    read = report.main if report.plan is not None else report.mended
    if read is None or read.plan is None:
        return ""
    try:
        compared = advice.compare(read.plan, plan)._repr_html_()
    except AdvisorError as error:
        compared = f"<p>{escape(str(error))}</p>"
    return f"<h4>Your plan compared with the plan on screen</h4>{compared}"


def checked(path: str, plan: Plan) -> dict[str, str]:
    """Check a script by its path: the page of its report, or why it cannot be read."""
    from smp_advisor.review.scripts import check_script

    if not path.strip():
        return _answer("Enter the path of a training script, for example train.py.")
    try:
        report = check_script(user_path(path.strip(), AdvisorError), plan)
    except AdvisorError as error:
        return _answer(str(error))
    return _answer(f"{path.strip()}, against this plan: {report.totals or 'no findings'}.", report._repr_html_())


def _answer(summary: str, html: str = "", corrected: str = "") -> dict[str, str]:
    return {"summary": summary, "html": html, "corrected": corrected}
