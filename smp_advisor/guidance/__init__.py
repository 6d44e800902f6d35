"""Reasons for a plan: the ordered best practices, AWS's reference configurations, pitfalls."""

from smp_advisor.guidance.choice import (
    batch_note,
    batch_reason,
    certainty,
    certainty_in_short,
    defaults,
    low_utilisation,
    requested,
    why_this_plan,
)
from smp_advisor.guidance.explanation import explain
from smp_advisor.guidance.ladder import Ladder, Rung
from smp_advisor.guidance.model_changes import model_changes
from smp_advisor.guidance.pitfalls import downsizing, pitfalls
from smp_advisor.guidance.practices import Difference, Pitfall, Reference, Step
from smp_advisor.guidance.rank_map import RankTable
from smp_advisor.guidance.reference import (
    Extrapolation,
    ReferenceRow,
    Trial,
    extrapolate,
    nearest_reference,
    reference_rows,
)

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
    "batch_note",
    "batch_reason",
    "certainty",
    "certainty_in_short",
    "defaults",
    "downsizing",
    "explain",
    "extrapolate",
    "low_utilisation",
    "model_changes",
    "nearest_reference",
    "pitfalls",
    "reference_rows",
    "requested",
    "why_this_plan",
]
