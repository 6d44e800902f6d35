"""Calibration with the user's own runs: readers of logs, what they measured, and what the cost model learned."""

from smp_advisor.runs.effect import Probe, Summary, best_probe, summary
from smp_advisor.runs.measure import measure, measured_run, read_run

__all__ = ["Probe", "Summary", "best_probe", "measure", "measured_run", "read_run", "summary"]
