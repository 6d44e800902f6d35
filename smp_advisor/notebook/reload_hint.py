"""Saying so when the page may be older than the front end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["HINT", "kernel_started", "labextension_installed", "reload_hint"]

HINT = "smp_advisor was installed after this kernel started: reload the browser page once, so that its front end loads."


def reload_hint() -> str:
    """A sentence for the user, or nothing."""
    installed, started = labextension_installed(Path(sys.prefix)), kernel_started()
    if installed is None or started is None:
        return ""
    return HINT if installed > started else ""


def labextension_installed(prefix: Path) -> float | None:
    """When the lab extension of an environment was written, in seconds since the epoch."""
    try:
        return (prefix / "share/jupyter/labextensions/smp-advisor/package.json").stat().st_mtime
    except OSError:
        return None


def kernel_started() -> float | None:
    """When this process started, in seconds since the epoch; None where nothing says."""
    try:
        import psutil  # comes with ipykernel
    except ImportError:
        return None
    return float(psutil.Process(os.getpid()).create_time())
