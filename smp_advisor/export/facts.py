"""Limits and options of a training job, read from their data file."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["launch_facts"]


@cache
def launch_facts() -> dict[str, Any]:
    """Limits and options of a training job (`data/launch.toml`)."""
    return tomllib.loads((files("smp_advisor.export") / "data" / "launch.toml").read_text(encoding="utf-8"))
