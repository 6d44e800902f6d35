"""Steps: move the passes of a loop into `@smp.step` functions, or refuse a loop whose meaning they would change."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import libcst as cst

from smp_advisor.reading.block_names import BlockNames, names_of_block
from smp_advisor.scripts.adapt.adaptation import sentence
from smp_advisor.scripts.adapt.code import (
    Edits,
    call_text,
    children,
    dotted,
    expression,
    names_in,
    statements,
    text_of,
    walk,
    without_moves,
)
from smp_advisor.scripts.adapt.roles import backward_calls, is_bound, model_places, module_names, names_of
from smp_advisor.scripts.adapt.survey import BUILTINS, Function, Statement, Survey, known_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smp_advisor.scripts.adapt.adaptation import Draft


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """Statements of one block that become a function, and where the others between them go."""

    function: Function
    block: list[Statement]
    models: set[str]
    moved: list[Statement]
    hoisted: list[Statement] = field(default_factory=list)
    """Stay in the loop, before the call of the function."""
    deferred: list[Statement] = field(default_factory=list)
    """Stay in the loop, after the call of the function."""
    backward: cst.Call | None = None
    """None for a forward pass alone."""


def move_training_steps(draft: Draft) -> None:
    """Create one function per backward pass; most scripts have only one."""
    for _ in range(8):
        call = next(iter(backward_calls(draft.survey)), None)
        if call is None:
            return
        region = _region(draft, call)
        if region is None or draft.abandoned:
            return
        _move(draft, region)


def move_evaluation_steps(draft: Draft) -> None:
    """Move each call of the model outside ``@smp.step`` into a function of its own."""
    for _ in range(48):
        survey = draft.survey
        call = next((call for call in survey.calls if _is_evaluation(survey, call)), None)
        statement = survey.statement(call) if call is not None else None
        if call is None or statement is None or draft.abandoned:
            return
        parent = survey.parent(call)
        target = parent.targets[0].target if isinstance(parent, cst.Assign) and len(parent.targets) == 1 else None
        parts = [element.value for element in target.elements] if isinstance(target, cst.Tuple) else [target]
        if not all(isinstance(part, cst.Name) for part in parts) or not survey.body_of(statement):
            if not _assign_call(draft, call, statement):
                return
            continue
        carried = _carried(survey, [statement]) & set(block_names([statement]).bound)
        if carried & set(names_in(call)):
            draft.abandon("evaluation_carries", call, name=min(carried))
            return
        if _lift_moves(draft, [statement]):
            continue
        function = survey.function(call)
        models = names_of(survey, model_places(survey), function)
        _move(draft, Region(function=function, block=survey.body_of(statement), models=models, moved=[statement]))


def _is_evaluation(survey: Survey, call: cst.Call) -> bool:
    """Whether a call runs the model outside every ``@smp.step`` function."""
    name = dotted(call.func)
    if name is None or name not in names_of(survey, model_places(survey), survey.function(call)):
        return False
    steps = {f.name.value for f in survey.functions if any("smp.step" in text_of(d) for d in f.decorators)}
    around = {above.name.value for above in survey.ancestors(call) if isinstance(above, cst.FunctionDef)}
    # A helper called by a step function runs inside the step.
    callers = [
        caller.name.value
        for site in survey.calls
        if (dotted(site.func) or "").rpartition(".")[2] in around and (caller := survey.function(site)) is not None
    ]
    return not steps & {*around, *callers}


def _assign_call(draft: Draft, call: cst.Call, statement: Statement) -> bool:
    """Give the result of a call a name in a statement of its own; False with a to-do where it may run otherwise."""
    survey, edits = draft.survey, Edits()
    for above in survey.ancestors(call):
        if above is statement:
            break
        conditional = isinstance(above, cst.IfExp | cst.BooleanOperation)
        if conditional or isinstance(above, cst.Lambda | cst.BaseComp | cst.IndentedBlock | cst.While):
            draft.add_todo("evaluate_by_hand", call)
            return False
    if not survey.body_of(statement) or not isinstance(statement, cst.SimpleStatementLine | cst.For | cst.If):
        draft.add_todo("evaluate_by_hand", call)
        return False
    name = survey.free_name("output", "model_output")
    edits.insert_before(statement, statements(f"{name} = {text_of(call)}\n"))
    edits.replace(call, cst.Name(name))
    draft.apply(edits)
    return True


# -- the statements that move ------------------------------------------------------------------------------------------

_DRIVERS = ("accelerator", "fabric", "manager")
_NOT_FORWARD = known_names("methods_without_forward_pass")


def block_names(nodes: Iterable[cst.CSTNode], defined: Iterable[str] = ()) -> BlockNames:
    """Names of statements in the order of execution."""
    body = [node for node in nodes if isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement)]
    return names_of_block(ast.parse(cst.Module(body=body).code).body, defined=defined)


def _region(draft: Draft, call: cst.Call) -> Region | None:  # noqa: C901 - a list of refusals
    """The statements from the forward to the backward pass; None, with a to-do or refused, if they cannot move."""
    survey, function = draft.survey, draft.survey.function(call)
    owner = dotted(cst.ensure_type(call.func, cst.Attribute).value) or ""
    if owner.rpartition(".")[2] in _DRIVERS:
        draft.abandon("driven_loop", call)
    elif call.args:
        draft.abandon("backward_arguments", call)
    elif function is not None and any(
        (dotted(site.func) or "").endswith(".step")
        and function.name.value in map(text_of, (a.value for a in site.args))
        for site in survey.calls
    ):
        draft.abandon("closure", function=function.name.value)
    if draft.abandoned:
        return None

    # The forward pass is in the block of the backward pass, or in one around it.
    models = names_of(survey, model_places(survey), function)
    here, first, block, position = survey.statement(call), None, list[Statement](), 0
    while here is not None:
        block = survey.body_of(here)
        position = block.index(here) if here in block else 0
        first = next((n for n, s in enumerate(block[: position + 1]) if _is_forward(survey, s, models)), None)
        if first is not None:
            break
        above = survey.parent(here)
        above = survey.parent(above) if isinstance(above, cst.IndentedBlock) else above
        here = above if isinstance(above, cst.With | cst.If) else None
    if first is None:
        draft.add_todo("no_forward", call)
        return None

    # Lists and sums that the statements fill move along.
    for _ in range(8):
        moved, _, _ = _split(survey, block[first : position + 1], models)
        filled = {name.partition(".")[0] for statement in moved for name in _changed_objects(statement)}
        objects = (filled | block_names(moved).updated) - models
        earlier = [n for n, s in enumerate(block[:first]) if objects & set(block_names([s]).bound)]
        if not earlier:
            break
        first = earlier[-1]
    part = block[first : position + 1]
    inner = [node for statement in part for node in walk(statement) if isinstance(node, cst.Call)]
    if any(isinstance(c.func, cst.Attribute) and c.func.attr.value == "step" and not c.args for c in inner):
        draft.add_todo("update_in_region", part[0])
        return None
    moved, hoisted, deferred = _split(survey, part, models)
    if _lift_moves(draft, moved):
        return _region(draft, backward_calls(draft.survey)[0])
    obstacle = _obstacle(survey, moved, deferred, part, models)
    if obstacle:
        draft.abandon("cannot_move", obstacle=obstacle)
        return None
    return Region(
        function=function, block=block, models=models, moved=moved, hoisted=hoisted, deferred=deferred, backward=call
    )


def _is_forward(survey: Survey, statement: cst.CSTNode, models: set[str]) -> bool:
    """Whether the statement runs the model."""
    binds = bool(block_names([statement]).bound)
    for node in walk(statement):
        name = dotted(node.func) or "" if isinstance(node, cst.Call) else ""
        owner, _, last = name.rpartition(".")
        # loss = model.loss(batch) and loss = loss_of(model, batch) are forward passes; model.unshard() alone is not.
        method = owner in models and last not in _NOT_FORWARD
        takes = isinstance(node, cst.Call) and any(dotted(arg.value) in models for arg in node.args)
        if name in models or (binds and (method or (takes and bool(survey.named(name))))):
            return True
    return False


def _split(survey: Survey, part: list[Statement], models: set[str]) -> tuple[list[Statement], ...]:
    """Statements that compute the loss, ``zero_grad`` calls to run before them, and other statements to run after."""
    moved, hoisted, deferred = [part[-1]], list[Statement](), list[Statement]()
    needed = _spellings(part[-1])
    for statement in reversed(part[:-1]):
        changed = set(block_names([statement]).bound) | _changed_objects(statement)
        if changed & needed or (changed and _is_forward(survey, statement, models)):
            moved.insert(0, statement)
            needed |= _spellings(statement) - models
        elif "zero_grad" in text_of(statement):
            hoisted.insert(0, statement)
        else:
            deferred.insert(0, statement)
    return moved, hoisted, deferred


def _spellings(node: cst.CSTNode) -> set[str]:
    """Names and attributes in a statement: ``self`` and ``self.loss`` for ``self.loss``."""
    return {text for inner in walk(node) if isinstance(inner, cst.Name | cst.Attribute) and (text := dotted(inner))}


def _changed_objects(node: cst.CSTNode) -> set[str]:
    """Objects that a statement changes: ``self.loss`` in ``self.loss = x``, ``losses`` in ``losses.append(x)``."""
    changed: set[str] = set()
    for inner in walk(node):
        if isinstance(inner, cst.Expr) and isinstance(inner.value, cst.Call):
            function = inner.value.func
            if isinstance(function, cst.Attribute) and function.attr.value != "backward":
                changed.add(dotted(function.value) or "")
        elif isinstance(inner, cst.AssignTarget | cst.AugAssign | cst.AnnAssign):
            for target in walk(inner.target) if not isinstance(inner.target, cst.Name) else ():
                if isinstance(target, cst.Attribute):
                    changed.add(dotted(target) or "")
                elif isinstance(target, cst.Subscript):
                    changed.add(dotted(target.value) or "")
    return changed - {""}


def _carried(survey: Survey, nodes: list[Statement]) -> set[str]:
    """Names that the statements read from the previous iteration of a loop around them and replace."""
    updated, carried = block_names(nodes).updated, set[str]()
    for loop in survey.loops(nodes[0]):
        target = set(names_in(loop.target)) if isinstance(loop, cst.For) else set()
        carried |= updated & set(block_names(loop.body.body, defined=target).read)
    return carried


def _obstacle(
    survey: Survey, moved: list[Statement], deferred: list[Statement], part: list[Statement], models: set[str]
) -> str:
    """Sentence that explains why a step function would change the meaning of the loop; empty if it would not."""
    own = block_names(moved)
    if own.leaving:
        return sentence("region_leaves", statement=own.leaving[0])
    carried = _carried(survey, moved)
    if carried:
        return sentence("carried", name=min(carried))

    # Branches of one `if` are alternatives; any other backward pass is a second one.
    block = survey.body_of(moved[-1])
    for call in backward_calls(survey):
        above = [call, *survey.ancestors(call)]
        alternative = moved[-1] in above and isinstance(moved[-1], cst.SimpleStatementLine | cst.If | cst.With)
        if not alternative and any(statement in above for statement in (*block, *part)):
            return sentence("several_backwards", call=text_of(call))
    inside = set(own.bound) - set(own.read)
    for spelling in sorted({name for statement in moved for name in _changed_objects(statement)}):
        if spelling.partition(".")[0] not in inside and spelling not in models:
            return sentence("changes_object", name=spelling)
    for statement in deferred:
        later = [s for s in moved[:-1] if part.index(s) > part.index(statement)]
        replaced = set(block_names([statement]).read) & set(block_names(later).bound)
        if replaced:
            return sentence("replaced_later", name=min(replaced), statement=text_of(statement).strip())
    return ""


# -- the function and its call -----------------------------------------------------------------------------------------


def _move(draft: Draft, region: Region) -> None:
    """Replace a region by a function and its call."""
    survey, edits = draft.survey, Edits()
    first, last = region.moved[0], region.moved[-1]
    names = block_names(region.moved)
    spelled = (dotted(n) for s in region.moved for n in walk(s) if isinstance(n, cst.Name | cst.Attribute))
    model = next((name for name in spelled if name in region.models), "")
    arguments = _inputs(survey, region, names, model)
    for node in (node for statement in region.moved for node in walk(statement)):
        # The library splits dicts, lists and tuples, but not a BatchEncoding.
        if isinstance(node, cst.Arg) and node.star == "**" and isinstance(node.value, cst.Name):
            name = node.value.value
            assigned = [a.value for a in survey.assignments(region.function, name)][-1:]
            if arguments.get(name) == name and not any(isinstance(v, cst.Dict | cst.DictComp) for v in assigned):
                arguments[name] = f"dict({name})"

    # Its results: the loss, and values that later statements or the next iteration read.
    later = [*region.deferred, *_read_after(survey, last, region.function)]
    for loop in survey.loops(first):
        above = {first, *survey.ancestors(first)}
        again = cast("list[Statement]", list(loop.body.body))
        later += again[: next(n for n, statement in enumerate(again) if statement in above)]
    results = _results(draft, region, names, later, edits)
    if draft.abandoned:
        return

    # The function, with model.backward(loss).
    training, owner = (
        region.backward is not None,
        next((n for n, value in arguments.items() if value == "self"), "self"),
    )
    name = survey.free_name(
        *(("train_step", "training_step") if training else ("evaluation_step", "evaluation_forward"))
    )
    purpose = "Forward and backward pass of one batch. The library runs it once per microbatch."
    text = _body(region, [value for value, _, _ in results], owner, model)
    body = "".join(f"    {line}\n" if line.strip() else "\n" for line in text.rstrip().splitlines())
    text = f"@smp.step\ndef {call_text(name, arguments)}:\n"
    text += f'    """{purpose if training else "Forward pass of one batch, without gradients."}"""\n'
    text += body

    # Its call takes the place of the first statement, between those that stay before and after it.
    call = call_text(name, arguments.values())
    reduced = [f"{'.reduce_mean()' if mean else '.concat()'}" for _, _, mean in results]
    if len(results) == 1:
        lines = [f"{results[0][1]} = {call}{reduced[0]}"]
    else:
        lines = [f"{', '.join(f'{target}_mb' for _, target, _ in results)} = {call}"]
        lines += [f"{t} = {t}_mb{how}" for (_, t, _), how in zip(results, reduced, strict=True)]
    new = statements("\n".join(lines))
    new[0] = new[0].with_changes(leading_lines=first.leading_lines)
    replaced = [*region.moved, *region.hoisted, *region.deferred]
    start = min(replaced, key=region.block.index)
    for statement in replaced:
        if statement is not start:
            edits.remove(statement)
    placed = [*region.hoisted, *new, *region.deferred]
    edits.change(start, lambda _: cst.FlattenSentinel(placed))
    _insert_function(draft, edits, first, text)
    draft.apply(edits)


def _read_after(survey: Survey, last: Statement, function: Function) -> list[Statement]:
    """Statements after `last` in its block and in the blocks around it, within its function."""
    following: list[Statement] = []
    here: cst.CSTNode | None = last
    while here is not None and here is not function:
        siblings = list[Any](survey.body_of(here))
        following += siblings[siblings.index(here) + 1 :] if here in siblings else []
        orelse = here.orelse if isinstance(here, cst.For | cst.While) else None
        following += cast("list[Statement]", list(orelse.body.body)) if orelse is not None else []
        here = survey.parent(here)
    return following


def _inputs(survey: Survey, region: Region, names: BlockNames, model: str) -> dict[str, str]:
    """Argument for each parameter: the model first, then values that change with each batch, then the others."""
    function, at_module = region.function, module_names(survey)
    in_loop = {name for loop in survey.loops(region.moved[0]) for name in block_names([loop]).bound}
    around = [f for f in (function, *survey.ancestors(function or survey.module)) if isinstance(f, cst.FunctionDef)]

    def is_free(name: str) -> bool:
        # A batch called `input` or `data` hides the built-in function or the module of this name.
        if any(is_bound(survey, scope, name) for scope in around) or (function is None and name in in_loop):
            return True
        return function is not None and name not in at_module and name not in BUILTINS

    free = [name for name in names.read if name == model or is_free(name)]
    owner = "trainer" if "trainer" not in (*names.read, *names.bound) else "trainer_"
    free.sort(key=lambda name: (name != model.partition(".")[0], name not in in_loop))
    return {owner if name == "self" else name: name for name in free}


def _lift_moves(draft: Draft, moved: list[Statement]) -> bool:
    """Give ``x.to(device)`` of an input a statement before the step, to which tensors are passed on their device."""
    edits, names_of_all = Edits(), block_names(moved)
    read = set(names_of_all.read) - set(names_of_all.bound)
    for node in (node for statement in moved for node in walk(statement)):
        plain = without_moves(node)
        names = names_in(plain) if plain is not node else []
        if names and set(names_in(node)) <= read:
            name = draft.survey.free_name(f"{names[0]}_on_device")
            edits.insert_before(moved[0], statements(f"{name} = {text_of(node)}\n"))
            edits.replace(node, cst.Name(name))
            draft.apply(edits)
            return True
    return False


def _results(
    draft: Draft, region: Region, names: BlockNames, later: list[Statement], edits: Edits
) -> list[tuple[str, str, bool]]:
    """Expressions returned by the function, each with its name in the loop and whether it is a mean over the batch."""
    survey, results = draft.survey, list[tuple[str, str, bool]]()
    loss, base = "", list[str]()
    if region.backward is not None:
        value = cst.ensure_type(region.backward.func, cst.Attribute).value
        base = names_in(value)
        loss = next((name for name in base if name in names.bound), "")
        # outputs.loss.backward() or criterion(...).backward()
        results.append((loss or text_of(value), loss or survey.free_name("loss", "step_loss"), True))
    for name in names.bound:
        live = list[Statement]()  # statements that may read its current value, up to the one that replaces it
        for statement in later:
            read = block_names([statement])
            live += [statement] if name in read.read else []
            if name in read.bound:
                break
        if name == loss or not live:
            continue
        inner = [node for statement in live for node in walk(statement)]
        fields = [
            n for n in inner if isinstance(n, cst.Attribute) and dotted(n.value) == name and n.attr.value in _FIELDS
        ]
        if fields:
            # The step returns tensors only, not an output object of transformers.
            if region.deferred or sum(isinstance(n, cst.Name) and n.value == name for n in inner) > len(fields):
                draft.abandon("output_is_object", name=name)
            for field_name in dict.fromkeys(node.attr.value for node in fields):
                results.append((f"{name}.{field_name}", f"{name}_{field_name}", field_name == "loss"))
            for node in fields:
                edits.replace(node, cst.Name(f"{name}_{node.attr.value}"))
            continue
        assigned = [node.value for node in survey.assignments(region.function, name) if node.value is not None]
        results.append((name, name, name in base or any(_is_loss(survey, name, value) for value in assigned)))
    return results or [(names.bound[0], names.bound[0], False)]


_FIELDS = known_names("output_fields")


def _is_loss(survey: Survey, name: str, value: cst.CSTNode) -> bool:
    """Whether a value is a loss, judging by its name or by the function that computes it."""
    if "loss" in name.lower() or name in ("nll", "perplexity", "objective"):
        return True
    if isinstance(value, cst.BinaryOperation):
        return _is_loss(survey, "", value.left) or _is_loss(survey, "", value.right)
    callee = survey.callee(value).rpartition(".")[2].lower() if isinstance(value, cst.Call) else ""
    return "loss" in callee or callee in ("criterion", "cross_entropy")


def _insert_function(draft: Draft, edits: Edits, near: cst.CSTNode, text: str) -> None:
    """Insert a function at module level, before the statement that contains `near`, as in the documentation."""
    outer = draft.survey.outermost(near)
    new = statements(text)
    blank = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
    new[0] = new[0].with_changes(leading_lines=blank if list(draft.module.body).index(outer) else [])

    def place(updated: Any) -> Any:
        nodes = list(updated.nodes) if isinstance(updated, cst.FlattenSentinel) else [updated]
        comments = [line for line in nodes[0].leading_lines if line.comment is not None]
        nodes[0] = nodes[0].with_changes(leading_lines=[*blank, *comments])
        return cst.FlattenSentinel([*new, *nodes])

    edits.change(outer, place)


def _body(region: Region, results: Iterable[str], owner: str, model: str) -> str:
    """Body of a step function: with `owner` for ``self``, and with ``model.backward(loss)`` for ``loss.backward()``."""
    body = cst.Module(body=[*region.moved, *statements(f"return {', '.join(results)}")])
    edits, stack = Edits(), list[cst.CSTNode](body.body)
    model = owner + model.removeprefix("self") if model.startswith("self.") else model

    def backward(call: cst.Call) -> cst.Call:
        value = cst.ensure_type(call.func, cst.Attribute).value
        value = value.with_changes(lpar=[], rpar=[]) if len(value.lpar) == 1 else value
        return cst.Call(func=expression(f"{model}.backward"), args=[cst.Arg(value=value)])

    while stack:
        node = stack.pop()
        if isinstance(node, cst.Name) and node.value == "self":
            edits.replace(node, cst.Name(owner))
        method = node.func if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) else None
        if method is not None and method.attr.value == "backward" and dotted(method.value) not in region.models:
            edits.change(node, backward)
        stack += [node.value] if isinstance(node, cst.Attribute | cst.Arg) else children(node)
    return edits.apply(body).code
