"""Runs the user's script under the contract of a SageMaker training container."""

from __future__ import annotations

from smp_advisor.profiling.local_run.run import Docker, LocalRun, find_docker, losses_in, run, run_cell, run_settings

__all__ = ["Docker", "LocalRun", "find_docker", "losses_in", "run", "run_cell", "run_settings"]
