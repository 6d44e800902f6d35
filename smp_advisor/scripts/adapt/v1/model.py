"""Step: create the model as the plan requires, and wrap it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.aliases import names_of
from smp_advisor.scripts.adapt.code import call_text, dotted, names_in, text_of, walk
from smp_advisor.scripts.adapt.construction import Construction, find_construction
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.model_attributes import uses_of_model
from smp_advisor.scripts.adapt.plain_model import REPLICATING, SHARDING, take_out_wrappers
from smp_advisor.scripts.adapt.roles import model_places, optimizer_places
from smp_advisor.scripts.adapt.survey import Survey, assigned_names
from smp_advisor.scripts.adapt.v1.extraction import NEAREST
from smp_advisor.scripts.adapt.wrapping import wrap_construction

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["wrap_model"]

_OF_LIBRARY = frozenset(
    {"state_dict", "load_state_dict", "save_pretrained", "backward", "local_parameters", "local_state_dict", "join"}
)
"""Attributes of ``smp.DistributedModel``, and calls that the step for checkpoints replaces."""


def wrap_model(draft: Draft) -> None:
    """Create the model in ``smp.model_creation`` if required, and wrap it."""
    take_out_wrappers(draft, REPLICATING | SHARDING)
    construction = find_construction(draft)
    if construction is None or not _reach_inner_attributes(draft, construction):
        return
    construction = find_construction(draft)
    if construction is None:
        return
    target = draft.target
    _report_lost_weights(draft, construction)
    creation = []
    if target.tensor_parallel:
        creation.append("tensor_parallelism=True")
    if target.half:
        creation.append(f"dtype={target.dtype}")
    context = f"with smp.model_creation({', '.join(creation)})" if creation else ""
    arguments = [construction.name]
    if target.shard_optimizer_state:
        arguments += ["overlapping_allreduce=True", "gradient_as_bucket_view=True"]
    passes = _backward_passes(draft, construction)
    if passes is not None:
        arguments.append(f"backward_passes_per_step={passes}")
    wrap = f"{construction.name} = " + call_text(
        "smp.DistributedModel", arguments, width=96, before=f"{construction.name} = "
    )
    wrap_construction(draft, construction, context=context, wrap=wrap)


def _reach_inner_attributes(draft: Draft, construction: Construction) -> bool:
    """Reach attributes of the model through ``.module``; False if a method other than forward runs layers."""
    edits = Edits()
    for use in uses_of_model(draft, construction, start=construction.last):
        if use.attribute in _OF_LIBRARY:
            continue
        if use.runs_layers:
            draft.abandon(
                f"`{draft.excerpt(use.node)}` runs layers through `{use.name}`, and the library divides only the"
                f" forward method of the model. {NEAREST}"
            )
            return False
        edits.replace(use.node.value, cst.Attribute(value=use.node.value, attr=cst.Name("module")))
    draft.apply(edits)
    return True


def _report_lost_weights(draft: Draft, construction: Construction) -> None:
    survey = draft.survey
    if draft.target.tensor_parallel:
        for call in (node for node in walk(construction.statement) if isinstance(node, cst.Call)):
            if isinstance(call.func, cst.Attribute) and call.func.attr.value == "from_pretrained":
                draft.add_todo(
                    f"`{draft.excerpt(construction.statement)}` loads weights that tensor parallelism discards: create"
                    " the model with from_config, and load the weights after smp.DistributedModel with"
                    " smp.resume_from_checkpoint(..., partial=False)."
                )
    places = model_places(survey) | optimizer_places(survey)
    for call in survey.calls:
        owner, _, method = (dotted(call.func) or "").rpartition(".")
        if method == "load_state_dict" and owner in names_of(survey, places, survey.function(call)):
            draft.add_todo(
                f"`{text_of(call)}` loads a checkpoint of the undivided model: load it with"
                " smp.resume_from_checkpoint, which restores the model and the optimizer from smp.save_checkpoint and"
                " returns the other entries (user_content)."
            )


def _backward_passes(draft: Draft, construction: Construction) -> str | None:
    """Expression of the backward passes per update, if gradients accumulate and it is defined at the wrapper."""
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
                text = text_of(count)
                if isinstance(above.test, cst.BooleanOperation):
                    draft.add_todo(
                        f"`{draft.excerpt(above)}` updates early at the end of an epoch: backward_passes_per_step"
                        f" requires exactly {text} passes for every update."
                    )
                if _defined_at_wrapper(survey, construction, function, count):
                    return text
                draft.add_todo(
                    f"Gradients are accumulated over {text} passes: pass backward_passes_per_step={text} to"
                    f" smp.DistributedModel, and define {text} before it."
                )
    return None


def _modulus(test: cst.BaseExpression) -> cst.BaseExpression | None:
    """``n`` in a condition such as ``step % n == 0``."""
    for node in walk(test):
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Modulo):
            return node.right
    return None


def _defined_at_wrapper(
    survey: Survey, construction: Construction, function: cst.FunctionDef | None, count: cst.BaseExpression
) -> bool:
    """Whether the expression has the same meaning at the wrapper."""
    names = names_in(count)
    if not names:
        return True
    if function is construction.function:
        block = survey.body_of(construction.statement)
        earlier = block[: block.index(construction.statement)]
        available = set(survey.parameters(function)) if function is not None else set()
        for statement in earlier:
            available |= assigned_names(statement)
        return all(
            name in available or (not survey.is_bound(function, name) and name in survey.module_names())
            for name in names
        )
    return all(
        not survey.is_bound(function, name)
        and not survey.is_bound(construction.function, name)
        and name in survey.module_names()
        for name in names
    ) and names != ["self"]
