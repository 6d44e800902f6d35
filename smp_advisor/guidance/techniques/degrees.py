"""Tensor, context and expert parallelism of SMP v2, and partitions of TensorFlow: degrees that are on or off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.guidance.techniques.conclusion import Conclusion, why_not_used, why_used
from smp_advisor.guidance.what_if import vary, without
from smp_advisor.libraries.library import supported_families
from smp_advisor.wording import figures, listed, plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.planned_run import PlannedRun
    from smp_advisor.guidance.what_if import WhatIf

__all__ = ["Degree"]


@dataclass(frozen=True, kw_only=True)
class Degree:
    """A degree of parallelism, compared with 1 if it is used and with its smallest useful value otherwise."""

    key: str
    """Field of the plan."""
    technique: str = ""
    """Technique for which the library lists model families; empty if it takes any family."""

    def comparisons(self, run: PlannedRun) -> dict[str, WhatIf]:
        """The plan without it if it is used, with it otherwise."""
        if self._obstacle(run):
            return {}
        if getattr(run.plan, self.key) > 1:
            return {"1": without(run, **{self.key: 1})}
        smallest = next((degree for degree in (2, 4, 8, 3, 5, 7) if run.cluster.gpus % degree == 0), 2)
        return {str(smallest): self._with(run, smallest)}

    def _with(self, run: PlannedRun, degree: int) -> WhatIf:
        changes: dict[str, Any] = {self.key: degree}
        return vary(run, **changes)

    def conclude(
        self, run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]
    ) -> Conclusion:
        """Compare the degree with none, or none with the degree."""
        obstacle = self._obstacle(run)
        if obstacle:
            return Conclusion(decision="not possible", because=obstacle)
        degree = getattr(run.plan, self.key)
        ((value, comparison),) = comparisons.items()
        estimate = estimates.get(value)
        alternative = comparison.plan if estimate else None
        if degree > 1:
            return Conclusion(
                decision="used",
                because=f"{self._placement(run, degree)} {why_used(run, comparison, estimate)}",
                figures=figures(run.estimate, estimate),
                alternative=alternative,
            )
        return Conclusion(
            decision="not used",
            because=why_not_used(run, comparison, estimate, name=f"{self.key}={value}"),
            brief=f"There is no such plan here: {comparison.obstacle}" if estimate is None else "",
            figures=figures(estimate, run.estimate),
            alternative=alternative,
        )

    def _placement(self, run: PlannedRun, degree: int) -> str:
        node = run.cluster.gpus_per_node
        inside = degree <= node and node % degree == 0
        place = f"inside a node of {node} GPUs" if inside else f"across nodes of {node} GPUs, over the network"
        return f"{self.key}={degree} runs {place}."

    def _obstacle(self, run: PlannedRun) -> str:
        """Why the technique cannot be used at all; empty if it can."""
        if self.key == "expert_parallel_degree" and run.model.shape.experts == 1:
            return "The model has no experts."
        if self.key == "partitions" and run.cluster.gpus == 1:
            return "A single GPU holds all layers."
        if not self.technique:
            return ""
        families = supported_families(self.technique, run.plan.library)
        if run.model.family in families:
            return ""
        name = self.technique.replace("_", " ").replace("parallel", "parallelism")
        return (
            f"The library has {name} for the {plural(len(families), 'family', 'families')} {listed(families)} only, not"
            f" for {run.model.family}."
        )
