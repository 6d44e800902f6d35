"""Reasons for a plan: the ordered best practices, AWS's reference configurations, pitfalls."""

from smp_advisor.guidance.aws_reference import ReferenceRow, reference_rows
from smp_advisor.guidance.explanation import explain
from smp_advisor.guidance.extrapolation import Extrapolation, Trial, extrapolate
from smp_advisor.guidance.half_cluster import downsizing
from smp_advisor.guidance.ladder import Ladder, Rung
from smp_advisor.guidance.nearest import nearest_reference
from smp_advisor.guidance.notes import instance_note
from smp_advisor.guidance.pitfalls import pitfalls
from smp_advisor.guidance.rank_map import RankTable
from smp_advisor.guidance.step import Difference, Pitfall, Reference, Step

__all__ = [
    "Difference",
    "Extrapolation",
    "Ladder",
    "Pitfall",
    "RankTable",
    "Reference",
    "ReferenceRow",
    "Rung",
    "Step",
    "Trial",
    "downsizing",
    "explain",
    "extrapolate",
    "instance_note",
    "nearest_reference",
    "pitfalls",
    "reference_rows",
]
