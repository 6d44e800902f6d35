"""A model from the few numbers a person recognises it by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ModelError
from smp_advisor.workload.build import model_from_values
from smp_advisor.workload.family import family as family_of

if TYPE_CHECKING:
    from smp_advisor.workload.model import Model

__all__ = ["model_from_shape"]


def model_from_shape(
    *,
    layers: int,
    hidden: int,
    heads: int,
    vocab: int | None,
    family: str,
    kv_heads: int | None,
    ffn: int | None,
    max_positions: int | None,
    tied: bool | None,
    experts: int | None,
    experts_per_token: int | None,
    name: str | None,
) -> Model:
    """Model of the given shape; see `Model.from_shape`."""
    if family == "llama" and experts is not None and experts > 1:
        family = "mixtral"  # the sparse form of the same blocks
    facts = family_of(family, source="family")
    wanted: dict[str, Any] = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "vocab": vocab,
        "kv_heads": kv_heads,
        "ffn": ffn,
        "max_positions": max_positions,
        "tied": tied,
        "experts": experts,
        "experts_per_token": experts_per_token,
    }
    values: dict[str, Any] = {"model_type": family}
    for field, value in wanted.items():
        if value is None:
            continue
        if field not in facts.shape_keys:
            works = ", ".join(facts.shape_keys)
            raise ModelError(f"The family {family!r} has no {field}; its shape is given by {works}.")
        values[facts.shape_keys[field]] = value
    if family == "falcon" and kv_heads not in (None, 1):
        # Falcon's code reads the number of key-value heads only in its second form, and has one or as many as heads.
        values["multi_query"] = False
        values["new_decoder_architecture"] = kv_heads != heads
    for field, value in _conventions(family, hidden, heads, kv_heads).items():
        if field in facts.shape_keys:
            values.setdefault(facts.shape_keys[field], value)
    if "activation_function" in facts.defaults and facts.defaults["activation_function"] == "gelu_new":
        # The class default runs GELU as eight separate operations and keeps 3 ffn more elements a token; a shape has
        # no checkpoint to stay compatible with, so it gets PyTorch's single kernel, as Megatron and SMP do.
        values["activation_function"] = "gelu"
    label = name or f"{facts.label} {layers} × {hidden}"
    return model_from_values(values, source="the shape", name=label)


def _conventions(family: str, hidden: object, heads: object, kv_heads: object) -> dict[str, Any]:
    """What a shape leaves open, by the habit of its family rather than by one checkpoint's configuration."""
    if isinstance(hidden, bool) or not isinstance(hidden, int):
        return {}
    if family in {"llama", "mistral", "mixtral"}:
        # Llama 3: feed-forward width 3.5 h for 32 heads with 8 key-value heads, else two thirds of 4 h, both rounded up
        # to a multiple of 256; one key-value head a head unless given.
        wide = 7 * hidden // 2 if kv_heads not in (None, heads) else 8 * hidden // 3
        return {"ffn": -(-wide // 256) * 256, "kv_heads": heads, "max_positions": 2048}
    return {"ffn": 4 * hidden, "max_positions": 2048}
