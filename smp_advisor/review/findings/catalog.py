"""Texts of all checks, in data/checks: one id is one defect, with its examples."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import unified_diff
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import data_file
from smp_advisor.review.findings.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.review.findings.finding import Severity


_SECTIONS = (
    "every_script",
    "smp_v1_pytorch",
    "smp_v1_tensorflow",
    "smp_v2",
    "fsdp",
    "data_parallel",
    "frameworks",
    "training_compiler",
    "estimators",
)
"""Files in data/checks, in the order of the ids."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One value that a check fills into its texts."""

    means: str
    example: object


@dataclass(frozen=True, kw_only=True, slots=True)
class Wording:
    """Texts of a check, or of one of its variants, with the fields in braces."""

    message: str
    """The defect, in one sentence."""
    consequence: str
    remedy: str
    severity: Severity
    fields: dict[str, Field]

    def filled(self, text: str) -> str:
        """`text` with the example of each field."""
        return text.format_map({name: field.example for name, field in self.fields.items()})


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """Code with the defect, and the same code without it."""

    bad: str
    good: str
    variant: str = ""
    plan: dict[str, Any]
    """Parameters that both are checked with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One defect."""

    id: str
    severity: Severity
    title: str
    """The defect in a few words."""
    consequence: str
    """The effect on the cluster, without fields."""
    remedy: str
    """The correction, without fields."""
    wordings: dict[str, Wording]
    """By variant; of a check without variants, one under the empty name."""
    examples: tuple[Example, ...]
    source: tuple[str, str]
    """Title and address of the page that documents it."""
    source_for: dict[str, tuple[str, str]]
    """Pages by library, if another library's documentation applies."""
    fix: str = ""
    """The change of the automatic fix; empty if there is none."""
    needs: str = ""
    """Settings that must be known for the check to run."""

    def finding(
        self,
        values: Mapping[str, object],
        *,
        variant: str = "",
        severity: Severity | None = None,
        library: str | None = None,
        path: str,
        line: int,
        column: int,
        text: str,
        end: tuple[int, int] | None = None,
    ) -> Finding:
        """Return the finding at a place, with `values` for the fields of the texts; `end` is a line and a column."""
        wording = self.wordings[variant]
        title, url = self.source_for.get(library or "", self.source)
        return Finding(
            id=self.id,
            severity=severity or wording.severity,
            path=path,
            line=line,
            column=column,
            text=text,
            message=wording.message.format_map(values),
            consequence=wording.consequence.format_map(values),
            remedy=wording.remedy.format_map(values),
            source_title=title,
            source_url=url,
            end_line=end[0] if end else None,
            end_column=end[1] if end else None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Checks of one library."""

    name: str
    applies: str
    checks: tuple[Check, ...]


@lru_cache(maxsize=1)
def sections() -> tuple[Section, ...]:
    """Return every check by library, in the order of the ids."""
    pages = {name: (page["title"], page["url"]) for name, page in data_file("review.findings", "pages").items()}
    tables = [data_file("review.findings", f"checks/{name}") for name in _SECTIONS]
    return tuple(
        Section(
            name=table["name"],
            applies=table["applies"],
            checks=tuple(_check(check, pages) for check in table["check"]),
        )
        for table in tables
    )


@lru_cache(maxsize=1)
def catalog() -> dict[str, Check]:
    """Return every check by its id."""
    return {check.id: check for section in sections() for check in section.checks}


def _check(table: dict[str, Any], pages: dict[str, tuple[str, str]]) -> Check:
    return Check(
        **{key: table[key] for key in ("id", "severity", "title", "consequence", "remedy")},
        wordings={variant.get("name", ""): _wording(table, variant) for variant in table.get("variant", ({},))},
        examples=tuple(map(_example, table.get("example", ()))),
        source=pages[table["source"]],
        source_for={library: pages[name] for library, name in table.get("source_for", {}).items()},
        fix=table.get("fix", ""),
        needs=table.get("needs", ""),
    )


def _example(table: dict[str, Any]) -> Example:
    """An example written in full, or as two forms of one place (``at``, else the end) of a script in bases.toml."""
    terms: dict[str, Any] = {key: table[key] for key in ("variant", "plan") if key in table}
    if "base" not in table:
        return Example(**{"plan": {}, **terms, "bad": table["bad"], "good": table["good"]})
    base: str = data_file("review.findings", "bases")[table["base"]].lstrip("\n")
    place = table.get("at", "")
    if place and base.count(place) != 1:
        raise ValueError(f"The base {table['base']} does not have {place!r} once.")
    forms = {form: table.get(form, place) for form in ("bad", "good")}
    texts = {form: base.replace(place, text) if place else base + text.lstrip("\n") for form, text in forms.items()}
    return Example(**{"plan": {}, **terms, **texts})


def _wording(table: dict[str, Any], variant: dict[str, Any]) -> Wording:
    """Return the texts of a variant; what it leaves out is that of the check."""
    fields = table.get("fields", {}) | variant.get("fields", {})
    texts: dict[str, Any] = {
        key: variant.get(key, table.get(key)) for key in ("message", "consequence", "remedy", "severity")
    }
    return Wording(**texts, fields={name: Field(**field) for name, field in fields.items()})


def check_markdown(check: Check) -> str:
    """Message, consequence, remedy, examples and source of one check, for the reports of code hosts."""
    wordings = list(check.wordings.values())
    alone = f" *{wordings[0].filled(wordings[0].message)}*" if len(wordings) == 1 else " One of these messages:\n"
    several = "".join(f"- {_message(check, wording)}\n" for wording in wordings) if len(wordings) > 1 else ""
    notes = [f"Needs: {check.needs}."] if check.needs else []
    notes += [f"Fix: {check.fix}."] if check.fix else []
    notes.append(f"Source: [{check.source[0]}]({check.source[1]}).")
    rows = [
        f"**{check.severity.capitalize()}.**{alone}\n{several}",
        f"{check.consequence} **Instead:** {check.remedy}\n",
        *(_change(example) for example in check.examples[:1]),
        " ".join(notes) + "\n",
    ]
    return "\n".join(rows)


def _message(check: Check, wording: Wording) -> str:
    """Return one of several messages, with what differs from the check."""
    text = f"*{wording.filled(wording.message)}*"
    if wording.severity != check.severity:
        text += f" ({wording.severity})"
    if wording.consequence != check.consequence:
        text += f" {wording.filled(wording.consequence)}"
    return text


def _change(example: Example) -> str:
    """Return an example with its correction, as one difference."""
    plan = ", ".join(f"{name}={value!r}" for name, value in example.plan.items())
    bad, good = (text.strip("\n").splitlines() for text in (example.bad, example.good))
    lines = [line.rstrip() for line in unified_diff(bad, good, lineterm="", n=len(bad))][3:]
    return "\n".join([f"Bad (-){f', with {plan}' if plan else ''}, and good (+):\n", "```diff", *lines, "```\n"])
