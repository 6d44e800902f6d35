"""Real training steps of a copy of the model, scaled down to fit on this machine."""

from __future__ import annotations

from smp_advisor.profiling.scaled.result import Reduction, ScaledRun
from smp_advisor.profiling.scaled.run import run

__all__ = ["Reduction", "ScaledRun", "run"]
