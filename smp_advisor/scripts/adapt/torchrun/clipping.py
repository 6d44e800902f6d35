"""Step: clip gradients by their norm over the shards of all processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.scripts.adapt.code import expression, keyword, positional, text_of
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.imports import drop_unused_imports
from smp_advisor.scripts.adapt.v1.clipping import CLIP
from smp_advisor.scripts.adapt.v2.clipping import owner_of_parameters

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["clip_over_shards"]


def clip_over_shards(draft: Draft) -> None:
    """Replace ``torch.nn.utils.clip_grad_norm_`` by the method of FSDP."""
    survey, edits = draft.survey, Edits()
    for call in survey.calls:
        if survey.callee(call) not in CLIP:
            continue
        parameters, limit = positional(call, 0), keyword(call, "max_norm") or positional(call, 1)
        model = owner_of_parameters(parameters.value) if parameters is not None else None
        if model is None or limit is None:
            draft.add_todo(
                f"`{draft.excerpt(call)}` uses only the shards of this process: clip with clip_grad_norm_ of the FSDP"
                " model."
            )
            continue
        edits.replace(call, expression(f"{model}.clip_grad_norm_({text_of(limit.value)})"))
    draft.apply(edits)
    drop_unused_imports(draft, set(CLIP))
