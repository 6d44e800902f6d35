"""Builders of a model from a configuration, one module per form of model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.workload.model import Model
    from smp_advisor.workload.settings import Settings

__all__ = ["build"]


def build(settings: Settings) -> Model:
    """Build the model that a configuration describes."""
    module = import_module(f"smp_advisor.workload.families.{settings.family.builder}")
    return cast("Callable[[Settings], Model]", module.build)(settings)
