"""Model families for which a training script can be generated."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ExportError
from smp_advisor.libraries.version import release

if TYPE_CHECKING:
    from smp_advisor.workload.model import Model

__all__ = [
    "Architecture",
    "adapter_packages",
    "architecture_of",
    "configuration",
    "first_library_version",
    "newest_release",
    "patched_release",
]

# Label names, provenance and data type, which do not affect the shape of the model.
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
    """How a family of transformers models is built, and its training task."""

    family: str
    task: str
    title: str
    """The task, for a comment."""
    auto_model: str
    """Class in transformers that builds the model from a configuration."""
    layers: tuple[str, ...]
    """Attributes that may contain the repeated layers."""
    newer: bool
    """Whether the family requires a newer transformers release than SMP v1 and Training Compiler support."""
    mask_token_id: int = 0
    """Token that replaces a masked token, for the task ``masked``."""
    reserved_positions: int = 0
    """Rows of the position embeddings that no token of a sequence uses."""


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((files("smp_advisor.export") / "data" / "architectures.toml").read_text(encoding="utf-8"))


def first_library_version() -> str:
    """Oldest version of SMP v1 with the API that the training script uses."""
    return str(_table()["release"]["first_library"])


def architecture_of(model: Model) -> Architecture:
    """Architecture of `model`.

    Raises
    ------
    ExportError
        The transformers releases in the containers do not have the family, or the model has no head.
    """
    families = _table()["family"]
    if model.family not in families:
        raise ExportError(
            f"No training script can be generated for the family {model.family!r}: the transformers releases in the"
            f" containers of the library support {', '.join(sorted(families))}. Pass script= with your own script."
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


def patched_release(architecture: Architecture) -> str:
    """Release of transformers with which SMP v1 and Training Compiler replace layers, or one that has the family."""
    return str(_table()["release"]["newer" if architecture.newer else "distributed"])


def newest_release(pytorch_version: str) -> str:
    """Release of transformers for a version of PyTorch."""
    releases = _table()["release"]["by_pytorch"]
    since = [first for first in releases if release(first) <= release(pytorch_version)]
    return str(releases[max(since, key=release)])


def adapter_packages(pytorch_version: str, *, quantized: bool) -> list[str]:
    """Packages that train adapters with `newest_release`, with exact versions."""
    adapters = _table()["release"]["adapters"]
    since = [first for first in adapters if release(first) <= release(pytorch_version)]
    packages = adapters[max(since, key=release)]
    return [f"peft=={packages['peft']}", *([f"bitsandbytes=={packages['bitsandbytes']}"] if quantized else [])]


def _task(model: Model, usual: str) -> str:
    if model.head.kind == "none":
        raise ExportError(
            f"{model.name!r} has no head, so there is no training loss: describe the model with its head, or pass"
            " script= with your own script."
        )
    if model.head.kind == "language-model" or usual == "image_classification":
        return usual
    return "text_classification"


def configuration(model: Model) -> dict[str, Any]:
    """The transformers configuration for the script, without keys that do not affect training."""
    settings = json.loads(model.config_json)
    shape = {key: value for key, value in settings.items() if key not in _NOT_SHAPE and value is not None}
    rope = shape.pop("rope_parameters", None)
    if isinstance(rope, dict) and "rope_theta" in rope:
        # Releases before 5 read rope_theta from its own key.
        shape.setdefault("rope_theta", rope["rope_theta"])
    if model.head.kind == "classification":
        shape["num_labels"] = model.head.outputs
    return shape
