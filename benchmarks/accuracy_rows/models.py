"""From a row's shape columns to a `Model`."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ModelError
from smp_advisor.workload import BlockGroup, Model
from smp_advisor.workload.family import families

from .table import SkippedError

if TYPE_CHECKING:
    from .table import Row

__all__ = ["model_of"]

_HEAD_DIM = 128
"""Width of a head where a row does not give the number of heads."""
_VOCABULARY = {"gpt2": 50257, "llama": 32000}
_GATED_BELOW = 4.0
"""Ratio of feed-forward to hidden width; every gated published model but those with grouped queries lies below."""


def model_of(row: Row, *, task: str = "", dropout: bool = True) -> Model:
    """Model of a row.

    Parameters
    ----------
    task
        ``language-model`` or ``classification``, where the table's kind of run settles the head of an encoder.
    dropout
        Whether a GPT trains with dropout.
    """
    shape = tuple((name, row.count(name)) for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq"))
    shape = (*shape, ("tied_embeddings", None if (tied := row.number("tied_embeddings")) is None else int(tied > 0)))
    # The name is read only for facts without a column: experts, and checkpoints that a row names without their shape.
    model = _model(shape, row.positive("params_b"), row.text("family"), _named(row.text("model")), task)
    return model if dropout or model.family != "gpt2" else _without_dropout(model)


@lru_cache(maxsize=1024)
def _without_dropout(model: Model) -> Model:
    config = json.loads(model.config_json) | {"resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0}
    return Model.from_config(config)


@dataclasses.dataclass(frozen=True)
class _Named:
    """Details that follow from a model's name; `config` as sorted items, to be hashable."""

    config: tuple[tuple[str, Any], ...]
    overrides: tuple[str, ...]
    shared_blocks: bool
    token_width: int
    score_matrices: int


@cache
def _patterns() -> tuple[tuple[str, _Named], ...]:
    text = (Path(__file__).parent / "data" / "named_models.toml").read_text(encoding="utf-8")

    def frozen(value: Any) -> Any:
        return tuple(frozen(one) for one in value) if isinstance(value, list) else value

    entries = tomllib.loads(text)["model"]
    found = [
        (
            str(entry["pattern"]),
            _Named(
                config=tuple((key, frozen(value)) for key, value in sorted(entry["config"].items())),
                overrides=tuple(entry.get("overrides", ())),
                shared_blocks=bool(entry.get("shared_blocks")),
                token_width=int(entry.get("token_width", 0)),
                score_matrices=int(entry.get("score_matrices", 1)),
            ),
        )
        for entry in entries
    ]
    return tuple(sorted(found, key=lambda one: -len(one[0])))


def _named(name: str) -> _Named | None:
    # At the start of a word: "albert-base" is no "bert-base".
    return next((named for pattern, named in _patterns() if re.search(rf"(?<![a-z]){re.escape(pattern)}", name)), None)


@lru_cache(maxsize=4096)
def _model(
    shape: tuple[tuple[str, int | None], ...],
    params_b: float | None,
    family: str,
    named: _Named | None,
    task: str,
) -> Model:
    known = dict(shape)
    try:
        if named is not None and (not family or not known["hidden"] or dict(named.config)["model_type"] == "mixtral"):
            return _from_name(known, named)
        if not known["layers"] or not known["hidden"]:
            return _from_count(known, params_b)
        if family == "bert" or family in families():
            return _of_family(known, family, task)
        if family == "gpt":
            return _decoder(known, "falcon" if _grouped(known) else "gpt2", params_b)
        model = _decoder(known, "llama", params_b) if family == "llama" else _likelier(known, params_b)
        return _sparse(known, model, params_b) or model
    except ModelError as error:
        raise SkippedError(f"model that cannot be expressed: {error}") from error


def _grouped(known: dict[str, int | None]) -> bool:
    return bool(known["kv_heads"] and known["heads"] and known["kv_heads"] < known["heads"])


def _heads(known: dict[str, int | None]) -> int:
    """Heads of the row, or as many as have the usual width."""
    hidden = known["hidden"] or 0
    if known["heads"]:
        return known["heads"]
    wanted = max(1, round(hidden / _HEAD_DIM))
    return min((n for n in range(1, hidden + 1) if hidden % n == 0), key=lambda n: abs(n - wanted))


def _from_count(known: dict[str, int | None], params_b: float | None) -> Model:
    if not params_b:
        raise SkippedError("neither a shape nor a number of parameters")
    return Model.from_parameters(params_b * 1e9, family="gpt2", vocab=known["vocab"], sequence_length=known["seq"])


def _decoder(known: dict[str, int | None], family: str, params_b: float | None) -> Model:
    """Decoder of a family; if no column states whether the output is tied, it follows from the number of parameters."""

    def build(*, tied: bool | None) -> Model:
        wanted: dict[str, Any] = {
            "layers": known["layers"],
            "hidden": known["hidden"],
            "heads": _heads(known),
            "vocab": known["vocab"] or _VOCABULARY.get(family),
            "ffn": known["ffn"],
            "tied": tied,
            "family": family,
        }
        if family == "gpt2" and known["seq"]:
            wanted["max_positions"] = known["seq"]
        if family in {"llama", "falcon"}:
            wanted["kv_heads"] = known["kv_heads"]
        return Model.from_shape(**wanted)

    if known["tied_embeddings"] is not None:
        return build(tied=bool(known["tied_embeddings"]))
    if not params_b:
        return build(tied=None)
    return min((build(tied=tied) for tied in (False, True)), key=lambda model: _distance(model, params_b))


def _distance(model: Model, params_b: float) -> float:
    return abs(model.parameter_count / (params_b * 1e9) - 1)


def _likelier(known: dict[str, int | None], params_b: float | None) -> Model:
    """Decoder whose family no column names (rows of adapters): the form of block that has the number of parameters."""
    if not params_b:
        ratio = (known["ffn"] or 0) / (known["hidden"] or 1)
        gated = 0 < ratio < _GATED_BELOW or (_grouped(known) and ratio != _GATED_BELOW)
        return _decoder(known, "llama" if gated else "gpt2", params_b)
    forms = ("llama", "falcon") if _grouped(known) else ("llama", "gpt2")
    return min((_decoder(known, form, params_b) for form in forms), key=lambda model: _distance(model, params_b))


_SPARSE_FROM = 1.4
"""A row whose number of parameters exceeds its shape's by this factor has several feed-forward layers per block."""
_MANY_EXPERTS = 64


def _sparse(known: dict[str, int | None], dense: Model, params_b: float | None) -> Model | None:
    """Mixture of as many experts as the number of parameters takes; None for a dense model.

    A token passes two of a few experts (Mixtral), eight and a shared one of many (DeepSeek, Qwen).
    """
    ffn, layers, hidden = known["ffn"], known["layers"], known["hidden"]
    if dense.family != "llama" or not (params_b and ffn and layers and hidden):
        return None
    if params_b * 1e9 < _SPARSE_FROM * dense.parameter_count:
        return None
    expert = 3 * hidden * ffn * layers
    experts = round((params_b * 1e9 - (dense.parameter_count - expert)) / expert)
    return Model.from_shape(
        family="mixtral",
        layers=layers,
        hidden=hidden,
        heads=_heads(known),
        kv_heads=known["kv_heads"],
        ffn=ffn,
        vocab=known["vocab"],
        tied=None if known["tied_embeddings"] is None else bool(known["tied_embeddings"]),
        experts=experts,
        experts_per_token=9 if experts >= _MANY_EXPERTS else 2,
    )


def _of_family(known: dict[str, int | None], family: str, task: str) -> Model:
    """Model of a transformers family. A fine-tuned encoder ends in a classifier unless the table differs."""
    facts = families()[family]
    wanted = {
        "layers": known["layers"],
        "hidden": known["hidden"],
        "heads": _heads(known),
        "kv_heads": known["kv_heads"],
        "ffn": known["ffn"],
        "vocab": known["vocab"],
        "tied": None if known["tied_embeddings"] is None else bool(known["tied_embeddings"]),
    }
    config: dict[str, Any] = {"model_type": family}
    config |= {facts.shape_keys[key]: value for key, value in wanted.items() if value and key in facts.shape_keys}
    if family in {"bert", "roberta"} and task != "language-model":
        config["architectures"] = [f"{facts.config_class.removesuffix('Config')}ForSequenceClassification"]
    return Model.from_config(config)


def _from_name(known: dict[str, int | None], named: _Named) -> Model:
    config = dict(named.config)
    keys = families()[config["model_type"]].shape_keys
    for field in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"):
        value, key = known[field], keys.get(field)
        if value and key and key not in named.overrides:
            config[key] = value
    config["attention_types"] = config.get("attention_types") or None
    if config["attention_types"] is None:
        del config["attention_types"]
    model = Model.from_config({key: _thawed(value) for key, value in config.items()})
    if named.score_matrices > 1:
        groups = tuple(
            dataclasses.replace(
                group, block=dataclasses.replace(group.block, attentions=group.block.attentions * named.score_matrices)
            )
            for group in model.groups
        )
        model = dataclasses.replace(model, groups=groups)
    return _sharing(model, named.token_width) if named.shared_blocks else model


def _thawed(value: Any) -> Any:
    return [_thawed(one) for one in value] if isinstance(value, tuple) else value


def _sharing(model: Model, token_width: int) -> Model:
    """Model whose blocks have one set of weights between them, over a narrow token table."""
    (group,) = model.groups
    empty = dataclasses.replace(group.block, parameters=0, replicated_parameters=0)
    narrow = model.shape.vocab * token_width
    return dataclasses.replace(
        model,
        groups=(BlockGroup(block=group.block, count=1), BlockGroup(block=empty, count=group.count - 1)),
        embedding_parameters=narrow + token_width * model.shape.hidden,
        token_embedding_parameters=narrow,
    )
