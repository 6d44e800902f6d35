"""Step: clip gradients by their norm over all shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.code import dotted, expression, keyword, names_in, positional, text_of, walk
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.imports import add_import, drop_unused_imports
from smp_advisor.scripts.adapt.v1.clipping import CLIP

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["clip_over_shards", "owner_of_parameters", "replace_clipping"]


def clip_over_shards(draft: Draft) -> None:
    """Replace ``clip_grad_norm_`` by the function of the library."""
    if replace_clipping(draft, "clip_grad_norm_({model}, {limit})", "torch.sagemaker.grad_norm.clip_grad_norm_"):
        add_import(draft, "from torch.sagemaker.grad_norm import clip_grad_norm_", local="clip_grad_norm_")


def replace_clipping(draft: Draft, form: str, function: str) -> bool:
    """Replace torch's ``clip_grad_norm_``, and return whether a call was replaced.

    Parameters
    ----------
    form
        The new call, with the fields ``model`` and ``limit``.
    function
        What to call, for the to-do where the model or the limit is not visible.
    """
    survey, edits = draft.survey, Edits()
    for call in survey.calls:
        if survey.callee(call) not in CLIP:
            continue
        parameters, limit = positional(call, 0), keyword(call, "max_norm") or positional(call, 1)
        model = owner_of_parameters(parameters.value) if parameters is not None else None
        if model is None or limit is None:
            draft.add_todo(f"`{draft.excerpt(call)}` uses only the shards of this process: clip with {function}.")
            continue
        edits.replace(call, expression(form.format(model=model, limit=text_of(limit.value))))
    if not edits:
        return False
    draft.apply(edits)
    drop_unused_imports(draft, set(CLIP))
    return True


def owner_of_parameters(node: cst.CSTNode) -> str | None:
    """``model`` in ``model.parameters()``."""
    for inner in walk(node):
        if (
            isinstance(inner, cst.Call)
            and isinstance(inner.func, cst.Attribute)
            and inner.func.attr.value == "parameters"
        ):
            return dotted(inner.func.value)
    names = names_in(node)
    return names[0] if len(names) == 1 and "model" in names[0] else None
