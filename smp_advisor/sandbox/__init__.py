"""Runs arbitrary code in a child process that cannot harm the kernel."""

from __future__ import annotations

from smp_advisor.sandbox.isolated import run_isolated, share_interpreter
from smp_advisor.sandbox.limits import GUARD_SECONDS, Limits
from smp_advisor.sandbox.supervisor import progress

__all__ = ["GUARD_SECONDS", "Limits", "progress", "run_isolated", "share_interpreter"]
