"""Profiling of a model: a full-size trace, a scaled copy, a local run of the script, a rehearsal of the plan."""

from __future__ import annotations

from smp_advisor.profiling.entry import profile
from smp_advisor.profiling.result import Profile

__all__ = ["Profile", "profile"]
