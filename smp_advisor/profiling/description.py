"""Models as plain data, from which a fresh interpreter builds them."""

from __future__ import annotations

import dataclasses
import json
import os
from numbers import Real
from typing import Any

from smp_advisor.workload.model import Model

__all__ = ["as_json", "from_json"]


def as_json(model: Any) -> Any:
    """Description of the model in JSON; None for a model that exists only in this process."""
    if isinstance(model, Model):
        return {"smp_advisor": {"name": model.name, "config": json.loads(model.config_json), "origin": model.note}}
    if isinstance(model, os.PathLike):
        return os.fspath(model)
    if isinstance(model, str | Real):
        return model if isinstance(model, str) else float(model)
    if isinstance(model, dict):
        try:
            return json.loads(json.dumps(model))
        except (TypeError, ValueError):
            return None
    return None


def from_json(model: Any) -> Any:
    """The model of a description by `as_json`."""
    if not (isinstance(model, dict) and "smp_advisor" in model):
        return model
    from smp_advisor.profiling.profiled_model import read_model

    values = model["smp_advisor"]
    described = read_model(values["config"])
    inferred = values["origin"].startswith("inferred")
    return dataclasses.replace(
        described,
        name=values["name"],
        origin=values["origin"],
        source="count" if inferred else "configuration",
    )
