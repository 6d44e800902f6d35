"""Techniques that are argued without an estimate of another plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.planned_run import PlannedRun
    from smp_advisor.guidance.techniques.conclusion import Conclusion
    from smp_advisor.guidance.what_if import WhatIf

__all__ = ["Statement"]


@dataclass(frozen=True)
class Statement:
    """A conclusion that follows from the run alone, with a plan to try if there is one."""

    conclusion: Callable[[PlannedRun], Conclusion]
    alternative: Callable[[PlannedRun], WhatIf | None] | None = None

    def comparisons(self, run: PlannedRun) -> dict[str, WhatIf]:
        """The plan to try."""
        plan = self.alternative(run) if self.alternative else None
        return {} if plan is None else {"alternative": plan}

    def conclude(
        self, run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]
    ) -> Conclusion:
        """The conclusion, with the plan to try if it is possible."""
        conclusion = self.conclusion(run)
        if "alternative" not in estimates:
            return conclusion
        return replace(conclusion, alternative=comparisons["alternative"].plan)
