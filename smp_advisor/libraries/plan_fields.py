"""Names and defaults of the fields of a library's plans."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from smp_advisor.libraries.registry import get_library

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.libraries.plan import Plan

__all__ = ["plan_defaults", "plan_fields"]


_DEFAULTS: dict[type[Plan], dict[str, Any]] = {}


def plan_defaults(kind: type[Plan]) -> Mapping[str, Any]:
    """Fields of a kind of plan with their defaults."""
    if kind not in _DEFAULTS:
        _DEFAULTS[kind] = {field.name: field.default for field in fields(kind)}
    return _DEFAULTS[kind]


def plan_fields(library: str) -> frozenset[str]:
    """Names of the fields of a library's plans."""
    return frozenset(plan_defaults(get_library(library).plan))
