"""The pages of checks: the rules of the checker with a row for each check, and a page for each kind of script."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.review.findings.catalog import Check, Section, check_markdown, sections

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["checks_page", "page_of", "section_page"]

_DATA = Path(__file__).parent


def checks_page() -> str:
    """The page of all checks as Markdown: the rules of the checker, and a row for each check."""
    parts = [(_DATA / "introduction.md").read_text("utf-8")]
    for section in sections():
        parts.append(f"## {section.name}\n\nApplies {section.applies}.\n")
        parts.append("| check | severity | defect | fix |\n| --- | --- | --- | --- |")
        parts += [_row(check, section) for check in section.checks]
        parts.append("")
    return "\n".join([*parts, _published()])


def page_of(section: Section) -> str:
    """Address of the page of a section's checks from ``docs``."""
    return f"checks/{re.sub(r'[^a-z0-9]+', '_', section.name.lower()).strip('_')}.md"


def section_page(section: Section) -> str:
    """The page of a section as Markdown, each check with its texts, examples, source, and why it stays."""
    marks = "<!-- Written by `make pages` from smp_advisor/review/findings/data. -->"
    parts = [f"# {section.name}\n\n{marks}\n\nApplies {section.applies}. [All checks](../checks.md)\n"]
    parts += [
        f"## {check.id}\n\n{check.title}\n\n{check_markdown(check)}\n{_found(check)}\n" for check in section.checks
    ]
    return "\n".join(parts)


def _found(check: Check) -> str:
    confirmed = tomllib.loads((_DATA / "published.toml").read_text("utf-8"))["found"]
    count = f"True findings in [published scripts](../checks.md#on-published-scripts): {confirmed.get(check.id, 0)}."
    if check.id in confirmed:
        return count
    return f"{count} The check stays because its rule is documented."


def _row(check: Check, section: Section) -> str:
    title = check.title.replace("|", "\\|")
    link = f"[{check.id}]({page_of(section)}#{check.id.lower()})"
    return f"| {link} | {check.severity} | {title} | {'yes' if check.fix else ''} |"


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
