"""Runs the user's script under the contract of a SageMaker training container."""

from __future__ import annotations

from smp_advisor.profiling.local_run.run import LocalRun, losses_in, run, run_settings

__all__ = ["LocalRun", "losses_in", "run", "run_settings"]
