"""A model from a transformers configuration: an object, a dict, or a file."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ModelError
from smp_advisor.files import MODEL, has_too_many_values, read_bytes
from smp_advisor.workload.build import model_from_values
from smp_advisor.workload.counts import format_count
from smp_advisor.workload.family import families
from smp_advisor.workload.names import is_model_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.workload.model import Model

__all__ = ["config_values", "is_path", "model_from_config", "title_of"]

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def model_from_config(config: str | os.PathLike[str] | Mapping[str, Any] | object) -> Model:
    """Model of a configuration; see `Model.from_config`."""
    values, source = config_values(config)
    return _model(values, source=source)


def config_values(config: str | os.PathLike[str] | Mapping[str, Any] | object) -> tuple[Mapping[str, Any], str]:
    """Values of a configuration, and its name for an error."""
    if isinstance(config, str | os.PathLike):
        path = Path(config)
        file = path / "config.json" if os.path.isdir(path) else path  # noqa: PTH112 - False for any text that is no path
        return _read(file), str(file)
    if not isinstance(config, dict) and callable(getattr(config, "to_dict", None)):
        values = config.to_dict()  # type: ignore[attr-defined]
        if not isinstance(values, dict):
            raise ModelError(
                f"to_dict() of {type(config).__name__} returns no dictionary: pass a transformers configuration."
            )
        # Some releases add dtypes and quantization objects, which JSON cannot represent.
        values = {key: value for key, value in values.items() if _is_json(value)}
        return values, f"the {type(config).__name__}"
    if isinstance(config, dict):
        return config, "the configuration"
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
            f"{str(file)!r} cannot be read ({problem}): pass the path of a config.json or of its folder, or the name "
            "of a published model such as llama-3-70b."
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


def is_path(text: str) -> bool:
    """Whether a text is the path of a configuration, and not the name of a model such as ``tiiuae/falcon-7b``."""
    if text.endswith(".json") or "\\" in text or text.startswith((".", "/", "~")) or text.count("/") > 1:
        return True
    return "/" in text and not is_model_name(text) and Path(text).exists()


def _model(values: Mapping[str, Any], *, source: str) -> Model:
    if values.get("model_type") is None:
        hint = (
            "it describes a tokenizer; pass the config.json next to it"
            if "tokenizer_class" in values and "vocab_size" not in values
            else 'add one such as "model_type": "gpt2"'
        )
        raise ModelError(f"In {source}, model_type is missing: {hint}.")
    text = _text_part(values)
    model = model_from_values(values if text is None else text, source=source)
    note = model.note if text is None else "the language model alone, without the parts for images"
    return replace(model, name=title_of(values, model.name, model.parameter_count), note=note)


def _text_part(values: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Configuration of the language model inside one of a model for text and images (Gemma 3, Llama 4)."""
    text = values.get("text_config")
    if not isinstance(text, dict):
        return None
    outer, inner = values.get("model_type"), text.get("model_type")
    return text if str(outer) not in families() and str(inner) in families() else None


def _hub_name(origin: object) -> str:
    """Name of a model on a hub: ``Llama-3.1-8B`` of ``meta-llama/Llama-3.1-8B``. Empty for a folder."""
    if not isinstance(origin, str):
        return ""
    return origin.rsplit("/", 1)[-1] if _HUB_NAME.fullmatch(origin) or is_model_name(origin) else ""


def title_of(values: Mapping[str, Any], family: str, count: int) -> str:
    """Name of the model on its hub, else the family with the size: ``Llama 8.03 B``."""
    return _hub_name(values.get("_name_or_path")) or f"{family} {format_count(count)}"


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
