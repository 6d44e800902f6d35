"""Steps: save what all ranks hold on one rank, gather shards before a save, or save by checkpoints of SMP v1."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.reading.values import Result
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
from smp_advisor.scripts.adapt.roles import (
    events_of,
    is_on_process,
    model_places,
    names_of,
    optimizer_places,
    optimizers,
    reaches,
)
from smp_advisor.scripts.adapt.survey import targets_of
from smp_advisor.scripts.queries import derivation, rank_conditions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.scripts.adapt.adaptation import Draft
    from smp_advisor.scripts.adapt.survey import Statement, Survey


_WRITERS = ("save_pretrained", "save_model", "to_csv", "savefig")


def save_on_first_rank(draft: Draft) -> None:
    """Guard each save by the rank, because replicas hold the same state, and save the model inside its wrapper."""
    survey, edits = draft.survey, Edits()
    saves = []
    for call in survey.calls:
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        if survey.callee(call) == "torch.save" or method in _WRITERS:
            saves.append(call)
        # The file of an entire wrapper would need a process group where it is loaded.
        names = names_of(survey, model_places(survey), survey.function(call))
        if survey.callee(call) == "torch.save" and call.args and dotted(call.args[0].value) in names:
            edits.replace(call.args[0].value, expression(f"{text_of(call.args[0].value)}.module"))
    _guard_saves(survey, edits, saves)
    draft.apply(edits)


def save_full_state(draft: Draft) -> None:
    """Gather the shards on every rank before a save, wherever its state is read, and write on one rank."""
    _load_full_state(draft)
    survey = draft.survey
    _run_on_every_rank(draft, {call for call, _ in _saved_states(survey)})
    survey, edits = draft.survey, Edits()
    states = _saved_states(survey)
    gathered: dict[tuple[cst.CSTNode, str], list[str]] = {}
    for call, is_model in states:
        owner = (dotted(cst.ensure_type(call.func, cst.Attribute).value) or "").removesuffix(".module")
        model = owner if is_model else _model_of(survey, call, owner)
        place = _before_conditions(survey, call)
        if place is None or not model:
            draft.add_todo("gather_by_checkpoint", call)
            continue
        owners = gathered.setdefault((place, model), [])
        if owner not in owners:
            owners.append(owner)
        position = list(gathered).index((place, model))
        number = f"_{position + 1}" if position else ""
        edits.replace(call, cst.Name(f"{'model' if is_model else 'optimizer'}_state{number}"))
    for position, ((place, model), owners) in enumerate(gathered.items()):
        optimizer = next((owner for owner in owners if owner != model), None)
        text = _gathering(f"_{position + 1}" if position else "", model, optimizer, alone=model not in owners)
        edits.insert_before(place, statements(text))
    _report_entire_models(draft)
    _guard_saves(survey, edits, [call for call in survey.calls if survey.callee(call) == "torch.save"])
    draft.apply(edits)


def _saved_states(survey: Survey) -> list[tuple[cst.Call, bool]]:
    """Calls of ``state_dict`` whose result is saved, here or in a function of the script; and whether of a model."""
    saves = {call for call in survey.calls if survey.callee(call) == "torch.save"}
    states = []
    for call in survey.calls:
        function = survey.function(call)
        is_model = bool(_state_of(call, names_of(survey, model_places(survey), function)))
        if call.args or not (is_model or _state_of(call, names_of(survey, optimizer_places(survey), function))):
            continue
        if any("state_dict_type" in text_of(a.items[0]) for a in survey.ancestors(call) if isinstance(a, cst.With)):
            continue
        statement = survey.statement(call)
        if statement is not None and _is_saved(survey, statement, saves):
            states.append((call, is_model))
    return states


def _is_saved(survey: Survey, statement: Statement, saves: set[cst.Call]) -> bool:
    """Whether a statement saves, or assigns to a variable that a statement of its function saves."""
    if not isinstance(statement, cst.SimpleStatementLine) or reaches(survey, statement, saves, 3):
        return isinstance(statement, cst.SimpleStatementLine)
    names = {name for part in statement.body for target in targets_of(part) for name in names_in(target)}
    function = survey.function(statement)
    users = (c for c in survey.calls if survey.function(c) is function and names & set(names_in(c)))
    return any(reaches(survey, call, saves, 3) for call in users)


def _model_of(survey: Survey, call: cst.Call, name: str) -> str:
    """The model of an optimizer, as its function spells it; empty if it has no name there."""
    function = survey.function(call)
    own = (o.model for o in optimizers(survey) if name in names_of(survey, o.objects, function))
    spellings = names_of(survey, next(own, model_places(survey)), function)
    return min(spellings, key=lambda spelling: (len(spelling), spelling), default="")


def _before_conditions(survey: Survey, call: cst.Call) -> cst.CSTNode | None:
    """Statement before which all ranks gather: the outermost condition on the rank around the state."""
    place: cst.CSTNode | None = survey.statement(call)
    for above in survey.ancestors(place) if place is not None else ():
        if isinstance(above, cst.FunctionDef | cst.For | cst.While):
            break
        if isinstance(above, cst.If) and is_on_process(survey, above.test):
            place = above
    return place


def _gathering(number: str, model: str, optimizer: str | None, *, alone: bool) -> str:
    """Statements that gather the states; `alone` leaves the model out."""
    options = "options=StateDictOptions(full_state_dict=True, cpu_offload=True)"
    lines = [] if alone else [f"model_state{number} = " + call_text("get_model_state_dict", [model, options])]
    if optimizer is not None:
        lines.append(f"optimizer_state{number} = " + call_text("get_optimizer_state_dict", [model, optimizer, options]))
    return "\n".join(lines)


def _report_entire_models(draft: Draft) -> None:
    """List saves of an object that has shards: a model itself, or the folder of a pretrained one."""
    survey = draft.survey
    for call in survey.calls:
        names = names_of(survey, model_places(survey), survey.function(call))
        saved = call.args[0].value if survey.callee(call) == "torch.save" and call.args else None
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "save_pretrained":
            saved = call.func.value
        if saved is not None and (dotted(saved) or "").removesuffix(".module") in names:
            draft.add_todo("gather_by_checkpoint", call)


def _outer_statement(survey: Survey, call: cst.Call) -> Statement | None:
    """Statement to guard; None if only the first rank gets there."""
    statement, events = survey.statement(call), events_of(survey, call)
    alone = isinstance(statement, cst.SimpleStatementLine) and isinstance(survey.parent(call), cst.Expr)
    return statement if alone and not (events and all(map(rank_conditions, events))) else None


def _guard_saves(survey: Survey, edits: Edits, saves: list[cst.Call]) -> None:
    """Guard saves and the statements after them that use their path, such as a copy of the best checkpoint."""
    for call in saves:
        statement = _outer_statement(survey, call)
        if statement is None or edits.is_changed(statement):
            continue
        path = keyword(call, "f") or positional(call, 1)
        name = dotted(path.value) if path is not None else None
        block = survey.body_of(statement)
        users = []
        for later in block[block.index(statement) + 1 :] if statement in block else []:
            if name is None or name not in names_in(later):
                break
            users.append(later)
            edits.remove(later)
        edits.change(statement, partial(_on_first_rank, users=users))
        if any(survey.callee(later) == "torch.load" and survey.follows(call, later) for later in survey.calls):
            edits.insert_after(
                statement, statements("dist.barrier()  # the file is complete before a process loads it")
            )


def _on_first_rank(old: Statement, users: Sequence[Statement] = ()) -> cst.If:
    """Put a statement, and those that use its file, under ``if dist.get_rank() == 0``."""
    guard = cst.ensure_type(statements("if dist.get_rank() == 0:\n    pass\n")[0], cst.If)
    body = guard.body.with_changes(body=[old.with_changes(leading_lines=[]), *users])
    return guard.with_changes(leading_lines=old.leading_lines, body=body)


def _run_on_every_rank(draft: Draft, collective: set[cst.Call]) -> None:
    """Remove the rank from conditions around forward passes and saves, in which all ranks take part."""
    survey, edits = draft.survey, Edits()
    models = model_places(survey)
    forward = {call for call in survey.calls if dotted(call.func) in names_of(survey, models, survey.function(call))}
    for node in survey.nodes:
        if not isinstance(node, cst.If) or not reaches(survey, node.body, forward | collective, 3):
            continue
        test = node.test
        if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
            remaining = [part for part in (test.left, test.right) if not is_rank_guard(survey, part)]
            if len(remaining) == 1:
                edits.replace(test, remaining[0].with_changes(lpar=[], rpar=[]))
        if is_rank_guard(survey, test) and reaches(survey, node.body, forward, 3):
            draft.add_todo("model_runs_on_one_rank", node)
    draft.apply(edits)


def _load_full_state(draft: Draft) -> None:
    """Distribute a state from ``torch.load`` over the ranks; states in memory are sharded already."""
    survey, edits = draft.survey, Edits()
    models, optimizers = model_places(survey), optimizer_places(survey)
    options = "options=StateDictOptions(full_state_dict=True)"
    for call in survey.calls:
        owner, _, method = (dotted(call.func) or "").rpartition(".")
        if method != "load_state_dict" or not call.args or not _is_loaded(survey, call):
            continue
        state, function = text_of(call.args[0].value), survey.function(call)
        if not _after_wrapper(survey, call):
            continue
        if owner in names_of(survey, models, function):
            text = call_text("set_model_state_dict", [owner, state, options])
        elif owner in names_of(survey, optimizers, function):
            model = _model_of(survey, call, owner) or "model"
            text = call_text("set_optimizer_state_dict", [model, owner, state, options])
        else:
            continue
        edits.replace(call, expression(text))
    draft.apply(edits)


def _after_wrapper(survey: Survey, call: cst.Call) -> bool:
    """Whether a call comes after the model is sharded; one in another function does."""
    wrappers = [c for c in survey.calls if survey.callee(c).endswith((".FullyShardedDataParallel", ".fully_shard"))]
    here = [wrapper for wrapper in wrappers if survey.function(wrapper) is survey.function(call)]
    return not here or any(survey.follows(wrapper, call) for wrapper in here)


def _is_loaded(survey: Survey, call: cst.Call) -> bool:
    """Whether the argument of ``load_state_dict`` comes from ``torch.load``."""
    states = (event.argument("state_dict", 0) for event in events_of(survey, call))
    return any(isinstance(v, Result) and v.call.name == "torch.load" for state in states for v in derivation(state))


def is_rank_guard(survey: Survey, test: cst.BaseExpression) -> bool:
    """Whether a condition only selects processes: ``rank == 0``, ``smp.dp_rank() == 0``."""
    return is_on_process(survey, test) and not any(isinstance(node, cst.BooleanOperation) for node in walk(test))


def save_by_library(draft: Draft) -> None:
    """Save the state of the model alone by a checkpoint of SMP v1, on every rank; list other saves."""
    survey, edits = draft.survey, Edits()
    for call in survey.calls:
        content, path = keyword(call, "obj") or positional(call, 0), keyword(call, "f") or positional(call, 1)
        models = names_of(survey, model_places(survey), survey.function(call))
        if survey.callee(call) != "torch.save" or content is None or path is None:
            continue
        entries = {"": content.value}
        if isinstance(content.value, cst.Dict):
            entries = {text_of(e.key): e.value for e in content.value.elements if isinstance(e, cst.DictElement)}
        updating = names_of(survey, optimizer_places(survey), survey.function(call))
        states = {key: _state_of(value, models | updating) or dotted(value) for key, value in entries.items()}
        model, optimizer = (next((s for s in states.values() if s in names), None) for names in (models, updating))
        conditions = (above.test for above in survey.ancestors(call) if isinstance(above, cst.If))
        if model is None or any(is_on_process(survey, test) for test in conditions):
            continue
        text = text_of(path.value)
        arguments = [f'path=os.path.dirname({text}) or "."', f"tag=os.path.basename({text})"]
        if isinstance(path.value, cst.SimpleString):
            head, _, tail = str(path.value.evaluated_value).rpartition("/")
            arguments = [f'path="{head or "."}"', f'tag="{tail}"']
        arguments += [f"partial={optimizer is not None}", f"model={model}", f"optimizer={optimizer}"][
            : 3 if optimizer else 2
        ]
        others = [f"{key}: {text_of(v)}" for key, v in entries.items() if states[key] not in (model, optimizer)]
        arguments += [f"user_content={{{', '.join(others)}}}"] if others else []
        edits.replace(call, expression(call_text("smp.save_checkpoint", arguments)))
    draft.apply(edits)
    survey, places = draft.survey, model_places(draft.survey) | optimizer_places(draft.survey)
    for call in survey.calls:
        if not call.args and _state_of(call, names_of(survey, places, survey.function(call))):
            draft.add_todo("partial_state", call=text_of(call))


def _state_of(value: cst.BaseExpression, names: set[str]) -> str | None:
    """``model`` in ``model.state_dict()`` and ``model.module.state_dict()``."""
    owner, _, method = (dotted(value.func) or "" if isinstance(value, cst.Call) else "").rpartition(".")
    owner = owner.removesuffix(".module")
    return owner if method == "state_dict" and owner in names else None
