"""Techniques that are argued without a plan to compare with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.case import Case
    from smp_advisor.guidance.techniques.finding import Finding
    from smp_advisor.guidance.what_if import WhatIf

__all__ = ["Statement"]


@dataclass(frozen=True)
class Statement:
    """What the case alone says of a technique, and a plan to try if there is one."""

    found: Callable[[Case], Finding]
    tried: Callable[[Case], WhatIf | None] | None = None

    def ask(self, case: Case) -> dict[str, WhatIf]:
        """The plan to try."""
        other = self.tried(case) if self.tried else None
        return {} if other is None else {"tried": other}

    def find(self, case: Case, asked: Mapping[str, WhatIf], answers: Mapping[str, Estimate]) -> Finding:
        """The statement, with the plan to try where it can be."""
        finding = self.found(case)
        return replace(finding, alternative=asked["tried"].plan) if "tried" in answers else finding
