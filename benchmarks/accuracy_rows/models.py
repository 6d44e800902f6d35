"""A `Model` from the shape columns of a row."""

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
from smp_advisor.workload.settings import families

from .table import SkippedError

if TYPE_CHECKING:
    from .table import Row

__all__ = ["model_of"]

_HEAD_DIM = 128
"""Width of a head in rows without the number of heads."""
_VOCABULARY = {"gpt2": 50257, "llama": 32000}
_ACTIVATION = "gelu"
"""GELU of a GPT in one kernel, as in the models of Megatron, llm-foundry and litgpt."""
_GATED_BELOW = 4.0
"""Ratio of feed-forward to hidden width. Gated published models without grouped queries are below."""


def model_of(row: Row, *, task: str = "", dropout: bool = True) -> Model:
    """Model of a row.

    Parameters
    ----------
    task
        ``language-model`` or ``classification``, if the kind of table determines the head of an encoder;
        ``pre-training`` also pads its vocabulary.
    dropout
        Whether a GPT trains with dropout.
    """
    shape = tuple((name, row.count(name)) for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq"))
    shape = (*shape, ("tied_embeddings", None if (tied := row.number("tied_embeddings")) is None else int(tied > 0)))
    # A name counts only for data without a column: experts, and checkpoints in rows without a shape.
    model = _model(shape, row.positive("params_b"), row.text("family"), _by_name(row.text("model")), task)
    return model if dropout or model.family != "gpt2" else _without_dropout(model)


@lru_cache(maxsize=1024)
def _without_dropout(model: Model) -> Model:
    config = json.loads(model.config_json) | {"resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0}
    return Model.from_config(config)


@dataclasses.dataclass(frozen=True)
class _NamedModel:
    """Data of a model's name. `config` has sorted items, to be hashable."""

    config: tuple[tuple[str, Any], ...]
    overrides: tuple[str, ...]
    shared_blocks: bool
    token_width: int
    score_matrices: int


@cache
def _patterns() -> tuple[tuple[str, _NamedModel], ...]:
    text = (Path(__file__).parent / "data" / "named_models.toml").read_text(encoding="utf-8")

    def frozen(value: Any) -> Any:
        return tuple(frozen(item) for item in value) if isinstance(value, list) else value

    entries = tomllib.loads(text)["model"]
    patterns = [
        (
            _words(str(entry["pattern"])),
            _NamedModel(
                config=tuple((key, frozen(value)) for key, value in sorted(entry["config"].items())),
                overrides=tuple(entry.get("overrides", ())),
                shared_blocks=bool(entry.get("shared_blocks")),
                token_width=int(entry.get("token_width", 0)),
                score_matrices=int(entry.get("score_matrices", 1)),
            ),
        )
        for entry in entries
    ]
    return tuple(sorted(patterns, key=lambda pattern: -len(pattern[0])))


_EXPERTS = re.compile(
    r"\b\d+ ?x ?\d+(\.\d+)?b\b|\ba\d+(\.\d+)?b\b|\b\d+e\b|moe\b|deepseek|mixtral|dbrx|grok|gpt oss|experts"
)
"""Names of sparse models: 8x7B, A3B, 16E, and families that are always sparse."""


def _words(name: str) -> str:
    return re.sub(r"[-_\s]+", " ", name)


def _by_name(name: str) -> _NamedModel | None:
    words = _words(name)
    # At the start of a word: "albert-base" is not "bert-base".
    for pattern, entry in _patterns():
        if re.search(rf"(?<![a-z]){re.escape(pattern)}", words):
            return entry
    if _EXPERTS.search(words) and "distill" not in words:
        raise SkippedError("mixture of experts with unknown experts")
    return None


@lru_cache(maxsize=4096)
def _model(
    shape: tuple[tuple[str, int | None], ...],
    params_b: float | None,
    family: str,
    checkpoint: _NamedModel | None,
    task: str,
) -> Model:
    columns = dict(shape)
    try:
        if checkpoint is not None and (
            not family or not columns["hidden"] or dict(checkpoint.config)["model_type"] == "mixtral"
        ):
            return _from_name(columns, checkpoint)
        if not columns["layers"] or not columns["hidden"]:
            return _from_count(columns, params_b)
        if family == "bert" or family in families():
            return _of_family(columns, family, task)
        if family == "gpt":
            return _decoder(columns, "falcon" if _grouped(columns) else "gpt2", params_b)
        model = _decoder(columns, "llama", params_b) if family == "llama" else _likelier(columns, params_b)
        return _sparse(columns, model, params_b) or model
    except ModelError as error:
        raise SkippedError(f"model that cannot be expressed: {error}") from error


def _grouped(columns: dict[str, int | None]) -> bool:
    return bool(columns["kv_heads"] and columns["heads"] and columns["kv_heads"] < columns["heads"])


def _heads(columns: dict[str, int | None]) -> int:
    """Heads of the row, or the number with the usual width."""
    hidden = columns["hidden"] or 0
    if columns["heads"]:
        return columns["heads"]
    usual = max(1, round(hidden / _HEAD_DIM))
    return min((n for n in range(1, hidden + 1) if hidden % n == 0), key=lambda n: abs(n - usual))


def _from_count(columns: dict[str, int | None], params_b: float | None) -> Model:
    if not params_b:
        raise SkippedError("neither a shape nor a number of parameters")
    return Model.from_parameters(
        params_b * 1e9,
        family="gpt2",
        vocab=columns["vocab"],
        sequence_length=columns["seq"],
        activation=_ACTIVATION,
    )


def _decoder(columns: dict[str, int | None], family: str, params_b: float | None) -> Model:
    """Decoder of a family. Without a column for it, the number of parameters determines whether the output is tied."""

    def build(*, tied: bool | None) -> Model:
        shape: dict[str, Any] = {
            "layers": columns["layers"],
            "hidden": columns["hidden"],
            "heads": _heads(columns),
            "vocab": columns["vocab"] or _VOCABULARY.get(family),
            "ffn": columns["ffn"],
            "tied": tied,
            "family": family,
        }
        if family == "gpt2":
            shape["max_positions"] = columns["seq"]
            shape["activation"] = _ACTIVATION
        if family in {"llama", "falcon"}:
            shape["kv_heads"] = columns["kv_heads"]
        return Model.from_shape(**shape)

    if columns["tied_embeddings"] is not None:
        return build(tied=bool(columns["tied_embeddings"]))
    if not params_b:
        return build(tied=None)
    return min((build(tied=tied) for tied in (False, True)), key=lambda model: _distance(model, params_b))


def _distance(model: Model, params_b: float) -> float:
    return abs(model.parameter_count / (params_b * 1e9) - 1)


def _likelier(columns: dict[str, int | None], params_b: float | None) -> Model:
    """Decoder without a family in the columns (rows of adapters): the form of block with the right parameter count."""
    if not params_b:
        ratio = (columns["ffn"] or 0) / (columns["hidden"] or 1)
        gated = 0 < ratio < _GATED_BELOW or (_grouped(columns) and ratio != _GATED_BELOW)
        return _decoder(columns, "llama" if gated else "gpt2", params_b)
    forms = ("llama", "falcon") if _grouped(columns) else ("llama", "gpt2")
    return min((_decoder(columns, form, params_b) for form in forms), key=lambda model: _distance(model, params_b))


_SPARSE_FROM = 1.4
"""A row with more parameters than this factor times its shape's has several feed-forward layers per block."""
_MANY_EXPERTS = 64


def _sparse(columns: dict[str, int | None], dense: Model, params_b: float | None) -> Model | None:
    """Mixture of experts whose number follows from the parameter count; None for a dense model.

    A token uses two of a few experts (Mixtral), or eight and a shared one of many (DeepSeek, Qwen).
    """
    ffn, layers, hidden = columns["ffn"], columns["layers"], columns["hidden"]
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
        heads=_heads(columns),
        kv_heads=columns["kv_heads"],
        ffn=ffn,
        vocab=columns["vocab"],
        tied=None if columns["tied_embeddings"] is None else bool(columns["tied_embeddings"]),
        experts=experts,
        experts_per_token=9 if experts >= _MANY_EXPERTS else 2,
    )


def _of_family(columns: dict[str, int | None], family: str, task: str) -> Model:
    """Model of a transformers family. A fine-tuned encoder has a classifier unless the table specifies a head."""
    facts = families()[family]
    shape = {
        "layers": columns["layers"],
        "hidden": columns["hidden"],
        "heads": _heads(columns),
        "kv_heads": columns["kv_heads"],
        "ffn": columns["ffn"],
        "vocab": columns["vocab"],
        "tied": None if columns["tied_embeddings"] is None else bool(columns["tied_embeddings"]),
    }
    config: dict[str, Any] = {"model_type": family}
    config |= {facts.shape_keys[key]: value for key, value in shape.items() if value and key in facts.shape_keys}
    if task == "pre-training":
        config["vocab_size"] = -(-(columns["vocab"] or 0) // 8) * 8
    elif family in {"bert", "roberta"} and task != "language-model":
        config["architectures"] = [f"{facts.config_class.removesuffix('Config')}ForSequenceClassification"]
    return Model.from_config(config)


def _from_name(columns: dict[str, int | None], checkpoint: _NamedModel) -> Model:
    config = dict(checkpoint.config)
    keys = families()[config["model_type"]].shape_keys
    for field in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"):
        value, key = columns[field], keys.get(field)
        if value and key and key not in checkpoint.overrides:
            config[key] = value
    config["attention_types"] = config.get("attention_types") or None
    if config["attention_types"] is None:
        del config["attention_types"]
    model = Model.from_config({key: _thawed(value) for key, value in config.items()})
    if checkpoint.score_matrices > 1:
        groups = tuple(
            dataclasses.replace(
                group,
                block=dataclasses.replace(group.block, attentions=group.block.attentions * checkpoint.score_matrices),
            )
            for group in model.groups
        )
        model = dataclasses.replace(model, groups=groups)
    return _sharing(model, checkpoint.token_width) if checkpoint.shared_blocks else model


def _thawed(value: Any) -> Any:
    return [_thawed(item) for item in value] if isinstance(value, tuple) else value


def _sharing(model: Model, token_width: int) -> Model:
    """Model with one set of weights for all blocks and a narrow token table."""
    (group,) = model.groups
    empty = dataclasses.replace(group.block, parameters=0, replicated_parameters=0)
    narrow = model.shape.vocab * token_width
    return dataclasses.replace(
        model,
        groups=(BlockGroup(block=group.block, count=1), BlockGroup(block=empty, count=group.count - 1)),
        embedding_parameters=narrow + token_width * model.shape.hidden,
        token_embedding_parameters=narrow,
    )
