"""What the widget's script panel shows: a check of a file, as plain data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError

if TYPE_CHECKING:
    from smp_advisor.library.plan import Plan

__all__ = ["checked"]

_SHOWN = ("id", "severity", "column", "text", "message", "consequence", "remedy", "source_title", "source_url")


def checked(path: str, plan: Plan) -> dict[str, Any]:
    """Check a script by its path: a summary, the findings and what could not be followed.

    What cannot be checked is said in the summary, one sentence.
    """
    from smp_advisor.scripts import check_script

    if not path.strip():
        return _nothing("Give the path of a training script, for example train.py.")
    try:
        report = check_script(Path(path.strip()).expanduser(), plan)
    except AdvisorError as error:
        return _nothing(str(error))
    counts = {severity: len(report.of(severity)) for severity in ("error", "warning", "info")}
    said = ", ".join(f"{count} {severity}{'s' if count > 1 else ''}" for severity, count in counts.items() if count)
    return {
        "summary": f"{path.strip()}, against this plan: {said or 'nothing found'}.",
        "findings": [
            {"place": f"{one.path}:{one.line}", **{name: getattr(one, name) for name in _SHOWN}} for one in report
        ],
        "unresolved": [f"{one.path}:{one.line} {one.what}" for one in report.unresolved],
    }


def _nothing(summary: str) -> dict[str, Any]:
    return {"summary": summary, "findings": [], "unresolved": []}
