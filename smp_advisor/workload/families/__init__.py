"""Builders of a model from a configuration, one module a family."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.workload.model import Model
    from smp_advisor.workload.settings import Settings

__all__ = ["build"]

# Families that differ only in values share a module.
_MODULES = {"mistral": "llama", "mixtral": "llama", "roberta": "bert"}


def build(settings: Settings) -> Model:
    """Count the model that a configuration describes."""
    model_type = settings.family.model_type
    module = import_module(f"smp_advisor.workload.families.{_MODULES.get(model_type, model_type)}")
    return cast("Callable[[Settings], Model]", module.build)(settings)
