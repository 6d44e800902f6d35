"""What the widget's script panel shows and writes: a checked file and the fixes clicked, as plain data."""

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
    """Check a script by its path: a summary, the findings with their fixes, and what could not be followed.

    What cannot be checked is said in the summary, one sentence.
    """
    from smp_advisor.scripts import check_script, plan_fixes

    if not path.strip():
        return _nothing("Give the path of a training script, for example train.py.")
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
        "unresolved": [f"{one.path}:{one.line} {one.what}" for one in report.unresolved],
        "together": {"title": _title(fixes), "diff": _diff(fixes)} if fixes else None,
    }


def fixed(content: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """Write a fix that the user has looked at and clicked; then what `checked` says, after what was written.

    `content` names the file by `path`, the finding by `check`, `place` and `column` (empty: every fix), what the user
    looked at by `diff`, and whether the file itself changes by `in_place`. Where the fix is another by now, nothing is
    written.
    """
    from smp_advisor.scripts.fixes import write_fixed

    path, in_place = str(content.get("path", "")), content.get("in_place") is True
    try:
        wanted = _wanted(content, plan)
        if not wanted:
            said = "Nothing was written: the file is another than when it was checked. This is what it is now."
        else:
            said = " ".join(str(write_fixed(file, text, in_place=in_place)) for file, text in wanted)
    except AdvisorError as error:
        said = f"Nothing was written: {error}"
    except OSError as error:
        said = f"The file cannot be written ({error.strerror or 'no permission'})."
    after = checked(path, plan)
    return {**after, "summary": f"{said} {after['summary']}"}


def _wanted(content: Mapping[str, Any], plan: Plan) -> list[tuple[Path, str]]:
    """The files to write with their new texts; empty where the diff is not the one that was looked at."""
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
