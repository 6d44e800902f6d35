"""Step: move forward passes without a backward pass into `@smp.step` functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from smp_advisor.scripts.adapt.aliases import names_of
from smp_advisor.scripts.adapt.code import Edits, call_text, dotted, names_in, statements, text_of, walk
from smp_advisor.scripts.adapt.region import block_names, state_between_batches
from smp_advisor.scripts.adapt.roles import model_places
from smp_advisor.scripts.adapt.step_function import StepFunction, fields_read, is_loss, reduction, step_text
from smp_advisor.scripts.adapt.survey import read_after, reads, until_reassigned
from smp_advisor.scripts.adapt.training_step import insert_function, replace_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.scripts.adapt.adaptation import Draft
    from smp_advisor.scripts.adapt.survey import Function, Survey


def move_evaluation_steps(draft: Draft) -> None:
    """Move each call of the model outside ``@smp.step`` into a function of its own."""
    for _ in range(12):
        survey = draft.survey
        call = next((c for c in survey.calls if _is_evaluation(survey, c)), None)
        statement = survey.statement(call) if call is not None else None
        if call is None or statement is None:
            return
        carried = state_between_batches(survey, [statement]) & set(block_names([statement]).bound)
        if isinstance(statement, cst.SimpleStatementLine) and carried & set(names_in(call)):
            draft.abandon("evaluation_carries", call, name=min(carried))
            return
        _move(draft, call)


def _is_evaluation(survey: Survey, call: cst.Call) -> bool:
    """Whether a call runs the model outside every ``@smp.step`` function."""
    function = survey.function(call)
    name = dotted(call.func)
    if name is None or name not in names_of(survey, model_places(survey), function):
        return False
    steps = {f.name.value for f in survey.functions if any("smp.step" in text_of(d) for d in f.decorators)}
    for above in survey.ancestors(call):
        if isinstance(above, cst.FunctionDef):
            if above.name.value in steps:
                return False
            # A helper called by a step function runs inside the step.
            for site in survey.calls:
                caller = survey.function(site)
                if (
                    caller is not None
                    and caller.name.value in steps
                    and (dotted(site.func) or "").rpartition(".")[2] == above.name.value
                ):
                    return False
    return True


def _move(draft: Draft, call: cst.Call) -> None:
    survey, edits = draft.survey, Edits()
    function = survey.function(call)
    model = dotted(call.func) or "model"
    parameters, arguments, inner = _arguments(survey, function, call, "model" if "." in model else model, model)
    name = survey.free_name("evaluation_step", "evaluation_forward")
    forward = f"{parameters[0]}({', '.join(inner)})"
    outer = call_text(name, arguments, width=84)
    statement = survey.statement(call)
    parent = survey.parent(call)
    body, returned = "", [forward]
    target = parent.targets[0].target if isinstance(parent, cst.Assign) and len(parent.targets) == 1 else None
    after = read_after(survey, statement, function) if statement is not None else []
    if isinstance(target, cst.Name) and isinstance(statement, cst.SimpleStatementLine):
        live = until_reassigned(after, target.value)
        fields, as_object = fields_read(live, target.value)
        if fields:
            body = f"{target.value} = {forward}\n"
            fresh = [survey.free_name(field, f"{target.value}_{field}") for field in fields]
            returned = [f"{target.value}.{field}" for field in fields]
            for field, new in zip(fields, fresh, strict=True):
                replace_fields(edits, live, target.value, field, new)
            if as_object:
                draft.add_todo("output_of_evaluation_is_object", call, name=target.value)
            edits.change(
                statement, _lines(outer, [(new, field == "loss") for new, field in zip(fresh, fields, strict=True)])
            )
        else:
            edits.replace(call, cst.parse_expression(f"{outer}{reduction(loss=is_loss(survey, target.value, None))}"))
    elif isinstance(target, cst.Tuple) and isinstance(statement, cst.SimpleStatementLine):
        names = [dotted(element.value) for element in target.elements]
        used = [n for n in names if n is not None and any(n in reads(node) for node in until_reassigned(after, n))]
        if not used or any(n is None for n in names):
            draft.add_todo("evaluate_by_hand", call)
            used = [n for n in names if n is not None]
        body = f"{', '.join(n or '_' for n in names)} = {forward}\n"
        returned = used
        edits.change(statement, _lines(outer, [(n, is_loss(survey, n, None)) for n in used]))
    elif isinstance(parent, cst.Attribute) and parent.attr.value in ("loss", "logits"):
        returned = [f"{forward}.{parent.attr.value}"]
        edits.replace(parent, cst.parse_expression(f"{outer}{reduction(loss=parent.attr.value == 'loss')}"))
    else:
        edits.replace(call, cst.parse_expression(f"{outer}.concat()"))
    text = step_text(
        StepFunction(
            name=name,
            parameters=tuple(parameters),
            not_split=(),
            body=body,
            returned=tuple(returned),
            docstring="Forward pass of one batch, without gradients.",
        )
    )
    insert_function(draft, edits, call, text)
    draft.apply(edits)


def _lines(call: str, targets: list[tuple[str, bool]]) -> Callable[[Any], Any]:
    if len(targets) == 1:
        lines = [f"{targets[0][0]} = {call}{reduction(loss=targets[0][1])}"]
    else:
        lines = [f"{', '.join(name + '_mb' for name, _ in targets)} = {call}"]
        lines += [f"{name} = {name}_mb{reduction(loss=loss)}" for name, loss in targets]
    new = statements("\n".join(lines))

    def replace(old: Any) -> Any:
        new[0] = new[0].with_changes(leading_lines=old.leading_lines)
        return cst.FlattenSentinel(new)

    return replace


def _arguments(
    survey: Survey, function: Function, call: cst.Call, parameter: str, model: str
) -> tuple[list[str], list[str], list[str]]:
    """Parameters of the step function, arguments of its call, and arguments of the model call inside it."""
    parameters, arguments, inner = [parameter], [model], []
    for arg in call.args:
        value = arg.value
        star = arg.star
        keyword = f"{arg.keyword.value}=" if arg.keyword is not None else ""
        text = text_of(value)
        if not names_in(value) or (isinstance(value, cst.Name) and value.value in ("True", "False", "None")):
            inner.append(f"{star}{keyword}{text}")
            continue
        preferred = _preferred_name(value, arg)
        name = preferred
        while name in parameters:
            name += "_"
        parameters.append(name)
        passed = text
        if star == "**":
            values = [a.value for a in survey.assignments(function, text)][-1:] or [value]
            if not isinstance(values[0], cst.Dict | cst.DictComp):
                passed = f"dict({text})"
        arguments.append(passed)
        inner.append(f"{star}{keyword}{name}")
    return parameters, arguments, inner


def _preferred_name(value: cst.BaseExpression, arg: cst.Arg) -> str:
    if isinstance(value, cst.Name):
        return value.value
    if arg.keyword is not None:
        return arg.keyword.value
    for node in walk(value):
        if isinstance(node, cst.SimpleString) and str(node.evaluated_value).isidentifier():
            return str(node.evaluated_value)
    names = [name for name in names_in(value) if name not in ("self", "torch")]
    return names[0] if len(names) >= 1 and isinstance(value, cst.Call) else "inputs"
