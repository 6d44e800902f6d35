"""Which checks are reported: ids and prefixes to select and to ignore."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from smp_advisor.errors import AdvisorError
from smp_advisor.findings.catalog import catalog

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smp_advisor.findings.report import Report

__all__ = ["Selection"]


@dataclass(frozen=True, slots=True)
class Selection:
    """Checks by prefixes of their ids: those of `select` (all, if empty) without those of `ignore`.

    The longest prefix decides, so that ``--select SMP109 --ignore SMP1`` reports SMP109.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    @classmethod
    def of(cls, select: Iterable[str], ignore: Iterable[str]) -> Selection:
        """A selection by ids and prefixes in any case; ``ALL`` is every check.

        Raises
        ------
        AdvisorError
            If no check has an id with one of the prefixes.
        """
        return cls(tuple(map(_prefix, select)), tuple(map(_prefix, ignore)))

    def has(self, identifier: str) -> bool:
        """Whether the check is reported."""
        selected = max((len(prefix) for prefix in self.select if identifier.startswith(prefix)), default=-1)
        ignored = max((len(prefix) for prefix in self.ignore if identifier.startswith(prefix)), default=-1)
        return selected > ignored if self.select else ignored < 0

    @property
    def ids(self) -> frozenset[str]:
        """Ids of the reported checks."""
        return frozenset(filter(self.has, catalog()))

    def applied(self, report: Report) -> Report:
        """The report with the findings of the reported checks."""
        return replace(report, findings=tuple(finding for finding in report.findings if self.has(finding.id)))


def _prefix(text: str) -> str:
    prefix = "" if text.upper() == "ALL" else text.upper()
    if not any(identifier.startswith(prefix) for identifier in catalog()):
        near = difflib.get_close_matches(prefix, catalog(), 1)
        hint = f"did you mean {near[0]}?" if near else "docs/checks.md lists all checks."
        raise AdvisorError(f"No check has an id that starts with {text!r}: {hint}")
    return prefix
