"""Estimates for all values of each control while the others are fixed, shown before the kernel answers."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from smp_advisor.advice.live.controls import controls
from smp_advisor.advice.live.settings import moved_settings, plan_of, settings_of, with_job, with_labels
from smp_advisor.costs import estimate, estimate_many
from smp_advisor.errors import AdvisorError
from smp_advisor.notebook.view_state import snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.advice import Advice
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.library import Settings
    from smp_advisor.libraries.plan import Plan

__all__ = ["look_ahead"]


def look_ahead(advice: Advice, base: Settings) -> dict[str, Any]:
    """Table of all moves from `base`: for each control, a snapshot or a problem for each of its values."""
    table: dict[str, list[dict[str, Any]]] = {}
    candidates: list[tuple[str, int, Settings, Advice, Plan]] = []
    for control in controls(advice, base):
        entries: list[dict[str, Any]] = []
        for position, value in enumerate(control.values):
            settings = moved_settings(advice, base, control.name, value)
            entries.append({"settings": settings})
            try:
                moved = with_job(advice, settings)
                plan = plan_of(moved, settings)
            except AdvisorError as error:
                entries[-1]["problem"] = with_labels(advice.plan.library, str(error))
            else:
                # The plan decides the effective settings: without a pipeline, its schedule has no effect.
                candidates.append((control.name, position, _effective(settings, moved, plan), moved, plan))
        table[control.name] = entries
    results: list[Estimate | AdvisorError] = []
    for _, group in groupby(candidates, key=lambda candidate: id(candidate[3])):
        same_job = list(group)
        results += _estimates(same_job[0][3], [candidate[-1] for candidate in same_job])
    for (name, position, settings, moved, plan), result in zip(candidates, results, strict=True):
        if isinstance(result, AdvisorError):
            table[name][position]["problem"] = with_labels(advice.plan.library, str(result))
        else:
            table[name][position] = snapshot(moved, settings, plan, result)
    return {"base": base, "by": table}


def _effective(settings: Settings, advice: Advice, plan: Plan) -> Settings:
    return {**settings, **settings_of(plan, advice.job)}


def _estimates(advice: Advice, plans: Sequence[Plan]) -> list[Estimate | AdvisorError]:
    """All at once; one by one only if a plan does not suit the cluster, the model or the job."""
    try:
        return [*estimate_many(advice.model, advice.cluster, advice.job, plans)]
    except AdvisorError:
        return [_estimate(advice, plan) for plan in plans]


def _estimate(advice: Advice, plan: Plan) -> Estimate | AdvisorError:
    try:
        return estimate(advice.model, advice.cluster, advice.job, plan)
    except AdvisorError as error:
        return error
