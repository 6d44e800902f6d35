"""A model in one line of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.workload.counts import format_count
from smp_advisor.workload.family import families

if TYPE_CHECKING:
    from smp_advisor.workload.model import Model

__all__ = ["summary"]


def summary(model: Model) -> str:
    """Shape, size and their origin."""
    shape = model.shape
    family = families().get(model.family)
    parts = [f"{family.label if family else model.family} shape", f"{model.layer_count} layers"]
    if model.has_width:
        parts.append(f"hidden {shape.hidden}")
    if model.attends:
        heads = f"{shape.heads} head{'s' if shape.heads > 1 else ''}"
        parts.append(heads + (f" ({shape.kv_heads} key-value)" if shape.kv_heads != shape.heads else ""))
    if shape.experts > 1:
        parts.append(f"{shape.experts} experts ({shape.experts_per_token} per token)")
    if shape.vocab:
        parts.append(f"vocabulary {shape.vocab:,}")
    aside = model.note.split(";")[0] if model.origin != "given" else ""
    return f"{', '.join(parts)}; {format_count(model.parameter_count)} parameters" + (f" ({aside})" if aside else "")
