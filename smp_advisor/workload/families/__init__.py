"""Models of the supported families from a configuration or a shape, one module for each form."""

from __future__ import annotations

import dataclasses
import json
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from smp_advisor.errors import ModelError
from smp_advisor.workload.counts import check_sizes
from smp_advisor.workload.model import BlockGroup, Head, Model, Shape
from smp_advisor.workload.settings import Settings, family, head_task
from smp_advisor.workload.settings import family as family_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smp_advisor.workload.block import Block
    from smp_advisor.workload.settings import Family


def shape_of(settings: Settings, **sizes: int) -> Shape:
    """Shape of the model: `sizes`, and the remaining sizes by the family's keys."""
    keys = settings.family.shape_keys
    hidden, heads = settings.size(keys["hidden"]), settings.size(keys["heads"])
    sizes = {"layers": settings.layers(keys["layers"])} | sizes
    # Without a value or a class default, every head has its own keys, and the feed-forward layer is 4 h wide.
    derived = {"kv_heads": heads, "ffn": 4 * hidden}
    for field in ("kv_heads", "ffn", "vocab", "experts", "experts_per_token"):
        if field in keys and field not in sizes:
            is_derived = settings.family.defaults[keys[field]] is None or field == "kv_heads"
            sizes[field] = settings.size(keys[field], default=derived.get(field) if is_derived else None)
    shape = Shape(hidden=hidden, heads=heads, **{**derived, "vocab": 0, **sizes})
    if heads % shape.kv_heads:
        raise settings.error(f"{keys['kv_heads']} ({shape.kv_heads}) must divide the {heads} attention heads")
    uses, experts = shape.experts_per_token, shape.experts
    if uses > experts:
        raise settings.error(f"{keys['experts_per_token']} ({uses}) must be at most the {experts} experts")
    return shape


def given(settings: Settings, **parts: Any) -> Model:
    """Model of a configuration, with the names of its family."""
    return Model(name=settings.family.label, family=settings.family.model_type, origin="given", **parts)


def decoder_model(
    settings: Settings,
    shape: Shape,
    block: Block | tuple[BlockGroup, ...],
    *,
    input_parameters: int = 0,
    final_parameters: int | None = None,
    token_width: int | None = None,
    head_bias: bool = False,
) -> Model:
    task, note = head_task(settings, "language-model", "sequence-classification", "token-classification", "none")
    width = token_width or shape.hidden
    tokens = shape.vocab * width
    if task == "language-model":
        tied = settings.flag("tie_word_embeddings")
        own = (0 if tied else tokens) + (shape.vocab if head_bias else 0)
        head = Head(kind="language-model", outputs=shape.vocab, parameters=own, tied=tied)
    elif task == "none":
        head = Head(kind="none", outputs=0, parameters=0, tied=False)
    else:
        per_token = task == "token-classification"
        labels = settings.labels()
        own = width * labels + (labels if per_token else 0)
        head = Head(kind="classification", outputs=labels, parameters=own, tied=False, per_token=per_token)
    return given(
        settings,
        shape=shape,
        groups=block if isinstance(block, tuple) else (BlockGroup(block=block, count=shape.layers),),
        embedding_parameters=tokens + shape.max_positions * shape.hidden + input_parameters,
        token_embedding_parameters=tokens,
        final_parameters=2 * shape.hidden if final_parameters is None else final_parameters,
        head=head,
        note=note,
    )


_LEFT_OUT = ("_name_or_path", "auto_map", "transformers_version")
"""A path on the machine that wrote the file, a pointer to code outside transformers, and the version that wrote it."""


def model_from_values(values: Mapping[str, Any], *, source: str, name: str | None = None) -> Model:
    settings = Settings(values, family(values.get("model_type"), source=source), source)
    model = build(settings)
    portable = {key: value for key, value in settings.values.items() if key not in _LEFT_OUT}
    try:
        config_json = json.dumps(portable, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ModelError(f"In {source}, a value cannot be written as JSON ({error}): pass plain values.") from None
    return dataclasses.replace(model, name=name or model.name, config_json=config_json)


def model_from_shape(
    *,
    layers: int,
    hidden: int,
    heads: int,
    family: str,
    tied: bool | None = None,
    activation: str | None = None,
    name: str | None = None,
    **sizes: int | None,
) -> Model:
    """Model of a shape; see `Model.from_shape`. `sizes` are its other sizes, None where the family decides."""
    facts = family_of(family, source="family")
    required = {"layers": layers, "hidden": hidden, "heads": heads}
    sizes = {**required, **sizes}
    check_sizes(**sizes)
    experts = sizes.get("experts")
    if experts == 1:
        sizes |= {"experts": None, "experts_per_token": None}  # a dense model
    elif facts.sparse_form is not None and experts is not None:
        facts = family_of(facts.sparse_form)
    family = facts.model_type
    values: dict[str, Any] = {"model_type": family}
    for field, value in {**sizes, "tied": tied, "activation": activation}.items():
        if value is None:
            continue
        if field not in facts.shape_keys:
            supported = ", ".join(facts.shape_keys)
            raise ModelError(f"The family {family!r} has no {field}; the fields of its shape are {supported}.")
        values[facts.shape_keys[field]] = value
    values = _conventions(facts, layers, hidden, heads, sizes.get("kv_heads")) | values
    return model_from_values(values, source="the shape", name=name or f"{facts.label} {layers} × {hidden}")


def _conventions(facts: Family, layers: int, hidden: int, heads: int, kv_heads: int | None) -> dict[str, Any]:
    """Return the values that a shape leaves open, by the conventions of its family."""
    values: dict[str, Any] = dict(facts.shape_defaults)
    if "ffn" in facts.shape_keys:
        values[facts.shape_keys["ffn"]] = 4 * hidden
    if "attention_types" in facts.defaults:
        pairs, odd = divmod(layers, 2)
        values["attention_types"] = [[["global", "local"], pairs], [["global"], odd]]
    elif "new_decoder_architecture" in facts.defaults and kv_heads not in (None, 1):
        # Falcon's code reads the number of key-value heads only in its second form. The first form has one, or all.
        values |= {"multi_query": False, "new_decoder_architecture": kv_heads != heads}
    elif facts.gated:
        # In multiples of 256: Llama 3's 3.5 h with fewer key-value heads, else two thirds of 4 h.
        wide = 7 * hidden // 2 if kv_heads not in (None, heads) else 8 * hidden // 3
        values |= {"intermediate_size": -(-wide // 256) * 256, "num_key_value_heads": heads}
    return values


def build(settings: Settings) -> Model:
    """Model by the function of the family's form, of one of the modules here, which are imported on first use."""
    name = f"build_{settings.family.builder}"
    modules = (import_module(f"smp_advisor.workload.families.{module}") for module in ("gpt", "decoders", "encoders"))
    builder = next(getattr(module, name) for module in modules if hasattr(module, name))
    return cast("Callable[[Settings], Model]", builder)(settings)
