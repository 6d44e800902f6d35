"""Tensor, context and expert parallelism of SMP v2, and partitions of TensorFlow: degrees that are on or off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.guidance.techniques.finding import Finding, why_not_used, why_used
from smp_advisor.guidance.what_if import vary
from smp_advisor.guidance.wording import figures, listed, plural
from smp_advisor.libraries.families import supported_families

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.case import Case
    from smp_advisor.guidance.what_if import WhatIf

__all__ = ["Degree"]


@dataclass(frozen=True, kw_only=True)
class Degree:
    """A degree of parallelism, compared with 1 where it is used and with its smallest useful value where not."""

    key: str
    """Field of the plan."""
    technique: str = ""
    """Technique whose families are listed by the library; empty where it takes any."""

    def ask(self, case: Case) -> dict[str, WhatIf]:
        """Without it where it is used; with it where it is not."""
        if self._obstacle(case):
            return {}
        degree = getattr(case.plan, self.key)
        if degree > 1:
            return {"1": self._with(case, 1)}
        other = next((one for one in (2, 4, 8, 3, 5, 7) if case.cluster.gpus % one == 0), 2)
        return {str(other): self._with(case, other)}

    def _with(self, case: Case, degree: int) -> WhatIf:
        changes: dict[str, Any] = {self.key: degree}
        return vary(case, **changes)

    def find(self, case: Case, asked: Mapping[str, WhatIf], answers: Mapping[str, Estimate]) -> Finding:
        """Compare the degree with none, or none with the degree."""
        obstacle = self._obstacle(case)
        if obstacle:
            return Finding(decision="not possible", because=obstacle)
        degree = getattr(case.plan, self.key)
        ((value, question),) = asked.items()
        estimate = answers.get(value)
        if degree > 1:
            across = self._across(case, degree)
            return Finding(
                decision="used",
                because=f"{across} {why_used(case, question, estimate)}",
                figures=figures(case.estimate, estimate),
                alternative=question.plan if estimate else None,
            )
        return Finding(
            decision="not used",
            because=why_not_used(case, question, estimate, name=f"{self.key}={value}"),
            figures=figures(estimate, case.estimate),
            alternative=question.plan if estimate else None,
        )

    def _across(self, case: Case, degree: int) -> str:
        node = case.cluster.gpus_per_node
        inside = degree <= node and node % degree == 0
        where = f"inside a node of {node} GPUs" if inside else f"across nodes of {node} GPUs, over the network"
        return f"{self.key}={degree} runs {where}."

    def _obstacle(self, case: Case) -> str:
        """Why the technique cannot be used at all; empty where it can."""
        if self.key == "expert_parallel_degree" and case.model.shape.experts == 1:
            return "The model has no experts to spread."
        if self.key == "partitions" and case.cluster.gpus == 1:
            return "A single GPU holds all layers."
        if not self.technique:
            return ""
        known = supported_families(self.technique, case.plan.library)
        if case.model.family in known:
            return ""
        word = self.technique.replace("_", " ").replace("parallel", "parallelism")
        return (
            f"The library has {word} for the {plural(len(known), 'family', 'families')} {listed(known)} only, not for"
            f" {case.model.family}."
        )
