"""Fields of a transformers configuration by the kind of dimension they describe."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["PARTS", "count_of", "names_of", "own", "values_of"]

PARTS = ("text_config", "vision_config", "encoder", "decoder")
"""Fields with the configurations of parts of a model."""


@cache
def _names() -> dict[str, list[str]]:
    text = files("smp_advisor.profiling.scaled").joinpath("dimensions.toml").read_text(encoding="utf-8")
    names: dict[str, list[str]] = tomllib.loads(text)
    return names


def names_of(kind: str) -> list[str]:
    """Names of the fields of a kind, as in ``dimensions.toml``."""
    return _names()[kind]


def own(config: Any, name: str) -> Any:
    """Value of the configuration's own field; aliases of other fields are ignored."""
    return vars(config).get(name)


def count_of(config: Any, name: str) -> int | None:
    """Value of a field that is a positive integer; None if it is none."""
    value = own(config, name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def values_of(config: Any, kind: str) -> list[int]:
    """Positive integers among the fields of a kind."""
    return [value for name in names_of(kind) if (value := count_of(config, name))]
