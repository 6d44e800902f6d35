"""Model families for which a training script can be generated."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.export.checks import unscripted
from smp_advisor.files import data_file
from smp_advisor.libraries.version import (
    newest_script_release,
    release,
    script_release,
    smp_v1_release,
    transformers_families,
)

if TYPE_CHECKING:
    from smp_advisor.workload.model import Model

# Label names, provenance and data type, which do not affect the shape of the model.
_NOT_SHAPE = {
    *("_name_or_path", "architectures", "dtype", "id2label", "label2id", "model_type", "num_labels", "torch_dtype"),
    *("transformers_version", "use_cache"),
}


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
    since: str
    """First release of transformers with the family, of those that the scripts use."""
    mask_token_id: int = 0
    """Token that replaces a masked token, for the task ``masked``."""
    reserved_positions: int = 0
    """Rows of the position embeddings that no token of a sequence uses."""

    @property
    def reads_text(self) -> bool:
        """Whether samples are text without other labels."""
        return self.task in ("causal", "masked", "sequence_to_sequence")


def _table() -> dict[str, Any]:
    return data_file("export", "architectures")


def architecture_of(model: Model) -> Architecture:
    """Architecture of `model`."""
    families = transformers_families()
    if model.family not in families:
        raise unscripted(
            f"No training script can be generated for the family {model.family!r}, of which transformers"
            f" {newest_script_release()} has no model for text or images"
        )
    if model.head.kind == "none":
        problem = f"{model.name!r} has no head, so there is no training loss"
        raise unscripted(problem, "describe the model with its head")
    listed = families[model.family]
    task = listed.task
    if model.head.kind != "language-model" and task != "image_classification":
        task = "text_classification"
    return Architecture(
        family=model.family,
        task=task,
        **_table()["task"][task],
        layers=tuple(_table()["layers"].get(model.family, _table()["layers"]["usual"])),
        since=listed.since,
        mask_token_id=_figure("mask_token_id", model.family),
        reserved_positions=_figure("reserved_positions", model.family),
    )


def _figure(name: str, family: str) -> int:
    """A figure of a family; 0 if it has none."""
    return next((int(value) for value, families in _table()[name].items() if family in families), 0)


def patched_release(architecture: Architecture) -> str:
    """Release of transformers with which SMP v1 and Training Compiler replace layers, or one that has the family."""
    return _supported(architecture, smp_v1_release(architecture.since), "SMP v1")


def newest_release(pytorch_version: str, architecture: Architecture) -> str:
    """Release of transformers for a version of PyTorch, or the first with the family, if it supports that version."""
    return _supported(architecture, script_release(pytorch_version, architecture.since), f"PyTorch {pytorch_version}")


def _supported(architecture: Architecture, chosen: str | None, framework: str) -> str:
    if chosen is None:
        raise unscripted(
            f"The family {architecture.family!r} requires transformers {architecture.since}, which does not support"
            f" {framework}",
            "choose a newer version or another library",
        )
    return chosen


def packages_of(trainer: str, pytorch_version: str) -> list[str]:
    """Packages of a trainer besides `newest_release`, with exact versions; empty where it does not support PyTorch."""
    releases = _table()["release"][trainer]
    since = [first for first in releases if release(first) <= release(pytorch_version)]
    packages = releases[max(since, key=release)] if since else {}
    return [f"{name}=={version}" for name, version in packages.items()]


def configuration(model: Model) -> dict[str, Any]:
    """The transformers configuration for the script, without keys that do not affect training."""
    settings = json.loads(model.config_json)
    shape = {key: value for key, value in settings.items() if key not in _NOT_SHAPE and value is not None}
    rope = shape.pop("rope_parameters", None)
    if isinstance(rope, dict):
        shape = _rotation(rope) | shape
    if model.head.kind == "classification":
        shape["num_labels"] = model.head.outputs
    return shape


def _rotation(rope: dict[str, Any]) -> dict[str, Any]:
    """Settings of rotary embeddings with the keys that transformers releases before 5 read."""
    if isinstance(rope.get("full_attention"), dict):  # per kind of layer
        local = rope.get("sliding_attention") or {}
        settings = _rotation(rope["full_attention"])
        return settings | ({"rope_local_base_freq": local["rope_theta"]} if "rope_theta" in local else {})
    settings = {key: value for key, value in rope.items() if key in ("rope_theta", "partial_rotary_factor")}
    scaling = {key: value for key, value in rope.items() if key not in settings}
    if scaling.get("rope_type", "default") != "default":
        settings["rope_scaling"] = scaling
    return settings
