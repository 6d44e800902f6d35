"""Steps: create and wrap the model and the optimizer as SMP v1 requires."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.aliases import names_of
from smp_advisor.scripts.adapt.code import (
    Edits,
    call_text,
    dotted,
    expression,
    keyword,
    names_in,
    positional,
    statements,
    text_of,
    walk,
)
from smp_advisor.scripts.adapt.construction import Construction, find_construction, wrap_construction
from smp_advisor.scripts.adapt.roles import model_places, optimizer_places, optimizers
from smp_advisor.scripts.adapt.survey import Survey, assigned_names
from smp_advisor.scripts.adapt.wrappers import REPLICATING, SHARDING, take_out_wrappers, uses_of_model

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.adaptation import Draft


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
            draft.abandon("runs_layers_v1", use.node, use=use.name)
            return False
        edits.replace(use.node.value, cst.Attribute(value=use.node.value, attr=cst.Name("module")))
    draft.apply(edits)
    return True


def _report_lost_weights(draft: Draft, construction: Construction) -> None:
    survey = draft.survey
    if draft.target.tensor_parallel:
        for call in (node for node in walk(construction.statement) if isinstance(node, cst.Call)):
            if isinstance(call.func, cst.Attribute) and call.func.attr.value == "from_pretrained":
                draft.add_todo("loses_weights", construction.statement)
    places = model_places(survey) | optimizer_places(survey)
    for call in survey.calls:
        owner, _, method = (dotted(call.func) or "").rpartition(".")
        if method == "load_state_dict" and owner in names_of(survey, places, survey.function(call)):
            draft.add_todo("loads_undivided", call=text_of(call))


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
                    draft.add_todo("updates_early", above, text=text)
                if _defined_at_wrapper(survey, construction, function, count):
                    return text
                draft.add_todo("define_passes", text=text)
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


_SCALING = (
    "static_loss_scale=None",
    "dynamic_loss_scale=True",
    'dynamic_loss_args={"scale_window": 1000, "min_scale": 1, "delayed_shift": 2}',
)


def wrap_optimizer(draft: Draft) -> None:
    """Wrap every optimizer where it is created."""
    survey, edits = draft.survey, Edits()
    for optimizer in optimizers(survey):
        if any(
            "DistributedOptimizer" in text_of(above.func)
            for above in survey.ancestors(optimizer.call)
            if isinstance(above, cst.Call)
        ):
            continue
        scaling = _SCALING if draft.target.fp16 else ()
        statement = survey.statement(optimizer.call)
        if optimizer.name is not None and statement is not None:
            before = f"{optimizer.name} = "
            text = before + call_text("smp.DistributedOptimizer", [optimizer.name, *scaling], width=92, before=before)
            edits.insert_after(statement, statements(text))
        elif isinstance(survey.parent(optimizer.call), cst.Return):
            inner = text_of(optimizer.call)
            edits.replace(
                optimizer.call, expression(call_text("smp.DistributedOptimizer", [inner, *scaling], width=84))
            )
        else:
            draft.add_todo("wrap_optimizer", optimizer.call)
    draft.apply(edits)
    if draft.target.fp16:
        _schedule_inner_optimizer(draft)


def _schedule_inner_optimizer(draft: Draft) -> None:
    """Pass the inner optimizer to schedules: in fp16 the wrapper is not a ``torch.optim.Optimizer``."""
    survey, edits = draft.survey, Edits()
    places = optimizer_places(survey)
    for call in survey.calls:
        if not is_schedule(survey, call):
            continue
        argument = keyword(call, "optimizer") or positional(call, 0)
        name = dotted(argument.value) if argument is not None else None
        if argument is not None and name is not None and name in names_of(survey, places, survey.function(call)):
            edits.replace(argument.value, expression(f"{name}.optimizer"))
    draft.apply(edits)


def is_schedule(survey: Survey, call: cst.Call) -> bool:
    """Whether a call creates a learning-rate schedule."""
    name = survey.callee(call)
    last = name.rpartition(".")[2]
    return (
        name.startswith("torch.optim.lr_scheduler.") or (last.startswith("get_") and "schedul" in last)
    ) and not survey.named(last)
