"""Profiling of a model: a full-size trace, a scaled copy, and whether its batch may be divided."""

from __future__ import annotations

from smp_advisor.profiling.entry import profile
from smp_advisor.profiling.result import Profile

__all__ = ["Profile", "profile"]
