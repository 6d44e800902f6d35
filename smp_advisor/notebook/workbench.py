"""The controls' state, apart from any widget: apply a move, refuse what cannot be, say what it did."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from smp_advisor.costs import estimate
from smp_advisor.errors import AdvisorError, PlanError
from smp_advisor.notebook.moves import describe
from smp_advisor.notebook.settings import moved_settings, names_of, plan_of, settings_of
from smp_advisor.notebook.view_state import moment
from smp_advisor.notebook.words import labels_of, rows_of

if TYPE_CHECKING:
    from smp_advisor.advice import Advice
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.control_codec import Setting, Settings
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.notebook.view_state import Moment

__all__ = ["Bench", "apply", "move", "recommended", "require"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
    """Where the controls stand."""

    advice: Advice
    settings: Settings
    """As the controls show them, whether they can be combined or not."""
    plan: Plan
    """Of the settings; while they cannot be combined, the last that could."""
    estimate: Estimate
    moved: str = ""
    problem: str = ""
    """Why the settings cannot be combined."""
    words: str = ""
    """What the last move did."""

    @property
    def moment(self) -> Moment:
        """What a view shows of the plan."""
        return moment(self.advice, settings_of(self.plan), self.plan, self.estimate)


def recommended(advice: Advice) -> Bench:
    """The controls as the advice has them."""
    return Bench(advice=advice, settings=settings_of(advice.plan), plan=advice.plan, estimate=advice.estimate)


def move(bench: Bench, name: str, value: Setting) -> Bench:
    """Move one control; what must follow follows."""
    names = names_of(bench.advice.plan.library)
    if name not in names:
        raise PlanError(f"The advisor has no control {name!r}; it has {', '.join(names)}.")
    return apply(bench, moved_settings(bench.advice, bench.settings, name, value), moved=name)


def apply(bench: Bench, settings: Settings, *, moved: str = "") -> Bench:
    """Set all controls at once, exactly as given."""
    try:
        plan = plan_of(bench.advice, settings)
        value = bench.advice.estimate if plan == bench.advice.plan else _estimate(bench.advice, plan)
    except AdvisorError as error:
        return dataclasses.replace(bench, settings=settings, moved=moved, problem=str(error), words="")
    after = dataclasses.replace(
        bench, settings=settings_of(plan), plan=plan, estimate=value, moved=moved, problem="", words=""
    )
    usable = bench.estimate.usable_gpu_memory_gib
    library = bench.advice.plan.library
    rows, label = list(rows_of(library).values()), labels_of(library).get(moved, "")
    said = describe(rows, bench.moment, after.moment, moved=label, usable_gib=usable)
    return dataclasses.replace(after, words=said)


def require(bench: Bench) -> Bench:
    """The bench, if its settings can be combined.

    Raises
    ------
    PlanError
        They cannot: what to change.
    """
    if bench.problem:
        raise PlanError(bench.problem)
    return bench


def _estimate(advice: Advice, plan: Plan) -> Estimate:
    return estimate(advice.model, advice.cluster, advice.job, plan)
