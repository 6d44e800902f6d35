"""Runs arbitrary code in a child process that cannot harm the kernel."""

from __future__ import annotations

from smp_advisor.sandbox.isolated import ProgramEnd, run_isolated, run_program, share_interpreter
from smp_advisor.sandbox.limits import GUARD_SECONDS, Limits
from smp_advisor.sandbox.supervisor import progress

__all__ = ["GUARD_SECONDS", "Limits", "ProgramEnd", "progress", "run_isolated", "run_program", "share_interpreter"]
