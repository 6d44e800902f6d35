"""Settings of a training script that change its memory, from their dated table."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TrainingSetting", "training_settings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSetting:
    """One field of `Job` with its values."""

    name: str
    title: str
    """Label."""
    doc: str
    """Purpose and cost."""
    values: Mapping[str, str]
    """Effect of each value, with the default first; empty for a flag."""
    source: str
    date: str
    phrase: str = ""
    """The default, as a phrase; empty for a flag."""

    @property
    def default(self) -> str | bool:
        """Value of a job that does not set it."""
        return next(iter(self.values), False)

    @property
    def help(self) -> str:
        """Tooltip: purpose, cost and values."""
        return " ".join([self.doc, *(f"{value}: {effect}." for value, effect in self.values.items())])


@cache
def training_settings() -> Mapping[str, TrainingSetting]:
    """Every setting by the name of its field."""
    text = (files("smp_advisor.workload") / "data" / "training_settings.toml").read_text(encoding="utf-8")
    settings = [TrainingSetting(**{"values": {}} | entry) for entry in tomllib.loads(text)["setting"]]
    return MappingProxyType({setting.name: setting for setting in settings})
