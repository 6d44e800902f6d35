"""Step: move the forward and backward pass of a training loop into a `@smp.step` function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import libcst as cst

from smp_advisor.scripts.adapt.code import Edits, call_text, dotted, names_in, statements, text_of, walk
from smp_advisor.scripts.adapt.region import (
    Region,
    block_names,
    find_region,
    obstacle_to_moving,
    replaced_values,
)
from smp_advisor.scripts.adapt.roles import backward_calls
from smp_advisor.scripts.adapt.step_function import (
    Inputs,
    Rename,
    StepFunction,
    fields_read,
    gather_inputs,
    is_loss,
    reduction,
    renamed_text,
    step_text,
)
from smp_advisor.scripts.adapt.survey import Statement, Survey, assigned_names, read_after, reads, until_reassigned

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.adaptation import Draft


def move_training_steps(draft: Draft) -> None:
    """Create one function per backward pass; most scripts have only one."""
    _split_lines(draft)
    for _ in range(8):
        survey = draft.survey
        call = next((call for call in backward_calls(survey) if not _stays(draft, call)), None)
        if call is None or draft.abandoned:
            return
        region = find_region(draft, call)
        if region is None:
            return
        obstacle = obstacle_to_moving(survey, region.moved, region.part, backward_calls(survey), region.models)
        if obstacle:
            draft.abandon("cannot_move", obstacle=obstacle)
            return
        _move(draft, region)


def _split_lines(draft: Draft) -> None:
    """Split lines such as ``loss.backward(); optimizer.step()``, of which only the first statement moves."""
    edits = Edits()
    for call in backward_calls(draft.survey):
        line = draft.survey.statement(call)
        if isinstance(line, cst.SimpleStatementLine) and len(line.body) > 1:
            lines: list[Statement] = [
                cst.SimpleStatementLine(body=[small.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])
                for small in line.body
            ]
            lines[0] = lines[0].with_changes(leading_lines=line.leading_lines)
            lines[-1] = lines[-1].with_changes(trailing_whitespace=line.trailing_whitespace)
            edits.insert_after(line, lines)
            edits.remove(line)
    draft.apply(edits)


def _stays(draft: Draft, call: cst.Call) -> bool:
    survey = draft.survey
    owner = dotted(call.func.value) if isinstance(call.func, cst.Attribute) else None
    function = survey.function(call)
    if owner is not None and owner.rpartition(".")[2] in _DRIVERS:
        draft.abandon("driven_loop", call)
    elif call.args:
        draft.abandon("backward_arguments", call)
    elif function is not None and _is_closure(survey, function):
        draft.abandon("closure", function=function.name.value)
    return draft.abandoned


_DRIVERS = ("accelerator", "fabric", "manager")


def _is_closure(survey: Survey, function: cst.FunctionDef) -> bool:
    """Whether a function is passed to ``optimizer.step``."""
    return any(
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value == "step"
        and any(dotted(arg.value) == function.name.value for arg in call.args)
        for call in survey.calls
    )


def _before_in_loops(survey: Survey, first: Statement) -> list[cst.CSTNode]:
    """Statements before `first` in the loops around it, which run again in the next iteration."""
    earlier: list[cst.CSTNode] = []
    for loop in survey.loops(first):
        for statement in loop.body.body:
            if statement is first or statement in survey.ancestors(first):
                break
            earlier.append(statement)
    return earlier


def _move(draft: Draft, region: Region) -> None:
    """Replace a region by a function and its call."""
    survey, edits = draft.survey, Edits()
    first, last = region.moved[0], region.moved[-1]

    # Inputs of the function: a value that is bound before it is read is its own.
    names = block_names(region.moved)
    bound, read = set(names.bound), set(names.read)
    inputs = gather_inputs(survey, region.function, list(region.moved), region.models, inside=bound - read, read=read)
    _plain_mappings(survey, region, inputs)

    # Its results: the loss, and values that later statements or the next iteration read.
    later = [*region.deferred, *read_after(survey, last, region.function), *_before_in_loops(survey, first)]
    preserved, moved = _kept_values(survey, region)
    returned, lines = _results(draft, region, _loss_name(region), bound, later, edits, preserved)

    # The function, with model.backward(loss).
    model = next(iter(inputs.arguments))
    function = StepFunction(
        name=survey.free_name("train_step", "training_step", "forward_backward"),
        parameters=tuple(inputs.arguments),
        not_split=tuple(inputs.not_split),
        body=renamed_text(moved, inputs.renamed, lambda node: node.visit(_Backward(model))),
        returned=tuple(renamed_text(statements(text + "\n"), inputs.renamed, lambda n: n).strip() for text in returned),
        docstring="Forward and backward pass of one batch. The library runs it once per microbatch.",
    )

    # Its call takes the place of the first statement, between those that stay before and after it.
    call = call_text(function.name, inputs.arguments.values(), width=84)
    new = statements("\n".join(line.replace("<CALL>", call) for line in lines))
    new[0] = new[0].with_changes(leading_lines=first.leading_lines)
    replaced = [*region.moved, *region.hoisted, *region.deferred]
    start = min(replaced, key=region.block.index)
    for statement in replaced:
        if statement is not start:
            edits.remove(statement)
    placed = [*region.hoisted, *new, *region.deferred]
    fresh = {statement: {name: unscaled} for statement, name, unscaled in preserved}
    edits.change(start, lambda _: cst.FlattenSentinel(_apply(edits, placed, fresh)))
    insert_function(draft, edits, region.backward, step_text(function))
    draft.apply(edits)


def _kept_values(survey: Survey, region: Region) -> tuple[list[tuple[Statement, str, str]], list[Statement]]:
    """Names for values that are replaced before a deferred statement reads them, and the body that keeps them."""
    moved, preserved = list(region.moved), list[tuple[Statement, str, str]]()
    for statement, name, later in replaced_values(region.moved, region.deferred, region.part):
        fresh = next((new for _, old, new in preserved if old == name), None)
        if fresh is None:
            fresh = survey.free_name(f"unscaled_{name}", f"{name}_before")
            moved[moved.index(later) : moved.index(later)] = statements(f"{fresh} = {name}\n")
        preserved.append((statement, name, fresh))
    return preserved, moved


def _apply(edits: Edits, placed: list[Statement], renamed: dict[Statement, dict[str, str]]) -> list[cst.CSTNode]:
    """The statements with the edits collected for the nodes inside them, and with some names replaced."""
    nodes = [cast("cst.CSTNode", statement.visit(_Inner(edits, placed))) for statement in placed]
    return [
        node.visit(Rename(renamed[statement])) if statement in renamed else node  # type: ignore[misc]
        for node, statement in zip(nodes, placed, strict=True)
    ]


class _Inner(cst.CSTTransformer):
    def __init__(self, edits: Edits, placed: list[Statement]) -> None:
        super().__init__()
        self._edits = edits
        self._placed = frozenset(placed)

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        # The edit of the first statement places the others.
        if original_node in self._placed or self._edits.is_removed(original_node):
            return updated_node
        return self._edits.leave(original_node, updated_node)


def _plain_mappings(survey: Survey, region: Region, inputs: Inputs) -> None:
    """Pass ``dict(batch)`` for ``**batch``: the library splits dicts, lists and tuples, but not a BatchEncoding."""
    for statement in region.moved:
        for node in walk(statement):
            if isinstance(node, cst.Arg) and node.star == "**" and isinstance(node.value, cst.Name):
                name = node.value.value
                assignments = survey.assignments(region.function, name)
                is_dict = assignments and isinstance(assignments[-1].value, cst.Dict | cst.DictComp)
                if inputs.arguments.get(name) == name and not is_dict:
                    inputs.arguments[name] = f"dict({name})"


def _loss_name(region: Region) -> str:
    """Name of the loss; empty if the backward pass is called on another expression."""
    for name in names_in(cst.ensure_type(region.backward.func, cst.Attribute).value):
        for statement in reversed(region.moved):
            if name in assigned_names(statement):
                return name
    return ""


def _results(  # noqa: C901 - a list of cases
    draft: Draft,
    region: Region,
    loss: str,
    inside: set[str],
    after: list[cst.CSTNode],
    edits: Edits,
    preserved: list[tuple[Statement, str, str]],
) -> tuple[list[str], list[str]]:
    """Expressions returned by the function, and the lines that call it and combine the microbatches."""
    survey = draft.survey
    values = {
        name: node.value
        for statement in region.moved
        for node in walk(statement)
        if isinstance(node, cst.Assign)
        for target in node.targets
        if (name := dotted(target.target)) is not None
    }
    if not loss:
        # outputs.loss.backward() or criterion(...).backward()
        loss_text = text_of(cst.ensure_type(region.backward.func, cst.Attribute).value)
        target = survey.free_name("loss", "step_loss")
    else:
        loss_text = target = loss
    returned, targets = [loss_text], [(target, True)]
    for fresh in dict.fromkeys(fresh for _, _, fresh in preserved):
        returned.append(fresh)
        targets.append((fresh, is_loss(survey, fresh, None)))
    base = names_in(region.backward.func.value) if isinstance(region.backward.func, cst.Attribute) else []
    for name in _ordered(region.moved, inside):
        live = until_reassigned(after, name)
        if name == loss or not any(name in reads(node) for node in live):
            continue
        fields, as_object = fields_read(live, name)
        if fields:
            for field in fields:
                if f"{name}.{field}" == loss_text or (
                    values.get(loss) is not None and text_of(values[loss]) == f"{name}.{field}"
                ):
                    replace_fields(edits, live, name, field, target)
                    continue
                new = survey.free_name(field, f"{name}_{field}")
                returned.append(f"{name}.{field}")
                targets.append((new, field == "loss"))
                replace_fields(edits, live, name, field, new)
        if as_object and not (fields and _is_output(values.get(name), region.models)):
            returned.append(name)
            targets.append((name, is_loss(survey, name, values.get(name)) or name in base))
        elif as_object:
            draft.add_todo("output_is_object", name=name)
    if len(targets) == 1:
        return returned, [f"{target} = <CALL>.reduce_mean()"]
    lines = [f"{', '.join(name + '_mb' for name, _ in targets)} = <CALL>"]
    lines += [f"{name} = {name}_mb{reduction(loss=loss_like)}" for name, loss_like in targets]
    return returned, lines


def _ordered(moved: list[Statement], inside: set[str]) -> list[str]:
    names: list[str] = []
    for statement in moved:
        for node in walk(statement):
            if isinstance(node, cst.Name) and node.value in inside and node.value not in names:
                names.append(node.value)
    return [name for name in names if any(name in assigned_names(statement) for statement in moved)]


def _is_output(value: cst.CSTNode | None, models: set[str]) -> bool:
    return isinstance(value, cst.Call) and dotted(value.func) in models


def replace_fields(edits: Edits, nodes: list[cst.CSTNode], name: str, field: str, new: str) -> None:
    """Replace reads of a field of an output object by the name of a tensor."""
    for node in nodes:
        for inner in walk(node):
            if isinstance(inner, cst.Attribute) and dotted(inner.value) == name and inner.attr.value == field:
                edits.replace(inner, cst.Name(new))
            elif isinstance(inner, cst.Subscript) and dotted(inner.value) == name:
                index = inner.slice[0].slice
                key = index.value if isinstance(index, cst.Index) else None
                if isinstance(key, cst.SimpleString) and key.evaluated_value == field:
                    edits.replace(inner, cst.Name(new))


def insert_function(draft: Draft, edits: Edits, near: cst.CSTNode, text: str) -> None:
    """Insert a function at module level, before the statement that contains `near`, as in the documentation."""
    outer = draft.survey.outermost(near)
    new = statements(text)
    blank = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
    position = list(draft.module.body).index(outer)
    new[0] = new[0].with_changes(leading_lines=blank if position else [])

    def place(updated: Any) -> Any:
        nodes = list(updated.nodes) if isinstance(updated, cst.FlattenSentinel) else [updated]
        first = nodes[0]
        comments = [line for line in first.leading_lines if line.comment is not None]
        nodes[0] = first.with_changes(leading_lines=[*blank, *comments])
        return cst.FlattenSentinel([*new, *nodes])

    edits.change(outer, place)


class _Backward(cst.CSTTransformer):
    """Replaces ``loss.backward()`` by ``model.backward(loss)``."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model

    def leave_Call(  # noqa: N802 - the name that LibCST calls
        self,
        original_node: cst.Call,  # noqa: ARG002
        updated_node: cst.Call,
    ) -> cst.BaseExpression:
        function = updated_node.func
        if (
            not isinstance(function, cst.Attribute)
            or function.attr.value != "backward"
            or text_of(function.value) == self._model
        ):
            return updated_node
        value = function.value
        if len(value.lpar) == 1:
            value = value.with_changes(lpar=[], rpar=[])
        return cst.Call(func=cst.parse_expression(f"{self._model}.backward"), args=[cst.Arg(value=value)])
