"""A model from the few numbers of its shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.arguments import require_types
from smp_advisor.errors import ModelError
from smp_advisor.workload.build import model_from_values
from smp_advisor.workload.counts import check_sizes
from smp_advisor.workload.family import family as family_of

if TYPE_CHECKING:
    from smp_advisor.workload.family import Family
    from smp_advisor.workload.model import Model

__all__ = ["model_from_shape"]


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
    require_types({name: (size, (int, float)) for name, size in required.items()}, "from_shape")
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
    """Values that a shape leaves open, by the conventions of its family."""
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
