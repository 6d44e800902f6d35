"""Runs arbitrary code in a child process that cannot harm the kernel."""

from __future__ import annotations

from smp_advisor.profiling.sandbox.channel import progress
from smp_advisor.profiling.sandbox.isolated import run_isolated
from smp_advisor.profiling.sandbox.limits import Limits
from smp_advisor.profiling.sandbox.program import ProgramEnd, run_program

__all__ = ["Limits", "ProgramEnd", "progress", "run_isolated", "run_program"]
