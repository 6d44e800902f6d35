"""Step: gradients are clipped where all of them are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.aliases import names_of
from smp_advisor.scripts.adapt.code import dotted, expression, keyword, positional, spelled
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.imports import drop_unused_imports
from smp_advisor.scripts.adapt.roles import optimizer_places

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["CLIP", "clip_by_library"]

CLIP = frozenset(
    {"torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_norm", "torch.nn.utils.clip_grad.clip_grad_norm_"}
)


def clip_by_library(draft: Draft) -> None:
    """Replace or remove ``clip_grad_norm_`` as the plan needs it."""
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
                if limit is not None and spelled(limit.value) not in ("1", "1.0"):
                    draft.leave_to_do(
                        "Gradients are clipped by the library now: set sdp_gradient_clipping to"
                        f" {spelled(limit.value)} in the plan, it is 1.0 by default."
                    )
            else:
                draft.leave_to_do(
                    f"`{draft.at(call)}`: sharded data parallelism clips by itself (sdp_gradient_clipping) and has no"
                    " norm to give."
                )
        elif target.fp16:
            names = sorted(names_of(survey, optimizer_places(survey), survey.function(call)))
            stepped = [
                dotted(other.func.value)
                for other in survey.calls
                if isinstance(other.func, cst.Attribute)
                and other.func.attr.value == "step"
                and survey.function(other) is survey.function(call)
                and dotted(other.func.value) in names
            ]
            if limit is None or not stepped:
                draft.leave_to_do(f"`{draft.at(call)}`: clip by optimizer.clip_master_grads(max_norm) in fp16.")
                continue
            edits.replace(call, expression(f"{stepped[0]}.clip_master_grads({spelled(limit.value)})"))
        elif target.pipeline_parallel or target.tensor_parallel:
            draft.leave_to_do(
                f"`{draft.at(call)}` sees the gradients of this partition only: add up the squared norms over the"
                " model's partitions before clipping."
            )
    draft.apply(edits)
    drop_unused_imports(draft, set(CLIP))
