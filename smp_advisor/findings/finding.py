"""What the script checker reports: one finding a defect, with its place, its consequence and its fix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smp_advisor.reading.source import Unresolved

__all__ = ["Finding", "Fix", "Severity", "Unresolved"]

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """A safe change: the whole file's new text and the diff that leads there; of a notebook, its JSON."""

    description: str
    diff: str
    """Unified diff from the checked text."""
    source: str
    """The file's text with the fix applied."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that will fail, hang, train wrongly or waste money on the cluster."""

    id: str
    """Of the check: ``SMP109``."""
    severity: Severity
    path: str
    """File the finding is in; ``<cell>`` or ``<source>`` for text."""
    line: int
    """From 1."""
    column: int
    """From 1."""
    text: str
    """The line itself."""
    message: str
    """What is wrong here, one sentence."""
    consequence: str
    """What happens on the cluster."""
    remedy: str
    """What to do instead."""
    source_title: str
    source_url: str
    fix: Fix | None = None
    """Where a change is safe."""
    unfixed: str = ""
    """Why there is none here, where the check has one in general."""
