"""Data of the script panel: findings of a checked file, and the fixes that it writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.scripts import FileFix

__all__ = ["checked", "fixed"]


def checked(path: str, plan: Plan) -> dict[str, Any]:
    """Check a script by its path: a summary, the findings with their fixes, and the unresolved parts.

    If the file cannot be checked, the summary is the reason.
    """
    from smp_advisor.scripts import check_script, plan_fixes

    if not path.strip():
        return _nothing("Enter the path of a training script, for example train.py.")
    script = _file(path)
    try:
        report = check_script(script, plan)
        fixable = sum(finding.fix is not None for finding in report)
        fixes = plan_fixes(script, plan=plan) if fixable > 1 else []
    except AdvisorError as error:
        return _nothing(str(error))
    return {
        "summary": f"{path.strip()}, against this plan: {report.totals or 'no findings'}.",
        "findings": [{**finding.plain(), "place": f"{finding.path}:{finding.line}"} for finding in report],
        "unresolved": [f"{part.path}:{part.line} {part.what}" for part in report.unresolved],
        "together": {"title": _title(fixes), "diff": _diff(fixes)} if fixes else None,
    }


def fixed(content: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """Write a fix that the user has reviewed, and check the file again; the summary starts with the written file.

    `content` identifies the file by `path`, the finding by `check`, `place` and `column` (empty: every fix), and the
    reviewed change by `diff`; `in_place` decides whether the file itself changes. If the fix has changed since the
    review, nothing is written.
    """
    from smp_advisor.scripts.fixes import write_fixed

    path, in_place = str(content.get("path", "")), content.get("in_place") is True
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
    from smp_advisor.scripts import check_script, plan_fixes

    script, diff = _file(str(content.get("path", ""))), content.get("diff")
    if not content.get("check"):
        fixes = plan_fixes(script, plan=plan)
        return [(fix.path, fix.text) for fix in fixes] if _diff(fixes) == diff else []
    where = (content.get("check"), content.get("place"), content.get("column"))
    for finding in check_script(script, plan):
        same = (finding.id, f"{finding.path}:{finding.line}", finding.column) == where
        if same and finding.fix is not None and finding.fix.diff == diff:
            return [(Path(finding.path.partition("#cell-")[0]), finding.fix.source)]
    return []


def _file(path: str) -> Path:
    return Path(path.strip()).expanduser()


def _diff(fixes: list[FileFix]) -> str:
    return "".join(fix.diff for fix in fixes)


def _title(fixes: list[FileFix]) -> str:
    ids = sorted({identifier for fix in fixes for identifier in fix.ids})
    files = f" in {len(fixes)} files" if len(fixes) > 1 else ""
    return f"All automatic fixes together{files}: {', '.join(ids)}"


def _nothing(summary: str) -> dict[str, Any]:
    return {"summary": summary, "findings": [], "unresolved": [], "together": None}
