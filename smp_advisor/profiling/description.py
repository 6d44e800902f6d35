"""Input of a child process: a model as plain data, which a fresh interpreter builds, and a guard of its time."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
from numbers import Real
from typing import TYPE_CHECKING, Any

from smp_advisor.workload.model import Model

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["GUARD_SECONDS", "as_json", "from_json", "without_collections"]

GUARD_SECONDS = 3600.0
"""Time after which a child process is stopped, with an error: ten times what the slowest profile takes on one core. It
guards against code that hangs; counts of operators, FLOPs and bytes limit the work of a stage."""
_OBJECTS_PER_COLLECTION = 20_000
"""New objects between later collections: work on models has few cycles, and the default of 700 takes a tenth of it."""


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


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Collect nothing, and never visit the objects made here again.

    Imports create hundreds of thousands of objects that live as long as the process, and almost no cycles.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(_OBJECTS_PER_COLLECTION)
        gc.enable()
