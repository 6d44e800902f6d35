"""Hint to reload a browser page that may be older than the installed front end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["HINT", "kernel_started", "labextension_installed", "reload_hint"]

HINT = "smp_advisor was installed after this kernel started: reload the browser page once to load its front end."


def reload_hint() -> str:
    """Hint for the user; empty if no reload is needed."""
    installed, started = labextension_installed(Path(sys.prefix)), kernel_started()
    if installed is None or started is None:
        return ""
    return HINT if installed > started else ""


def labextension_installed(prefix: Path) -> float | None:
    """Time when the lab extension was installed in an environment, seconds since the epoch; None without one."""
    try:
        return (prefix / "share/jupyter/labextensions/smp-advisor/package.json").stat().st_mtime
    except OSError:
        return None


def kernel_started() -> float | None:
    """Time when this process started, seconds since the epoch; None if unknown."""
    try:
        import psutil  # comes with ipykernel
    except ImportError:
        return None
    return float(psutil.Process(os.getpid()).create_time())
