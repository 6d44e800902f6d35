"""The pages of checks: the rules of the checker, a row for each check, and a page for each."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.findings.catalog import Check, check_markdown, sections

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["check_page", "checks_page"]

_DATA = Path(__file__).parent


def checks_page() -> str:
    """The page of all checks as Markdown: the rules of the checker, and a row for each check."""
    parts = [(_DATA / "introduction.md").read_text("utf-8")]
    for section in sections():
        parts.append(f"## {section.name}\n\nApplies {section.applies}.\n")
        parts.append("| check | severity | defect | fix |\n| --- | --- | --- | --- |")
        parts += [_row(check) for check in section.checks]
        parts.append("")
    return "\n".join([*parts, _published()])


def check_page(check: Check) -> str:
    """The page of one check as Markdown, with the reason for a check that found nothing in published scripts."""
    marks = "<!-- Written by `make pages` from smp_advisor/findings/data. -->"
    confirmed = tomllib.loads((_DATA / "published.toml").read_text("utf-8"))["found"]
    count = f"True findings in [published scripts](../checks.md#on-published-scripts): {confirmed.get(check.id, 0)}."
    why = (
        ""
        if check.id in confirmed
        else f" The check stays because its rule is documented: [{check.source[0]}]({check.source[1]})."
    )
    head = f"# {check.id}: {check.title}\n\n{marks}"
    return f"{head}\n\n{check_markdown(check)}\n{count}{why}\n\n[All checks](../checks.md)\n"


def _row(check: Check) -> str:
    title = check.title.replace("|", "\\|")
    return f"| [{check.id}](checks/{check.id}.md) | {check.severity} | {title} | {'yes' if check.fix else ''} |"


def _published() -> str:
    data: dict[str, Any] = tomllib.loads((_DATA / "published.toml").read_text("utf-8"))
    rows = [
        "## On published scripts\n",
        f"{data['about']}\n",
        (
            f"- Checked {data['date']}: {data['files']} different files of {data['repository']}, at"
            f" {len(data['revisions'])} revisions: {', '.join(data['revisions'])}."
        ),
        (
            f"- Errors reported: {_places(data['error'])} places."
            f" Not real: {_places(error for error in data['error'] if not error['real'])}."
        ),
        f"- Warnings reported: {_places(data['warning'])} places.\n",
        "| finding | where | judged |",
        "| --- | --- | --- |",
    ]
    for severity in ("error", "warning"):
        rows += [f"| {severity} {entry['id']} | {entry['where']} | {entry['judged']} |" for entry in data[severity]]
    return "\n".join(rows) + "\n"


def _places(entries: Iterable[dict[str, Any]]) -> int:
    return sum(entry["places"] for entry in entries)
