"""Step: clip gradients with the library."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.aliases import names_of
from smp_advisor.scripts.adapt.code import dotted, expression, keyword, positional, text_of
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.imports import drop_unused_imports
from smp_advisor.scripts.adapt.known_names import known_names
from smp_advisor.scripts.adapt.roles import optimizer_places

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["CLIP", "clip_by_library"]

CLIP = frozenset(known_names("clipping"))


def clip_by_library(draft: Draft) -> None:
    """Replace or remove ``clip_grad_norm_``, depending on the plan."""
    survey, edits, target = draft.survey, Edits(), draft.target
    for call in survey.calls:
        if survey.callee(call) not in CLIP:
            continue
        statement = survey.statement(call)
        alone = isinstance(survey.parent(call), cst.Expr)
        limit = keyword(call, "max_norm") or positional(call, 1)
        if target.sharded_data_parallel:
            if alone and statement is not None:
                edits.remove(statement)
                if limit is not None and text_of(limit.value) not in ("1", "1.0"):
                    draft.add_todo(
                        "The library now clips gradients: set sdp_gradient_clipping to"
                        f" {text_of(limit.value)} in the plan (default 1.0)."
                    )
            else:
                draft.add_todo(
                    f"`{draft.excerpt(call)}`: sharded data parallelism clips gradients itself (sdp_gradient_clipping)"
                    " and does not return their norm."
                )
        elif target.fp16:
            names = sorted(names_of(survey, optimizer_places(survey), survey.function(call)))
            stepped = [
                dotted(site.func.value)
                for site in survey.calls
                if isinstance(site.func, cst.Attribute)
                and site.func.attr.value == "step"
                and survey.function(site) is survey.function(call)
                and dotted(site.func.value) in names
            ]
            if limit is None or not stepped:
                draft.add_todo(f"`{draft.excerpt(call)}`: in fp16, clip with optimizer.clip_master_grads(max_norm).")
                continue
            edits.replace(call, expression(f"{stepped[0]}.clip_master_grads({text_of(limit.value)})"))
        elif target.pipeline_parallel or target.tensor_parallel:
            draft.add_todo(
                f"`{draft.excerpt(call)}` uses the gradients of this partition only: add up the squared norms over all"
                " partitions of the model before clipping."
            )
    draft.apply(edits)
    drop_unused_imports(draft, set(CLIP))
