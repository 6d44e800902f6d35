"""``docs/checks.md`` and a page for each check in ``docs/checks``, from the texts that the checkers use."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from smp_advisor.findings.catalog import sections

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smp_advisor.findings.catalog import Check, Wording

__all__ = ["check_markdown", "check_page", "checks_page"]

_INTRODUCTION = """\
# Checks

<!-- Written by `make pages` from smp_advisor/findings/data. -->

To check a training script, use `smp_advisor.check_script("train.py", plan)`, `%smp_check train.py`, `%%smp_check`
above a cell, or in CI:

```
smp-advisor-check train.py --plan plan.json
smp-advisor-check . --format github
```

To check the cell that starts a job, use `smp_advisor.check_estimator(cell)` (see [Estimators](#estimators)).

The command imports nothing from the folder that it runs in. `python -P -m smp_advisor.scripts` is the same command;
without `-P`, Python itself looks for some of its modules, and for `smp_advisor`, in that folder first.

The checker reads the script and never runs it. It follows the script in execution order: through import aliases,
functions, decorators, objects passed between them, and modules next to the script. The script's imports and the plan
determine which checks apply. A check reports only defects that it can see. Code that could not be followed is listed.

- **Error**: the job fails, hangs or trains incorrectly. **Warning**: memory, time or money is wasted. **Info**: worth
  knowing.
- An error behind an option that is off by default (`if args.fp16:`) is a warning that names the option. Conditions
  that training requires (`if args.do_train:`) are assumed to be true. Pass `hyperparameters`, the options that the job
  passes to the script (`--hyperparameters job.json`), to get an error or nothing instead. Options with the name of a
  parameter of the library have the value in the plan. A defect that this value rules out is not reported.
- `# smp: ignore[SMP109] reason` suppresses a finding on its line, or on the next line of code if the comment is on its
  own line. A comment on any line of a statement applies to the statement. A comment without a reason has no effect.
  SMP100 reports such comments, unknown ids, and ids without a finding on the line.
- *Fix* marks checks with an automatic fix (`--fix`, or `smp_advisor.apply_fixes`). Fixes change the script, the cells
  of a notebook and modules next to the script, each file with its own diff and backup. A finding without a safe fix
  gives the reason. `smp_advisor.scripts.plan_fixes` shows the changes without writing them. A file is replaced in one
  step, keeps its permissions, and is unchanged if writing fails. A `train.fixed.py` of yours is never overwritten.
- Scripts are read with Python's `ast`. LibCST, which `adapt_script` writes with, needs 2.8 s to parse 9,700 lines; a
  complete check of that length takes about 1 s. Fixes replace characters at the positions that `ast` reports, so
  comments and formatting stay.

## The command

`smp-advisor-check` takes files, folders, patterns (`'src/**/train*.py'`) and the standard input (`-`, with
`--stdin-filename` for its path). Folders are checked without hidden folders, virtual environments and build outputs.

- A module that a checked script imports is judged where the script calls it, and not alone, unless it has a `__main__`
  block. Each finding is reported once. Functions of modules that train, and that no checked script calls, are listed.
- `--select` and `--ignore` take ids and prefixes: `--select SMP1,STC --ignore SMP135`. The longest prefix decides.
- `--fix` writes all safe fixes; `--diff` prints them and writes nothing.
- `--format` is `text`, `json`, `sarif` (one run with relative paths, end positions, fixes and fingerprints) or `github`
  (annotations of a workflow). `--output FILE` writes the report in one step.
- Exit status: 0 without errors; 1 with errors, with `--strict` also with warnings, with `--diff` if there are changes;
  2 if a script cannot be checked or an option is not valid.
- `--explain SMP109` prints the page of a check.
- Results are kept in the user's cache folder (or in `SMP_ADVISOR_CACHE_DIR`) as JSON, and used again while the version
  of the checker, the settings and all files that a check read or looked for are the same. `--no-cache` switches this
  off.

`[tool.smp_advisor]` of the nearest `pyproject.toml`, up to the top of the repository, sets the defaults of a project.
Options of the command take precedence, and `--no-config` ignores the table. No key writes a file.

```toml
[tool.smp_advisor]
select = ["SMP", "DDP"]
ignore = ["SMP135"]
exclude = ["tests"]
library = "smp-v1"
strict = true
plan = {microbatches = 4, pipeline_parallel_degree = 2} # or a JSON file: "plan.json"
hyperparameters = {fp16 = true} # or a JSON file
```

For pre-commit:

```yaml
repos:
  - repo: ... # the address of this repository
    rev: ... # a tag
    hooks:
      - id: smp-advisor-check
        files: ^training/
```
"""


def checks_page() -> str:
    """The page of all checks as Markdown: the rules of the checker, and a row for each check."""
    parts = [_INTRODUCTION]
    for section in sections():
        parts.append(f"## {section.name}\n\nApplies {section.applies}.\n")
        parts.append("| check | severity | defect | fix |\n| --- | --- | --- | --- |")
        parts += [_row(check) for check in section.checks]
        parts.append("")
    return "\n".join([*parts, _published()])


def check_page(check: Check) -> str:
    """The page of one check as Markdown."""
    marks = "<!-- Written by `make pages` from smp_advisor/findings/data. -->"
    return f"# {check.id}: {check.title}\n\n{marks}\n\n{_check(check)}\n[All checks](../checks.md)\n"


def check_markdown(check: Check) -> str:
    """Message, consequence, remedy, examples and source of one check, for the reports of code hosts."""
    return _check(check)


def _row(check: Check) -> str:
    title = check.title.replace("|", "\\|")
    return f"| [{check.id}](checks/{check.id}.md) | {check.severity} | {title} | {'yes' if check.fix else ''} |"


def _check(check: Check) -> str:
    wordings = list(check.wordings.values())
    alone = f" *{wordings[0].filled(wordings[0].message)}*" if len(wordings) == 1 else " One of these messages:\n"
    several = "".join(f"- {_message(check, wording)}\n" for wording in wordings) if len(wordings) > 1 else ""
    notes = [f"Needs: {check.needs}."] if check.needs else []
    notes += [f"Fix: {check.fix}."] if check.fix else []
    notes.append(f"Source: [{check.source[0]}]({check.source[1]}).")
    rows = [
        f"**{check.severity.capitalize()}.**{alone}\n{several}",
        f"{check.consequence} **Instead:** {check.remedy}\n",
        *(_code(title, code) for title, code in _example(check)),
        " ".join(notes) + "\n",
    ]
    return "\n".join(rows)


def _message(check: Check, wording: Wording) -> str:
    """One of several messages, with what differs from the check."""
    text = f"*{wording.filled(wording.message)}*"
    if wording.severity != check.severity:
        text += f" ({wording.severity})"
    if wording.consequence != check.consequence:
        text += f" {wording.filled(wording.consequence)}"
    return text


def _example(check: Check) -> list[tuple[str, str]]:
    if not check.examples:
        return []
    plan = ", ".join(f"{name}={value!r}" for name, value in check.examples[0].plan.items())
    return [(f"Bad{f', with {plan}' if plan else ''}", check.examples[0].bad), ("Good", check.examples[0].good)]


def _code(title: str, code: str) -> str:
    language = "json" if code.startswith("{") else "yaml" if code.startswith("run:") else "python"
    return f"{title}:\n\n```{language}\n{code.rstrip()}\n```\n"


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
        rows += [f"| {severity} {entry['id']} | {entry['where']} | {entry['judged']} |" for entry in data[severity]]
    return "\n".join(rows) + "\n"


def _places(entries: Iterable[dict[str, Any]]) -> int:
    return sum(entry["places"] for entry in entries)
