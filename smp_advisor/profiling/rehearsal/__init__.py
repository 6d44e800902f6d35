"""Rehearsal of a plan: the scaled copy on a few local processes with PyTorch's own parallelism."""

from __future__ import annotations

from smp_advisor.profiling.rehearsal.result import Degrees, Rehearsal
from smp_advisor.profiling.rehearsal.run import run

__all__ = ["Degrees", "Rehearsal", "run"]
