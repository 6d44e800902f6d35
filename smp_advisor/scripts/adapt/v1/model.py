"""Step: the model is created as the plan needs it and wrapped once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.aliases import names_of
from smp_advisor.scripts.adapt.code import call_text, dotted, names_in, spelled, walk
from smp_advisor.scripts.adapt.construction import Construction, find_construction
from smp_advisor.scripts.adapt.plain_model import REPLICATING, SHARDING, take_out_wrappers
from smp_advisor.scripts.adapt.roles import optimizer_places
from smp_advisor.scripts.adapt.survey import Survey, assigned_names
from smp_advisor.scripts.adapt.wrapping import wrap_construction

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["wrap_model"]


def wrap_model(draft: Draft) -> None:
    """Create the model in the plan's contexts and wrap it."""
    take_out_wrappers(draft, REPLICATING | SHARDING)
    found = find_construction(draft)
    if found is None:
        return
    target = draft.target
    _say_what_weights_need(draft, found)
    creation = []
    if target.tensor_parallel:
        creation.append("tensor_parallelism=True")
    if target.half:
        creation.append(f"dtype={target.dtype}")
    context = f"with smp.model_creation({', '.join(creation)})" if creation else ""
    arguments = [found.name]
    if target.shard_optimizer_state:
        arguments += ["overlapping_allreduce=True", "gradient_as_bucket_view=True"]
    passes = _backward_passes(draft, found)
    if passes is not None:
        arguments.append(f"backward_passes_per_step={passes}")
    wrap = f"{found.name} = " + call_text("smp.DistributedModel", arguments, width=96, before=f"{found.name} = ")
    wrap_construction(draft, found, context=context, wrap=wrap)


def _say_what_weights_need(draft: Draft, found: Construction) -> None:
    survey = draft.survey
    if draft.target.tensor_parallel:
        for call in (node for node in walk(found.statement) if isinstance(node, cst.Call)):
            if isinstance(call.func, cst.Attribute) and call.func.attr.value == "from_pretrained":
                draft.leave_to_do(
                    f"`{draft.at(found.statement)}` loads weights that tensor parallelism does not take over:"
                    " create the model by from_config and load them after smp.DistributedModel, by"
                    " smp.resume_from_checkpoint with partial=False."
                )
    for call in survey.calls:
        if dotted(call.func) == f"{found.name}.load_state_dict" and survey.function(call) is found.function:
            draft.leave_to_do(
                f"`{draft.at(call)}` reads a checkpoint of the undivided model: resume by"
                " smp.resume_from_checkpoint, which reads what smp.save_checkpoint wrote."
            )


def _backward_passes(draft: Draft, found: Construction) -> str | None:
    """Passes between two updates, where the script accumulates gradients by a count that is known at the wrapper."""
    survey = draft.survey
    for call in survey.calls:
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "step" or call.args:
            continue
        function = survey.function(call)
        if dotted(call.func.value) not in names_of(survey, optimizer_places(survey), function):
            continue
        for above in survey.ancestors(call):
            if isinstance(above, cst.FunctionDef | cst.For | cst.While):
                break
            if isinstance(above, cst.If):
                count = _modulus(above.test)
                if count is None:
                    continue
                text = spelled(count)
                if isinstance(above.test, cst.BooleanOperation):
                    draft.leave_to_do(
                        f"`{draft.at(above)}` updates early at the end of an epoch: with backward_passes_per_step the"
                        f" number of passes has to be {text} every time."
                    )
                if _known(survey, found, function, count):
                    return text
                draft.leave_to_do(
                    f"Gradients are accumulated over {text} passes: pass backward_passes_per_step={text} to"
                    " smp.DistributedModel, where that name is not known."
                )
    return None


def _modulus(test: cst.BaseExpression) -> cst.BaseExpression | None:
    """``n`` in ``step % n == 0`` and its like."""
    for node in walk(test):
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Modulo):
            return node.right
    return None


def _known(survey: Survey, found: Construction, function: cst.FunctionDef | None, count: cst.BaseExpression) -> bool:
    """Whether the expression means the same at the wrapper."""
    names = names_in(count)
    if not names:
        return True
    if function is found.function:
        block = survey.body_of(found.statement)
        earlier = block[: block.index(found.statement)]
        given = set(survey.parameters(function)) if function is not None else set()
        for statement in earlier:
            given |= assigned_names(statement)
        return all(
            name in given or (not survey.is_bound(function, name) and name in survey.module_names()) for name in names
        )
    return all(
        not survey.is_bound(function, name)
        and not survey.is_bound(found.function, name)
        and name in survey.module_names()
        for name in names
    ) and names != ["self"]
