"""A model from a live module of a supported family: its configuration, compared with its parameters."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ModelError
from smp_advisor.workload.counts import format_count
from smp_advisor.workload.from_config import model_from_config

if TYPE_CHECKING:
    from smp_advisor.workload.model import Model

__all__ = ["model_from_module"]

_PROFILE = "profile it first, with smp_advisor.profile(module, job), and pass the profile"


def model_from_module(module: Any) -> Model:
    """Model of a module; see `Model.from_module`."""
    if not callable(getattr(module, "parameters", None)):
        raise ModelError(f"A module must be a torch.nn.Module, not {type(module).__name__}.")
    name = type(module).__name__
    config = getattr(module, "config", None)
    if not callable(getattr(config, "to_dict", None)):
        raise ModelError(f"{name} has no transformers configuration: {_PROFILE}.")
    values = {**config.to_dict(), "architectures": [name]}  # type: ignore[union-attr]
    try:
        model = model_from_config(values)
    except ModelError as error:
        raise ModelError(f"{name} belongs to no supported family ({error}): {_PROFILE}.") from None
    # parameters() yields a parameter with two names once.
    counted = sum(parameter.numel() for parameter in module.parameters())
    if counted != model.parameter_count:
        raise ModelError(
            f"{name} has {format_count(counted)} parameters and its configuration describes "
            f"{format_count(model.parameter_count)}. It was changed after construction: {_PROFILE}."
        )
    return dataclasses.replace(model, note=f"{format_count(counted)} parameters counted on your model")
