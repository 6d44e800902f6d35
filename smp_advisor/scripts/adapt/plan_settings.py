"""Steps: the batch, the accumulation, the precision and the checkpointing of the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.aliases import names_of
from smp_advisor.scripts.adapt.code import Edits, dotted, expression, keyword, positional, statements, text_of, walk
from smp_advisor.scripts.adapt.construction import find_construction, repeated_layers
from smp_advisor.scripts.adapt.draft import add_import
from smp_advisor.scripts.adapt.precision import AUTOCAST
from smp_advisor.scripts.adapt.roles import backward_calls, is_held_out, loader_calls, model_places, optimizer_places
from smp_advisor.scripts.adapt.survey import targets_of

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft
    from smp_advisor.scripts.adapt.survey import Survey

_WRAPPERS = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"


def set_batch(draft: Draft) -> None:
    """Give the training loaders the batch size of the plan, where it is written."""
    size = draft.target.batch_size
    survey, edits = draft.survey, Edits()
    for call in loader_calls(survey):
        batch_size = keyword(call, "batch_size") or positional(call, 1)
        if size and batch_size is not None and not is_held_out(survey, call):
            _set(survey, edits, batch_size.value, size)
    draft.apply(edits)


def _set(survey: Survey, edits: Edits, value: cst.BaseExpression, number: int) -> None:
    """Replace an integer where it is assigned or an option's default, or the expression itself."""
    name = (dotted(value) or "").rpartition(".")[2]
    for node in survey.nodes:
        if isinstance(node, cst.Assign | cst.AnnAssign) and isinstance(node.value, cst.Integer):
            if any((dotted(target) or "").rpartition(".")[2] == name for target in targets_of(node)):
                value = node.value
        elif (
            isinstance(node, cst.Call)
            and isinstance(node.func, cst.Attribute)
            and node.func.attr.value == "add_argument"
        ):
            default = keyword(node, "default")
            options = [text_of(arg.value).strip("\"'-").replace("-", "_") for arg in node.args if arg.keyword is None]
            if name in options and default is not None and isinstance(default.value, cst.Integer):
                value = default.value
    if text_of(value) != str(number):
        edits.replace(value, cst.Integer(str(number)))


def accumulate(draft: Draft) -> None:
    """Update the parameters after every so many backward passes, with the mean of their gradients."""
    count = draft.target.accumulation
    if not count:
        return
    survey = draft.survey
    own = next((a for a in _assigned_numbers(survey) if "accum" in a[0].lower()), None)
    if own is not None:
        edits = Edits()
        if own[1].value != str(count):
            edits.replace(own[1], cst.Integer(str(count)))
        draft.apply(edits)
        return
    backwards = backward_calls(survey)
    loops = [loop for call in backwards for loop in survey.loops(call)[:1]]
    if count == 1 or len(backwards) != 1 or not loops or not isinstance(loops[0], cst.For):
        return
    _accumulate(draft, backwards[0], loops[0], count)


def _assigned_numbers(survey: Survey) -> list[tuple[str, cst.Integer]]:
    """Names with integers: assignments and defaults of options."""
    numbers = [
        (dotted(target) or "", node.value)
        for node in survey.nodes
        if isinstance(node, cst.Assign | cst.AnnAssign) and isinstance(node.value, cst.Integer)
        for target in targets_of(node)
    ]
    for call in survey.calls:
        default = keyword(call, "default")
        is_option = isinstance(call.func, cst.Attribute) and call.func.attr.value == "add_argument"
        if is_option and default is not None and isinstance(default.value, cst.Integer):
            numbers.append((text_of(call.args[0].value), default.value))
    return numbers


def _accumulate(draft: Draft, call: cst.Call, loop: cst.For, count: int) -> None:
    survey, edits = draft.survey, Edits()
    statement = survey.statement(call)
    block = survey.body_of(statement) if statement is not None else []
    optimizers = names_of(survey, optimizer_places(survey), survey.function(call))
    if statement is None or block != list(loop.body.body) or not isinstance(statement, cst.SimpleStatementLine):
        return
    place = block.index(statement)
    clearing = [s for s in block if any(f"{name}.zero_grad(" in text_of(s) for name in optimizers)]
    updating = [n for n in range(place + 1, len(block)) if any(f"{o}.step(" in text_of(block[n]) for o in optimizers)]
    if not updating or not clearing or not all(isinstance(s, cst.SimpleStatementLine) for s in clearing):
        return
    last = updating[-1]
    following = last + 1
    while following < len(block) and (block[following] in clearing or "sched" in text_of(block[following])):
        following += 1
    update = [s for s in block[place + 1 : following] if s not in clearing]
    index = survey.free_name("batch_index", "index_of_batch")
    loss = cst.ensure_type(call.func, cst.Attribute).value
    counted = (
        isinstance(loop.iter, cst.Call) and dotted(loop.iter.func) == "enumerate" and isinstance(loop.target, cst.Tuple)
    )
    if counted and isinstance(loop.target, cst.Tuple) and len(loop.iter.args) == 1:  # type: ignore[attr-defined]
        index = text_of(loop.target.elements[0].value)
    edits.replace(loss, expression(f"({text_of(loss)} / {count})"))
    new = cst.ensure_type(statements(f"if ({index} + 1) % {count} == 0:\n    pass\n")[0], cst.If)
    body = [s.with_changes(leading_lines=[]) if n == 0 else s for n, s in enumerate([*update, clearing[0]])]
    body[-1] = body[-1].with_changes(leading_lines=[])
    edits.insert_after(statement, [new.with_changes(body=new.body.with_changes(body=body))])
    for old in (*update, *clearing):
        edits.remove(old)
    if not (counted and index != "batch_index"):
        target = text_of(loop.target)
        target = f"({target})" if isinstance(loop.target, cst.Tuple) and not target.startswith("(") else target
        header = cst.ensure_type(
            statements(f"for {index}, {target} in enumerate({text_of(loop.iter)}):\n    pass\n")[0], cst.For
        )
        edits.replace(loop.target, header.target)
        edits.replace(loop.iter, header.iter)
    draft.apply(edits)


def compute_in_half(draft: Draft) -> None:
    """Compute in the precision of the plan: by the wrapper of shards, or by autocast around the forward pass."""
    dtype = draft.target.planned_dtype
    survey, edits = draft.survey, Edits()
    if not dtype or any(survey.callee(call) in AUTOCAST for call in survey.calls):
        return
    if draft.target.kind == "ddp":
        _autocast(draft, dtype)
        return
    policy, option = (
        ("MixedPrecisionPolicy", "mp_policy") if draft.target.kind == "fsdp2" else ("MixedPrecision", "mixed_precision")
    )
    reduced = "torch.float32" if draft.target.kind == "fsdp2" else dtype
    suffix = ".fully_shard" if draft.target.kind == "fsdp2" else ".FullyShardedDataParallel"
    for call in survey.calls:
        if survey.callee(call).endswith(suffix) and keyword(call, option) is None:
            value = expression(f"{policy}(param_dtype={dtype}, reduce_dtype={reduced})")
            equal = cst.AssignEqual(
                whitespace_before=cst.SimpleWhitespace(""), whitespace_after=cst.SimpleWhitespace("")
            )
            last = call.args[-1]
            between = (
                last.comma
                if isinstance(last.comma, cst.Comma)
                else cst.Comma(cst.SimpleWhitespace(""), cst.SimpleWhitespace(" "))
            )
            before = call.args[-2].comma if len(call.args) > 1 else between
            added = cst.Arg(keyword=cst.Name(option), value=value, equal=equal, comma=last.comma)
            edits.replace(call, call.with_changes(args=[*call.args[:-1], last.with_changes(comma=before), added]))
    changed = bool(edits)
    draft.apply(edits)
    if changed:
        add_import(draft, f"from torch.distributed.fsdp import {policy}", local=policy)


def _autocast(draft: Draft, dtype: str) -> None:
    """Put the statements from the first call of the model to the backward pass under autocast."""
    survey, edits = draft.survey, Edits()
    for call in backward_calls(survey):
        statement = survey.statement(call)
        block = survey.body_of(statement) if statement is not None else []
        models = names_of(survey, model_places(survey), survey.function(call))
        end = block.index(statement) if statement in block else 0
        start = next((n for n in range(end) if _calls(block[n], models)), None)
        if start is None:
            if statement is not None and _calls(statement, models):
                draft.add_todo("autocast_by_hand", call)
            continue
        device = 'device_type="cuda" if torch.cuda.is_available() else "cpu"'
        text = f"with torch.autocast({device}, dtype={dtype}):\n    pass\n"
        new = cst.ensure_type(statements(text)[0], cst.With)
        moved = block[start:end]
        body = [moved[0].with_changes(leading_lines=[]), *moved[1:]]
        edits.insert_before(
            moved[0], [new.with_changes(body=new.body.with_changes(body=body), leading_lines=moved[0].leading_lines)]
        )
        for old in moved:
            edits.remove(old)
    draft.apply(edits)


def _calls(statement: cst.CSTNode, models: set[str]) -> bool:
    return any(isinstance(node, cst.Call) and dotted(node.func) in models for node in walk(statement))


def checkpoint_layers(draft: Draft) -> None:
    """Wrap the repeated layers with checkpoint_wrapper before the model is replicated or sharded by tensor."""
    if not draft.target.activation_checkpointing:
        return
    construction = find_construction(draft)
    survey = draft.survey
    layers = repeated_layers(survey, construction) if construction is not None else None
    if construction is None or layers is None or not layers.layer_class:
        draft.add_todo("no_checkpointed_class")
        return
    text = (
        f"apply_activation_checkpointing(\n    {construction.name},\n    checkpoint_wrapper_fn=checkpoint_wrapper,\n"
        f"    check_fn=lambda module: isinstance(module, {layers.layer_class}),\n)\n"
    )
    edits = Edits()
    edits.insert_after(construction.last, statements(text))
    draft.apply(edits)
    names = "apply_activation_checkpointing, checkpoint_wrapper"
    add_import(draft, f"from {_WRAPPERS} import {names}", local="apply_activation_checkpointing")
