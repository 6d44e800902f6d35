"""A model from a transformers configuration: an object, a dict, or a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ModelError
from smp_advisor.files import MODEL, has_too_many_values, read_bytes
from smp_advisor.workload.build import model_from_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.workload.model import Model

__all__ = ["model_from_config"]


def model_from_config(config: str | os.PathLike[str] | Mapping[str, Any] | object) -> Model:
    """Model of a configuration; see `Model.from_config`."""
    if isinstance(config, str | os.PathLike):
        path = Path(config)
        file = path / "config.json" if path.is_dir() else path
        values = _read(file)
        return _model(values, source=str(file), fallback=file.resolve().parent.name)
    if not isinstance(config, dict) and callable(getattr(config, "to_dict", None)):
        values = config.to_dict()  # type: ignore[attr-defined]
        if not isinstance(values, dict):
            raise ModelError(
                f"to_dict() of {type(config).__name__} returns no dictionary: pass a transformers configuration."
            )
        # Some releases add dtypes and quantization objects, which JSON cannot represent.
        values = {key: value for key, value in values.items() if _is_json(value)}
        return _model(values, source=f"the {type(config).__name__}", fallback=None)
    if isinstance(config, dict):
        return _model(config, source="the configuration", fallback=None)
    raise ModelError(
        f"A configuration must be a transformers configuration object, a dict or the path of a config.json, "
        f"not {type(config).__name__}."
    )


def _read(file: Path) -> dict[str, Any]:
    """Values of a JSON file."""
    try:
        text = read_bytes(file, MODEL).decode("utf-8")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path, bytes that are not UTF-8
        problem = getattr(error, "strerror", None) or error
        raise ModelError(
            f"{str(file)!r} cannot be read ({problem}): pass the path of a config.json or of its folder; "
            "models are not looked up by name."
        ) from None
    if has_too_many_values(text):
        raise ModelError(f"{file} is too large for a model configuration: pass the path of its config.json.")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise ModelError(f"{file} is not a JSON file: pass the path of a model's config.json.") from None
    if not isinstance(values, dict):
        raise ModelError(f"{file} contains no JSON object: pass the path of a model's config.json.")
    return values


def _model(values: Mapping[str, Any], *, source: str, fallback: str | None) -> Model:
    if values.get("model_type") is None:
        hint = (
            "it describes a tokenizer; pass the config.json next to it"
            if "tokenizer_class" in values and "vocab_size" not in values
            else 'add one such as "model_type": "gpt2"'
        )
        raise ModelError(f"In {source}, model_type is missing: {hint}.")
    origin = values.get("_name_or_path")
    # The last part of a path or of a hub name is the display name.
    name = origin.rstrip("/\\").replace("\\", "/").split("/")[-1] if isinstance(origin, str) else ""
    return model_from_values(values, source=source, name=name or fallback)


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
