"""The plan itself on a few local processes: the scaled copy under PyTorch's own parallelism."""

from __future__ import annotations

from smp_advisor.profiling.rehearsal.degrees import Degrees
from smp_advisor.profiling.rehearsal.result import Rehearsal
from smp_advisor.profiling.rehearsal.run import run

__all__ = ["Degrees", "Rehearsal", "run"]
