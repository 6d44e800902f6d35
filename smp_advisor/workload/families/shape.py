"""The shape of a model, from the values of its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.workload.model import Shape

if TYPE_CHECKING:
    from smp_advisor.workload.settings import Settings

__all__ = ["shape_of"]


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
    return shape
