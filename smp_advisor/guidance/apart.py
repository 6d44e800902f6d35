"""How far a case is from a published configuration, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance.wording import percent
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from smp_advisor.guidance.aws_reference import ReferenceRow
    from smp_advisor.guidance.case import Case

__all__ = ["apart"]

_SAME_SIZE = 1.05
"""Ratio up to which two parameter counts are the same size."""


def apart(case: Case, row: ReferenceRow) -> list[str]:
    """Each way in which the case is larger, smaller or other than the row; empty where it is the row's."""
    size = case.model.parameter_count / row.model.parameter_count
    length = case.model.sequence_length(case.job.sequence_length) / row.job.sequence_length
    gpus = case.cluster.gpus / row.cluster.gpus
    parts = []
    if max(size, 1 / size) > _SAME_SIZE:
        parts.append(f"{_ratio(size)} the parameters ({format_count(case.model.parameter_count)})")
    if length != 1:
        parts.append(f"{_ratio(length)} the sequence length")
    if gpus != 1:
        parts.append(f"{_ratio(gpus)} the GPUs ({case.cluster.gpus})")
    if case.cluster.instance != row.cluster.instance:
        parts.append(f"another instance ({case.cluster.instance.name})")
    if case.model.family != row.model.family:
        parts.append(f"another architecture ({case.model.family})")
    return parts


def _ratio(value: float) -> str:
    if value < 1:
        return f"{percent(value)} of"
    return f"{value:.2g} times" if value < 10 else f"{value:,.0f} times"
