"""Deadline and budget of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.errors import JobError
from smp_advisor.workload.counts import parse_amount

if TYPE_CHECKING:
    from smp_advisor.workload.job import Job

__all__ = ["Limits"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The most days and USD of a run. None: no limit."""

    max_days: float | None = None
    max_usd: float | None = None

    @classmethod
    def of(cls, job: Job, *, max_days: object = None, max_usd: object = None) -> Limits:
        """Limits as a user writes them: numbers, or text such as ``250k``.

        Raises
        ------
        AdvisorError
            A limit is no positive number, or the job has no tokens.
        """
        limits = cls(
            max_days=None if max_days is None else parse_amount("max_days", max_days, "30"),
            max_usd=None if max_usd is None else parse_amount("max_usd", max_usd, "250k"),
        )
        if limits and job.tokens is None:
            name = "max_days" if limits.max_days is not None else "max_usd"
            raise JobError(f"{name} needs the tokens of the run: add tokens='300B', for example.")
        return limits

    def __bool__(self) -> bool:
        return self.max_days is not None or self.max_usd is not None

    def allow(self, days: float | None, usd: float | None) -> bool:
        """Whether a run of `days` that costs `usd` is within the limits. Unknown figures are not within a limit."""
        in_time = self.max_days is None or (days is not None and days <= self.max_days)
        return in_time and (self.max_usd is None or (usd is not None and usd <= self.max_usd))

    @property
    def words(self) -> str:
        """The limits as a phrase: ``within 30 days and 250,000 USD``; empty without limits."""
        parts = [
            *([] if self.max_days is None else [f"{self.max_days:g} day{'' if self.max_days == 1 else 's'}"]),
            *([] if self.max_usd is None else [f"{self.max_usd:,.0f} USD"]),
        ]
        return f"within {' and '.join(parts)}" if parts else ""
