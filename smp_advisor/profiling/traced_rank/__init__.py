"""Trace of one rank of a plan on the full model: peak memory by category, next to the cost model's formulas."""

from __future__ import annotations

from smp_advisor.profiling.traced_rank.run import CategoryMemory, TracedRank, trace_rank

__all__ = ["CategoryMemory", "TracedRank", "trace_rank"]
