"""Runs of the user: starting, watching, failures, causes of a deviation, and calibration with what they measured."""

from smp_advisor.runs.failures import Failure, read_failure
from smp_advisor.runs.measure import measure, measured_run, read_run
from smp_advisor.runs.probes import Probe, best_probe

__all__ = [
    "Failure",
    "Probe",
    "best_probe",
    "measure",
    "measured_run",
    "read_failure",
    "read_run",
]
