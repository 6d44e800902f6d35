"""Runs of training jobs: why they fail."""

from smp_advisor.runs.failures import Failure, read_failure

__all__ = ["Failure", "read_failure"]
