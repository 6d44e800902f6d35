"""The checks' texts: one data file for the checker, its documentation and SARIF's rules."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smp_advisor.scripts.finding import Severity

__all__ = ["CheckText", "Section", "catalogue", "sections"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckText:
    """What a check says."""

    id: str
    severity: Severity
    title: str
    """The defect in a few words."""
    message: str
    """What is wrong at the place found; fields in braces are filled in by the check."""
    consequence: str
    remedy: str
    source_title: str
    source_url: str
    fix: str = ""
    """What the automatic fix does; empty where there is none."""
    needs: str = ""
    """Which settings must be known for it to look at all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Checks of one library."""

    name: str
    applies: str
    checks: tuple[CheckText, ...]


@lru_cache(maxsize=1)
def sections() -> tuple[Section, ...]:
    """Every check, by library, in the order of the ids."""
    data = tomllib.loads(files("smp_advisor.scripts").joinpath("data/checks.toml").read_text("utf-8"))
    pages = data["pages"]
    return tuple(
        Section(
            name=section["name"],
            applies=section["applies"],
            checks=tuple(
                CheckText(
                    **{key: value for key, value in check.items() if key != "source"},
                    source_title=pages[check["source"]]["title"],
                    source_url=pages[check["source"]]["url"],
                )
                for check in section["check"]
            ),
        )
        for section in data["section"]
    )


@lru_cache(maxsize=1)
def catalogue() -> dict[str, CheckText]:
    """Every check by its id."""
    return {check.id: check for section in sections() for check in section.checks}
