"""The checks' texts: one data file for the checker, its documentation and SARIF's rules."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smp_advisor.findings.finding import Severity

__all__ = ["CheckText", "Section", "catalogue", "estimator_page", "estimator_sections", "sections"]


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
    """Every check of a script, by library, in the order of the ids."""
    return _sections(_data("scripts.toml"))


@lru_cache(maxsize=1)
def estimator_sections() -> tuple[Section, ...]:
    """The checks of an estimator, which `smp_advisor.estimators` makes."""
    own = _data("estimators.toml")
    return _sections({**own, "pages": _data("scripts.toml")["pages"] | own["pages"]})


def estimator_page(identifier: str, library: str | None) -> tuple[str, str]:
    """Title and address of the page that documents an estimator's check for a library."""
    own = _data("estimators.toml")
    key = own["by_library"].get(library, {}).get(identifier)
    if key is None:
        return catalogue()[identifier].source_title, catalogue()[identifier].source_url
    page = (_data("scripts.toml")["pages"] | own["pages"])[key]
    return page["title"], page["url"]


@lru_cache(maxsize=1)
def catalogue() -> dict[str, CheckText]:
    """Every check by its id."""
    return {check.id: check for section in (*sections(), *estimator_sections()) for check in section.checks}


@lru_cache(maxsize=2)
def _data(name: str) -> dict[str, Any]:
    return tomllib.loads(files("smp_advisor.findings").joinpath(f"data/{name}").read_text("utf-8"))


def _sections(data: dict[str, Any]) -> tuple[Section, ...]:
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
