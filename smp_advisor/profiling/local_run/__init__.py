"""The user's own script under the contract that a SageMaker training container has with it."""

from __future__ import annotations

from smp_advisor.profiling.local_run.docker import Docker, find_docker
from smp_advisor.profiling.local_run.result import LocalRun
from smp_advisor.profiling.local_run.run import planned, run, run_cell

__all__ = ["Docker", "LocalRun", "find_docker", "planned", "run", "run_cell"]
