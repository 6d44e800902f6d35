"""The model families that a training script can be written for."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ExportError
from smp_advisor.libraries.version import image, release

if TYPE_CHECKING:
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.model import Model

__all__ = ["Architecture", "architecture", "configuration", "first_library_version", "transformers_release"]

# Names of labels, provenance and the dtype: nothing that shapes the model.
_NOT_SHAPE = frozenset(
    {
        "_name_or_path",
        "architectures",
        "dtype",
        "id2label",
        "label2id",
        "model_type",
        "num_labels",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """How a family of transformers models is built and fed."""

    family: str
    task: str
    title: str
    """The task in words."""
    auto_model: str
    """Class of transformers that builds the model from a configuration."""
    layers: tuple[str, ...]
    """Attributes that may hold the repeated layers."""
    newer: bool
    """Whether the family came after the transformers release that SMP v1 and Training Compiler work with."""
    mask_token_id: int = 0
    """Token that stands for a masked one, where the task needs it."""
    reserved_positions: int = 0
    """Rows of the position table that no token of a sequence uses."""


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((files("smp_advisor.export") / "data" / "architectures.toml").read_text(encoding="utf-8"))


def first_library_version() -> str:
    """Oldest library version whose API the training script uses."""
    return str(_table()["release"]["first_library"])


def architecture(model: Model) -> Architecture:
    """How `model` is built; raises `ExportError` for families that the library's containers cannot run."""
    families = _table()["family"]
    if model.family not in families:
        raise ExportError(
            f"No training script can be written for the family {model.family!r}: the transformers releases that run in"
            f" the library's containers know {', '.join(sorted(families))}; pass script= with your own."
        )
    entry = families[model.family]
    task = _task(model, entry["task"])
    return Architecture(
        family=model.family,
        task=task,
        title=_table()["task"][task]["title"],
        auto_model=_table()["task"][task]["auto_model"],
        layers=tuple(entry["layers"]),
        newer=entry.get("newer", False),
        mask_token_id=entry.get("mask_token_id", 0),
        reserved_positions=entry.get("reserved_positions", 0),
    )


def transformers_release(known: Architecture, plan: Plan) -> str:
    """Release of transformers for the container's ``requirements.txt``; empty where there is none to install."""
    releases = _table()["release"]
    if plan.library == "smp-v1":
        return str(releases["newer" if known.newer else "distributed"])
    container = image(plan.library, plan.version)
    if plan.library == "smp-v1-tensorflow" or container.transformers_version:
        return ""
    if plan.library == "training-compiler":
        return str(releases["distributed"])
    since = [first for first in releases["by_pytorch"] if release(first) <= release(container.framework_version)]
    return str(releases["by_pytorch"][max(since, key=release)])


def _task(model: Model, usual: str) -> str:
    if model.head.kind == "none":
        raise ExportError(
            f"{model.name!r} has no head, so there is no loss to train on: describe the model with its head, or pass"
            " script= with your own."
        )
    if model.head.kind == "language-model" or usual == "image_classification":
        return usual
    return "text_classification"


def configuration(model: Model) -> dict[str, Any]:
    """The transformers configuration that goes into the script, without what has no bearing on training."""
    given = json.loads(model.config_json)
    kept = {key: value for key, value in given.items() if key not in _NOT_SHAPE and value is not None}
    rope = kept.pop("rope_parameters", None)
    if isinstance(rope, dict) and "rope_theta" in rope:
        # Releases before 5 read the base from its own key.
        kept.setdefault("rope_theta", rope["rope_theta"])
    if model.head.kind == "classification":
        kept["num_labels"] = model.head.outputs
    return kept
