"""Steps: the batch, accumulation, precision, clipping over shards and checkpointing of the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.code import Edits, dotted, expression, keyword, positional, statements, text_of, walk
from smp_advisor.scripts.adapt.construction import LAYER_CLASSES, find_construction, find_constructions
from smp_advisor.scripts.adapt.roles import (
    backward_calls,
    is_held_out,
    loader_calls,
    model_places,
    names_of,
    optimizer_places,
)
from smp_advisor.scripts.adapt.survey import Survey, known_names, targets_of

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.adaptation import Draft


AUTOCAST = frozenset(known_names("autocast"))
SCALER = frozenset(known_names("gradient_scalers"))
HALF = "torch.bfloat16"
CLIP = frozenset(known_names("clipping"))


def set_batch(draft: Draft) -> None:
    """Give the training loaders the batch size of the plan, where it is written."""
    survey, edits = draft.survey, Edits()
    for call in loader_calls(survey) if draft.target.planned else ():
        argument = keyword(call, "batch_size") or positional(call, 1)
        if argument is not None and not is_held_out(survey, call):
            name = (dotted(argument.value) or "").rpartition(".")[2]
            written = [value for names, value in _numbers(survey) if name in names]
            _set(edits, written[-1] if written else argument.value, draft.target.plan.batch_size)
    draft.apply(edits)


def _set(edits: Edits, value: cst.BaseExpression, number: int) -> None:
    if text_of(value) != str(number):
        edits.replace(value, cst.Integer(str(number)))


def _numbers(survey: Survey) -> list[tuple[list[str], cst.Integer]]:
    """Integers with the names that they are assigned to, or whose default they are as options."""
    numbers = []
    for node in survey.nodes:
        value, names = None, list[str]()
        if isinstance(node, cst.Assign | cst.AnnAssign):
            value, names = node.value, [(dotted(t) or "").rpartition(".")[2] for t in targets_of(node)]
        elif isinstance(node, cst.Call) and (dotted(node.func) or "").endswith(".add_argument"):
            default = keyword(node, "default")
            value = default.value if default is not None else None
            names = [text_of(a.value).strip("\"'-").replace("-", "_") for a in node.args if a.keyword is None]
        if isinstance(value, cst.Integer):
            numbers.append((names, value))
    return numbers


def accumulate(draft: Draft) -> None:
    """Update the parameters after every so many backward passes, with the mean of their gradients."""
    survey, edits, count = draft.survey, Edits(), draft.target.plan.gradient_accumulation_steps
    if not draft.target.planned:
        return
    own = next((value for names, value in _numbers(survey) if any("accum" in name.lower() for name in names)), None)
    if own is not None:
        _set(edits, own, count)
        draft.apply(edits)
        return
    backwards = backward_calls(survey)
    loops = [loop for call in backwards for loop in survey.loops(call)[:1]]
    each_batch = bool(loops) and isinstance(loops[0], cst.For) and "epoch" not in text_of(loops[0].target)
    if count > 1 and len(backwards) == 1 and each_batch:
        _accumulate(draft, backwards[0], cst.ensure_type(loops[0], cst.For), count)


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
    loss = text_of(cst.ensure_type(call.func, cst.Attribute).value)
    if (
        text_of(loop.iter).startswith("enumerate(")
        and isinstance(loop.target, cst.Tuple)
        and "," not in text_of(loop.iter)
    ):
        index = text_of(loop.target.elements[0].value)
    else:
        index, target = survey.free_name("batch_index", "index_of_batch"), text_of(loop.target)
        target = f"({target})" if isinstance(loop.target, cst.Tuple) and not target.startswith("(") else target
        text = f"for {index}, {target} in enumerate({text_of(loop.iter)}):\n    pass\n"
        header = cst.ensure_type(statements(text)[0], cst.For)
        edits.replace(loop.target, header.target)
        edits.replace(loop.iter, header.iter)
    edits.replace(cst.ensure_type(call.func, cst.Attribute).value, expression(f"({loss} / {count})"))
    new = cst.ensure_type(statements(f"if ({index} + 1) % {count} == 0:\n    pass\n")[0], cst.If)
    body = [update[0].with_changes(leading_lines=[]), *update[1:], clearing[0].with_changes(leading_lines=[])]
    edits.insert_after(statement, [new.with_changes(body=new.body.with_changes(body=body))])
    for old in (*update, *clearing):
        edits.remove(old)
    draft.apply(edits)


def computes_in_half(survey: Survey) -> bool:
    """Whether the script chooses its precision itself."""
    return any(survey.callee(call) in AUTOCAST for call in survey.calls)


def compute_in_half(draft: Draft) -> None:
    """Put the statements from the first call of the model to the backward pass under autocast."""
    survey, edits = draft.survey, Edits()
    if not draft.target.half_planned or computes_in_half(survey):
        return
    backwards = backward_calls(survey)
    for call in backwards:
        statement = survey.statement(call)
        block = survey.body_of(statement) if statement is not None else []
        models = names_of(survey, model_places(survey), survey.function(call))
        end = block.index(statement) if statement in block else 0
        begin = max((n + 1 for n in range(end) if any(node in backwards for node in walk(block[n]))), default=0)
        start = next((n for n in range(begin, end) if _calls(block[n], models)), None)
        if start is None:
            if statement is not None and _calls(statement, models):
                draft.add_todo("autocast_by_hand", call)
            continue
        device = 'device_type="cuda" if torch.cuda.is_available() else "cpu"'
        new = cst.ensure_type(statements(f"with torch.autocast({device}, dtype={HALF}):\n    pass\n")[0], cst.With)
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


def clip_over_shards(draft: Draft) -> None:
    """Replace ``clip_grad_norm_`` by the function of SMP v2, which takes the norm of all shards."""
    survey, edits = draft.survey, Edits()
    for call in survey.calls:
        if survey.callee(call) not in CLIP:
            continue
        parameters, limit = positional(call, 0), keyword(call, "max_norm") or positional(call, 1)
        called = parameters.value if parameters is not None else None
        model = (dotted(called.func) or "").rpartition(".parameters")[0] if isinstance(called, cst.Call) else ""
        if not model or limit is None:
            draft.add_todo("clips_shards", call)
            continue
        edits.replace(call, expression(f"clip_grad_norm_of_shards_({model}, {text_of(limit.value)})"))
    draft.apply(edits)


def checkpoint_layers(draft: Draft) -> None:
    """Checkpoint the repeated layers: after FSDP of SMP v2, or before the model is replicated or sharded."""
    if not draft.target.plan.activation_checkpointing:
        return
    constructions, survey, edits = find_constructions(draft), draft.survey, Edits()
    for construction in constructions:
        name = construction.name
        text = "" if "layer_classes" in survey.all_names() else LAYER_CLASSES.format(name=name)
        text += (
            f"apply_activation_checkpointing(\n    {name},\n    checkpoint_wrapper_fn=checkpoint_wrapper,\n"
            "    check_fn=lambda module: isinstance(module, tuple(layer_classes)),\n)\n"
        )
        if draft.target.plan.offload_activations:
            text += f"{name} = offload_wrapper({name})\n"
        wrapper = next((c for c in survey.calls if survey.callee(c).endswith(".FullyShardedDataParallel")), None)
        after = survey.statement(wrapper) if wrapper is not None else None
        edits.insert_after(after or construction.last, statements(text))
    if "ModuleList" not in survey.all_names():
        draft.add_todo("no_checkpointed_class")
    draft.apply(edits)


def checkpoint_activations(draft: Draft) -> None:
    """Call the library on the repeated layers."""
    survey, edits, strategy = draft.survey, Edits(), draft.target.plan.activation_checkpointing
    wrapper = next((c for c in survey.calls if survey.callee(c).endswith(".DistributedModel")), None)
    construction = find_construction(draft) if strategy and wrapper is not None else None
    if construction is None or wrapper is None:
        return
    text = (
        f"for stack in {construction.name}.module.modules():\n    if isinstance(stack, torch.nn.ModuleList):\n"
        "        for layer in stack:\n            smp.set_activation_checkpointing(layer)\n"
    )
    edits.insert_after(survey.statement(wrapper) or construction.last, statements(text))
    if strategy != "each" or "ModuleList" not in survey.all_names():
        draft.add_todo("checkpointed_one_by_one", strategy=strategy)
    draft.apply(edits)
