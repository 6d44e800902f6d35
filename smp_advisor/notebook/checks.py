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
    from smp_advisor.review.scripts import FileFix
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
    """Check a script by its path: the page of its report, with all fixes together, or why it cannot be read."""
    from smp_advisor.review.scripts import check_script, plan_fixes

    if not path.strip():
        return _answer("Enter the path of a training script, for example train.py.")
    script = user_path(path.strip(), AdvisorError)
    try:
        report = check_script(script, plan)
        fixable = sum(finding.fix is not None for finding in report)
        fixes = plan_fixes(script, plan=plan) if fixable > 1 else []
    except AdvisorError as error:
        return _answer(str(error))
    ids = ", ".join(sorted({identifier for fix in fixes for identifier in fix.ids}))
    title = f"All automatic fixes together{f' in {len(fixes)} files' if len(fixes) > 1 else ''}: {ids}"
    together = (
        f'<details><summary>{escape(title)}</summary><pre tabindex="0" data-smp-text="diff">'
        f'{escape(_diff(fixes))}</pre><span data-smp-fix=""></span></details>'
    )
    summary = f"{path.strip()}, against this plan: {report.totals or 'no findings'}."
    return _answer(summary, f"{report._repr_html_()}{together if fixes else ''}")


def _answer(summary: str, html: str = "", corrected: str = "") -> dict[str, str]:
    return {"summary": summary, "html": html, "corrected": corrected}


def fixed(content: Mapping[str, Any], plan: Plan) -> dict[str, str]:
    """Write a fix that the user has reviewed, of one finding or all, if it is still the same, and check again."""
    from smp_advisor.review.scripts.fixes import write_fixed

    path, in_place = str(content.get("text", "")), content.get("in_place") is True
    written: list[str] = []
    try:
        files = _reviewed(content, plan)
        for file, text in files:
            written.append(str(write_fixed(file, text, in_place=in_place)))
        changed = "Nothing was written: the file has changed since it was checked. These are its findings now."
        result = " ".join(written) or changed
    except AdvisorError as error:
        result = f"{' '.join(written) or 'Nothing was written:'} {error}"
    after = checked(path, plan)
    return {**after, "summary": f"{result} {after['summary']}"}


def _reviewed(content: Mapping[str, Any], plan: Plan) -> list[tuple[Path, str]]:
    """Files to write with their new texts; empty if the change is not the reviewed one."""
    from smp_advisor.review.scripts import check_script, plan_fixes

    script, diff = user_path(str(content.get("text", "")).strip(), AdvisorError), content.get("diff")
    if not content.get("check"):
        fixes = plan_fixes(script, plan=plan)
        return [(fix.path, fix.text) for fix in fixes] if _diff(fixes) == diff else []
    where = (content.get("check"), content.get("place"), content.get("column"))
    for finding in check_script(script, plan):
        same = (finding.id, f"{finding.path}:{finding.line}", finding.column) == where
        if same and finding.fix is not None and finding.fix.diff == diff:
            return [(Path(finding.path.partition("#cell-")[0]), finding.fix.source)]
    return []


def _diff(fixes: list[FileFix]) -> str:
    return "".join(fix.diff for fix in fixes)
