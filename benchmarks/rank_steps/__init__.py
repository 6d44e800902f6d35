"""Trace of one rank of a plan on the full model: peak memory by category, next to the cost model's formulas."""
