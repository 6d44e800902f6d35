"""A list of findings, shown as text, HTML, JSON or SARIF."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from smp_advisor.findings.coverage import Coverage
    from smp_advisor.findings.finding import Finding, Severity, Unresolved

__all__ = ["Report"]


@dataclass(frozen=True, slots=True, repr=False)
class Report(Sequence["Finding"]):
    """Findings in the order of the file, and the code that could not be followed (`unresolved`)."""

    findings: tuple[Finding, ...]
    unresolved: tuple[Unresolved, ...]
    path: str
    coverage: Coverage | None = field(default=None, kw_only=True)
    """Parts of the script that the check saw, and its assumptions."""

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Finding]: ...
    def __getitem__(self, index: int | slice) -> Finding | Sequence[Finding]:
        return self.findings[index]

    def __len__(self) -> int:
        return len(self.findings)

    @property
    def introduction(self) -> list[str]:
        """Lines above the findings: the configuration that was read."""
        return []

    @property
    def diff(self) -> str:
        """Unified diff from the text to the corrected text; empty if nothing changes."""
        return ""

    @property
    def outcome(self) -> list[str]:
        """Lines below the diff: the configuration in the corrected text."""
        return []

    @property
    def totals(self) -> str:
        """The number of findings of each severity: "1 error, 2 warnings"; empty without findings."""
        words: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "note"}
        numbers = [(len(self.of(severity)), word) for severity, word in words.items()]
        return ", ".join(f"{count} {word}{'s' if count > 1 else ''}" for count, word in numbers if count)

    def of(self, severity: Severity) -> list[Finding]:
        """The findings of one severity."""
        return [finding for finding in self.findings if finding.severity == severity]

    def __str__(self) -> str:
        from smp_advisor.findings.text import as_text

        return as_text(self)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from smp_advisor.findings.html import as_html

        return as_html(self)

    def to_json(self) -> str:
        """The findings and the unresolved code as JSON."""
        data: dict[str, Any] = {
            "path": self.path,
            "findings": [finding.plain() for finding in self.findings],
            "unresolved": [asdict(note) for note in self.unresolved],
        }
        if self.coverage is not None:
            data["coverage"] = self.coverage.plain()
        return json.dumps(data, indent=2, ensure_ascii=False)

    def to_sarif(self) -> str:
        """The findings in SARIF 2.1.0, for code hosts and editors."""
        from smp_advisor.findings.sarif import as_sarif

        return json.dumps(as_sarif(self), indent=2, ensure_ascii=False)
