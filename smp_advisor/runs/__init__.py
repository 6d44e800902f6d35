"""Runs of the user: starting, watching, causes of a deviation, and calibration with what they measured."""

from smp_advisor.runs.effect import Probe, Summary, best_probe, summary
from smp_advisor.runs.measure import measure, measured_run, read_run

__all__ = ["Probe", "Summary", "best_probe", "measure", "measured_run", "read_run", "summary"]
