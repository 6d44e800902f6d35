"""``docs/checks.md``: every check, generated from the texts that the checker itself uses.

``python -m smp_advisor.findings.page docs/checks.md`` writes it.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.findings.catalogue import CheckText, estimator_sections, sections

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["checks_page"]

_INTRODUCTION = """\
# Script checks

<!-- Written by `python -m smp_advisor.findings.page docs/checks.md` from smp_advisor/findings/data. -->

`smp_advisor.check_script("train.py", plan)`, `%smp_check train.py`, `%%smp_check` above a cell, or in CI:

```
python -m smp_advisor.scripts train.py --plan plan.json
```

The script is read, never run. The checker follows it in the order in which it would run: through import aliases,
functions, decorators, objects passed between them, and modules beside the script. Which checks apply follows from its
imports and from the plan. A check speaks only of what it can see; what could not be followed is listed instead.

- **error**: the job fails, hangs or trains wrongly. **warning**: memory, time or money wasted. **info**: worth knowing.
- Where an error lies behind an option that is off by default (`if args.fp16:`), it is a warning that names the option;
  conditions without which the script does not train (`if args.do_train:`) are taken to hold. With `hyperparameters`,
  what the job passes to the script (`--hyperparameters job.json`), it is an error or nothing. Options named like a
  parameter of the library have the plan's value, and what that rules out is not reported.
- `# smp: ignore[SMP109] reason` silences a finding on its line, or on the next line of code where it stands alone; over
  several lines of one statement it counts for all of them. Without a reason it is not heeded, and SMP100 says so.
- Exit status of the command: 0 with no errors, 1 with errors (with `--strict`, warnings as well), 2 where the script
  cannot be checked.
- *Fix* marks checks whose defect `--fix` (or `smp_advisor.apply_fixes`) can mend where the place is clear: in the
  script, in the cells of a notebook, and in modules beside it, each file with a diff and a backup of its own. A finding
  whose fix has no safe place says why. `smp_advisor.scripts.plan_fixes` shows the changes without writing them.
- Scripts are read with Python's own `ast`: LibCST, which `adapt_script` writes with, takes 2.8 s to parse 9,700 lines,
  and a whole check of that length takes about one. Fixes change characters at the places `ast` gives, so that comments
  and formatting stay.
"""


def checks_page() -> str:
    """The whole page as Markdown."""
    parts = [_INTRODUCTION]
    for section in (*sections(), *estimator_sections()):
        parts.append(f"## {section.name}\n\nApplies {section.applies}.\n")
        parts += [_check(check) for check in section.checks]
    return "\n".join([*parts, _published()])


def _check(check: CheckText) -> str:
    rows = [
        f"### {check.id}: {check.title}\n",
        f"{check.severity.capitalize()}. *{_shown(check.message)}*\n",
        f"{check.consequence} **Instead:** {check.remedy}\n",
    ]
    notes = [f"Looks where known: {check.needs}."] if check.needs else []
    notes += [f"Fix: {check.fix}."] if check.fix else []
    notes.append(f"Source: [{check.source_title}]({check.source_url}).")
    return "\n".join([*rows, " ".join(notes) + "\n"])


def _shown(message: str) -> str:
    """The message with its placeholders as an ellipsis each."""
    return re.sub(r"\{\w+(:[^{}]*)?\}", "…", message)


def _published() -> str:
    data = tomllib.loads(files("smp_advisor.findings").joinpath("data/published.toml").read_text("utf-8"))
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
        rows += [f"| {severity} {one['id']} | {one['where']} | {one['judged']} |" for one in data[severity]]
    return "\n".join(rows) + "\n"


def _places(found: Iterable[dict[str, Any]]) -> int:
    return sum(one["places"] for one in found)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(checks_page(), encoding="utf-8")
