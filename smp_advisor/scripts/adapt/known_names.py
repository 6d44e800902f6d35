"""Names of PyTorch and transformers that the steps recognize, read from their data file."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

__all__ = ["known_names"]


@cache
def _table() -> dict[str, list[str]]:
    return tomllib.loads((files("smp_advisor.scripts.adapt") / "data" / "names.toml").read_text(encoding="utf-8"))


def known_names(group: str) -> tuple[str, ...]:
    """Names of a group in ``data/names.toml``."""
    return tuple(_table()[group])
