"""A copy of the model that is small enough for this machine, trained for a few real steps."""

from __future__ import annotations

from smp_advisor.profiling.scaled.result import Reduction, ScaledRun
from smp_advisor.profiling.scaled.run import run

__all__ = ["Reduction", "ScaledRun", "run"]
