"""What a model measures: traced in full, run as a scaled copy, run as a script, rehearsed as planned."""

from __future__ import annotations

from smp_advisor.profiling.entry import profile
from smp_advisor.profiling.measured import Profile

__all__ = ["Profile", "profile"]
