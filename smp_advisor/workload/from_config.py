"""A model from a name, a transformers configuration, or a module of a supported family."""

from __future__ import annotations

import dataclasses
import difflib
import json
import lzma
import math
import os
import re
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import MODEL, data_file, json_values, read_bytes, rows, sentence
from smp_advisor.errors import ModelError
from smp_advisor.workload.counts import MIXTURE, format_count
from smp_advisor.workload.families import model_from_shape, model_from_values
from smp_advisor.workload.from_count import PublishedShape, published_shapes
from smp_advisor.workload.settings import families

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.workload.model import Model


_LONGEST = 100
_SIMILAR = 0.75
"""Least similarity of a name that is offered for an unknown one of another series."""
_SUFFIXES = ("hf", "instruct", "chat", "base", "it", "pt", "thinking", "2507", "sft", "dpo", "preview")
"""Endings of names for the same shape, trained further."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    """A model of the tables that is no published shape."""

    name: str
    source: str
    aliases: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None
    """None for a traced module."""


def is_model_name(text: str) -> bool:
    """Return whether a text names a model of the tables, which needs no trace."""
    return _known(text) in _models() and configuration_to_trace(text) is None


def _known(text: str) -> str:
    """Return the key of a name; that of the only model of these experts for sizes such as ``8x7B``."""
    key = _key(text)
    if MIXTURE.fullmatch(text):
        names = {entry.name: full for full, entry in _models().items() if full.endswith(key)}
        return next(iter(names.values())) if len(names) == 1 else key
    return key


def _similar(text: str) -> list[str]:
    """Return the names that are near: of the same series, the nearest sizes first."""
    by_key, key = {of: entry.name for of, entry in _models().items()}, _key(text)
    series = re.match(r"[a-z]{3,}", key)
    near = [of for of in by_key if series and of.startswith(series[0])]
    near = difflib.get_close_matches(key, near, n=len(near), cutoff=0.0) if near else []
    if size := _size(text):
        near.sort(key=lambda of: abs(math.log((_size(by_key[of]) or 1e9) / size)))
    near += difflib.get_close_matches(key, by_key, n=3, cutoff=_SIMILAR)
    return list(dict.fromkeys(by_key[of] for of in near))[:3]


def _size(name: str) -> float:
    """Billions of parameters that a name states; 0 without."""
    match = re.search(r"(?<![\w.])(\d{1,4}(?:\.\d{1,3})?) ?([mb])\b", name[:_LONGEST].lower())
    return 0.0 if match is None else float(match[1]) * (1.0 if match[2] == "b" else 1e-3)


def model_from_name(text: str) -> Model:
    """Model by its name, with or without the owner of its repository."""
    if _known(text) not in _models():
        near = ", ".join(name.lower().replace(" ", "-") for name in _similar(text))
        near = f": the most similar are {near}" if near else ""
        raise ModelError(sentence("workload", "unknown_name", name=text[:_LONGEST], near=near))
    entry = _models()[_known(text)]
    if isinstance(entry, _Entry) and entry.config is not None:
        model = model_from_values(entry.config, source=entry.name, name=entry.name)
        return replace(_with_numerics(model), note=f"the configuration of {entry.name}: {entry.source}")
    if isinstance(entry, _Entry):
        return replace(_traced(entry.name), name=entry.name, note=f"traced: {entry.source}")
    keys = families()[entry.family].shape_keys
    sizes = {"kv_heads": entry.kv_heads, "ffn": entry.ffn, "max_positions": entry.positions, "tied": entry.tied}
    model = model_from_shape(
        layers=entry.layers,
        hidden=entry.hidden,
        heads=entry.heads,
        vocab=entry.vocab,
        family=entry.family,
        name=entry.name,
        **{field: value for field, value in sizes.items() if field in keys},  # type: ignore[arg-type]
    )
    return replace(_with_numerics(model), note=f"the shape of {entry.name}, {entry.source}")


def _with_numerics(model: Model) -> Model:
    """Return the model with the published settings outside of its shape, such as the base of rotary positions."""
    values = json.loads(model.config_json)
    for group in data_file("workload", "published_numerics")["group"]:
        if model.name in group["names"]:
            values |= {name: value for name, value in group.items() if name not in ("names", "source")}
    return replace(model, config_json=json.dumps(values, sort_keys=True))


def configuration_to_trace(text: str) -> dict[str, Any] | None:
    """Return the configuration of a name whose family has no formulas; None for other texts."""
    entry = _models().get(_known(text))
    config = entry.config if isinstance(entry, _Entry) else None
    return None if config is None or config["model_type"] in families() else dict(config)


@lru_cache(maxsize=8)
def _traced(name: str) -> Model:
    """Model of a traced module: an advice reads it several times, from its line of the file of all modules."""
    from smp_advisor.workload.from_profile import model_from_profile

    data = (files("smp_advisor.workload") / "data" / "published_modules.json.xz").read_bytes()
    of_name = f"[{json.dumps(name)},".encode()
    line = next(line for line in lzma.decompress(data).splitlines() if line.startswith(of_name))
    return model_from_profile(json.loads(line)[1])


def model_names() -> tuple[str, ...]:
    """Return the names of all models, without their aliases."""
    return tuple(dict.fromkeys(entry.name for entry in _models().values()))


@cache
def _models() -> dict[str, PublishedShape | _Entry]:
    text = (files("smp_advisor.workload") / "data" / "model_names.json").read_text(encoding="utf-8")
    data = json.loads(text)
    traced = rows("smp_advisor.workload", "data/published_modules.csv")
    entries: list[PublishedShape | _Entry] = [
        *published_shapes(),
        *(_Entry(**entry) for entry in data["configs"]),
        *(_Entry(name=row["name"], source=row["source"], aliases=tuple(row["aliases"].split())) for row in traced),
    ]
    models: dict[str, PublishedShape | _Entry] = {}
    for entry in entries:
        aliases = entry.aliases if isinstance(entry, _Entry) else data["aliases"].get(entry.name, ())
        models |= {_key(name): entry for name in (entry.name, *aliases)}
    return models


def _key(text: str) -> str:
    """The part of a name that decides: without owner, ``Meta-``, separators, letter case and ``-hf``, ``-Instruct``."""
    words = re.split(r"[\s_-]+", text[: _LONGEST + 1].strip().lower().rsplit("/", 1)[-1])
    while len(words) > 1 and words[-1] in _SUFFIXES:
        words.pop()
    if len(words) > 1 and words[0] == "meta":
        words.pop(0)
    return "".join(words)


_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def model_from_config(config: str | os.PathLike[str] | Mapping[str, Any] | object) -> Model:
    values, source = config_values(config)
    if values.get("model_type") is None:
        key = "tokenizer" if "tokenizer_class" in values and "vocab_size" not in values else "no_type"
        raise ModelError(sentence("workload", key, source=source))
    text = _text_part(values)
    model = model_from_values(values if text is None else text, source=source)
    note = model.note if text is None else "the language model alone, without the parts for images"
    return replace(model, name=title_of(values, model.name, model.parameter_count), note=note)


def config_values(config: str | os.PathLike[str] | Mapping[str, Any] | object) -> tuple[Mapping[str, Any], str]:
    """Return the values of a configuration, and its name for an error."""
    if isinstance(config, str | os.PathLike):
        path = Path(config)
        file = path / "config.json" if os.path.isdir(path) else path  # noqa: PTH112 - False for any text that is no path
        return _read(file), str(file)
    if not isinstance(config, dict) and callable(getattr(config, "to_dict", None)):
        values = config.to_dict()  # type: ignore[attr-defined]
        if not isinstance(values, dict):
            raise ModelError(sentence("workload", "no_dictionary", kind=type(config).__name__))
        # Some releases add dtypes and quantization objects, which JSON cannot represent.
        values = {key: value for key, value in values.items() if _is_json(value)}
        return values, f"the {type(config).__name__}"
    if isinstance(config, dict):
        return config, "the configuration"
    raise ModelError(sentence("workload", "no_configuration", kind=type(config).__name__))


def _read(file: Path) -> dict[str, Any]:
    try:
        text = read_bytes(file, MODEL).decode("utf-8")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path, bytes that are not UTF-8
        problem = getattr(error, "strerror", None) or error
        raise ModelError(sentence("workload", "unreadable", file=str(file), problem=problem)) from None
    try:
        values = json_values(text)
    except ValueError:
        raise ModelError(f"{file} is not a JSON file: pass the path of a model's config.json.") from None
    if not isinstance(values, dict):
        raise ModelError(f"{file} contains no JSON object: pass the path of a model's config.json.")
    return values


def is_path(text: str) -> bool:
    """Whether a text is the path of a configuration, and not the name of a model such as ``tiiuae/falcon-7b``."""
    if text.endswith(".json") or "\\" in text or text.startswith((".", "/", "~")) or text.count("/") > 1:
        return True
    return "/" in text and not is_model_name(text) and os.path.exists(text)  # noqa: PTH110 - False for any text


def _text_part(values: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Configuration of the language model inside one of a model for text and images (Gemma 3, Llama 4)."""
    text = values.get("text_config")
    if not isinstance(text, dict):
        return None
    outer, inner = values.get("model_type"), text.get("model_type")
    return text if str(outer) not in families() and str(inner) in families() else None


def title_of(values: Mapping[str, Any], family: str, count: int) -> str:
    """Name of the model on its hub (``Llama-3.1-8B`` of ``meta-llama/Llama-3.1-8B``), else ``Llama 8.03 B``."""
    origin = values.get("_name_or_path")
    if isinstance(origin, str) and (_HUB_NAME.fullmatch(origin) or is_model_name(origin)):  # and not a folder
        return origin.rsplit("/", 1)[-1]
    return f"{family} {format_count(count)}"


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def model_from_module(module: Any) -> Model:
    if not callable(getattr(module, "parameters", None)):
        raise ModelError(f"A module must be a torch.nn.Module, not {type(module).__name__}.")
    name = type(module).__name__
    config = getattr(module, "config", None)
    if not callable(getattr(config, "to_dict", None)):
        raise ModelError(sentence("workload", "no_transformers_configuration", name=name))
    values = {**config.to_dict(), "architectures": [name]}  # type: ignore[union-attr]
    try:
        model = model_from_config(values)
    except ModelError as error:
        raise ModelError(sentence("workload", "no_supported_family", name=name, error=error)) from None
    # parameters() yields a parameter with two names once.
    counted = sum(parameter.numel() for parameter in module.parameters())
    if counted != model.parameter_count:
        described = format_count(model.parameter_count)
        raise ModelError(sentence("workload", "changed", name=name, count=format_count(counted), described=described))
    return dataclasses.replace(model, note=f"{format_count(counted)} parameters counted on your model")
