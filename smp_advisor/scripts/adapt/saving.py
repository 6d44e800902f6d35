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
        number = list(gathered).index((place, model)) + 1
        edits.replace(call, cst.Name(_state_name(number, is_model=is_model)))
        function = survey.function(call)
        if function is not None:
            _call_on_every_rank(draft, edits, function)
    for number, ((place, model), owners) in enumerate(gathered.items(), 1):
        optimizer = next((owner for owner in owners if owner != model), None)
        text = _gathering(number, model, optimizer, alone=model not in owners)
        edits.insert_before(place, statements(text))
    _report_entire_models(draft)
    _guard_saves(survey, edits, _saves(survey))
    draft.apply(edits)


def _saves(survey: Survey) -> list[cst.Call]:
    return [call for call in survey.calls if survey.callee(call) == "torch.save"]


def _saved_states(survey: Survey) -> list[tuple[cst.Call, bool]]:
    """Calls of ``state_dict`` whose result is saved, here or in a function of the script; and whether of a model."""
    saves = set(_saves(survey))
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
    for optimizer in optimizers(survey):
        if name in names_of(survey, optimizer.objects, function):
            return _shortest(names_of(survey, optimizer.model, function))
    return _shortest(names_of(survey, model_places(survey), function))


def _shortest(names: set[str]) -> str:
    return min(names, key=lambda name: (len(name), name), default="")


def _before_conditions(survey: Survey, call: cst.Call) -> cst.CSTNode | None:
    """Statement before which all ranks gather: the outermost condition on the rank or file around the state."""
    place: cst.CSTNode | None = survey.statement(call)
    for above in survey.ancestors(place) if place is not None else ():
        if isinstance(above, cst.FunctionDef | cst.For | cst.While):
            break
        opens = isinstance(above, cst.With) and any("open(" in text_of(item) for item in above.items)
        if opens or (isinstance(above, cst.If) and is_on_process(survey, above.test)):
            place = above
    return place


def _state_name(number: int, *, is_model: bool) -> str:
    return ("model_state" if is_model else "optimizer_state") + ("" if number == 1 else f"_{number}")


def _gathering(number: int, model: str, optimizer: str | None, *, alone: bool) -> str:
    """Statements that gather the states; `alone` leaves the model out."""
    states = [_state_name(number, is_model=is_model) for is_model in (True, False)]
    options = "options=StateDictOptions(full_state_dict=True, cpu_offload=True)"
    lines = []
    for state, kind, owners in ((states[0], "model", [model]), (states[1], "optimizer", [model, optimizer])):
        if None not in owners and not (alone and kind == "model"):
            function = f"get_{kind}_state_dict"
            lines.append(f"{state} = " + call_text(function, [*map(str, owners), options], width=90))
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
    """Statement to guard: the ``with open(...)`` block of a save to a file; None if only the first rank gets there."""
    statement, events = survey.statement(call), events_of(survey, call)
    if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(survey.parent(call), cst.Expr):
        return None
    if events and all(map(rank_conditions, events)):
        return None
    for above in survey.ancestors(statement):
        if isinstance(above, cst.With) and any("open(" in text_of(item) for item in above.items):
            return above
        if isinstance(above, cst.FunctionDef):
            break
    return statement


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
        _drop_rank(survey, node, edits)
        if is_rank_guard(survey, node.test) and reaches(survey, node.body, forward, 3):
            draft.add_todo("model_runs_on_one_rank", node)
    draft.apply(edits)


def _drop_rank(survey: Survey, node: cst.If, edits: Edits) -> None:
    """Leave the other condition of ``rank == 0 and ...``."""
    test = node.test
    if not (isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And)):
        return
    remaining = [part for part in (test.left, test.right) if not is_rank_guard(survey, part)]
    if len(remaining) == 1:
        edits.replace(test, remaining[0].with_changes(lpar=[], rpar=[]))


def _call_on_every_rank(draft: Draft, edits: Edits, function: cst.FunctionDef) -> None:
    """Remove the rank from the conditions around the calls of a function that gathers the state of all ranks."""
    survey = draft.survey
    for site in survey.calls:
        if (dotted(site.func) or "").rpartition(".")[2] != function.name.value:
            continue
        for above in survey.ancestors(site):
            if isinstance(above, cst.FunctionDef):
                break
            if not isinstance(above, cst.If) or edits.is_changed(above.test):
                continue
            _drop_rank(survey, above, edits)
            if is_rank_guard(survey, above.test):
                edits.replace(above.test, cst.Name("True"))
                draft.add_todo("all_ranks_run", above, function=function.name.value)


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
            model = next(iter(sorted(names_of(survey, models, function), key=len)), "")
            if not model:
                draft.add_todo("load_optimizer_state", call)
                continue
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


# -- checkpoints of SMP v1 ---------------------------------------------------------------------------------------------

_METRICS = ("loss", "acc", "best", "metric", "score", "held_", "val", "ppl", "perplexity", "bleu", "f1")


def save_by_library(draft: Draft) -> None:
    """Replace the calls that save the state of the model, on every rank."""
    while _save_next(draft):
        pass
    survey = draft.survey
    places = model_places(survey) | optimizer_places(survey)
    for call in survey.calls:
        if not call.args and _state_of(call, names_of(survey, places, survey.function(call))):
            draft.add_todo("partial_state", call=text_of(call))


def _save_next(draft: Draft) -> bool:
    """Replace the first save of the model whose content is known; False if there is none."""
    survey, edits = draft.survey, Edits()
    alone = (call for call in survey.calls if isinstance(survey.statement(call), cst.SimpleStatementLine))
    call = next((call for call in alone if _checkpoint(survey, call)), None)
    statement = survey.statement(call) if call is not None else None
    if call is None or statement is None:
        return False
    arguments, above = _checkpoint(survey, call), _guards(survey, statement)
    new = statements(call_text("smp.save_checkpoint", arguments, width=88))
    outermost = above[-1] if above else statement
    if outermost is not statement and len(survey.body_of(statement)) > 1:
        edits.remove(statement)  # the others stay under the condition on the rank
        edits.insert_before(outermost, new)
    else:
        new[0] = new[0].with_changes(leading_lines=outermost.leading_lines)
        edits.change(outermost, lambda _: cst.FlattenSentinel(new))
    _drop_variable(survey, edits, call)
    if above is None:
        draft.add_todo("some_ranks_save", call)
    if (dotted(call.func) or "").endswith(".save_pretrained"):
        draft.add_todo("configuration_apart", call)
    for condition in survey.ancestors(statement):
        names = names_in(condition.test) if isinstance(condition, cst.If) else []
        if any(word in name.lower() for name in names for word in _METRICS):
            draft.add_todo("ranks_must_agree", condition)
    if "partial=False" in arguments and draft.target.plan.sharded_data_parallel_degree > 1:
        draft.add_todo("needs_1_15", directory=arguments[0].removeprefix("path="))
    draft.apply(edits)
    return True


def _checkpoint(survey: Survey, call: cst.Call) -> list[str]:
    """Arguments of ``smp.save_checkpoint`` for a call that saves a model; empty for others."""
    function = survey.function(call)
    models = names_of(survey, model_places(survey), function)
    owner, _, method = (dotted(call.func) or "").rpartition(".")
    if method == "save_pretrained" and call.args and owner.removesuffix(".module") in models:
        folder = text_of(call.args[0].value)  # of transformers, with the weights under this name
        return [f"path={folder}", 'tag="pytorch_model.bin"', "partial=False", f"model={owner.removesuffix('.module')}"]
    content, path = keyword(call, "obj") or positional(call, 0), keyword(call, "f") or positional(call, 1)
    if survey.callee(call) != "torch.save" or content is None or path is None:
        return []
    opened = (i.asname for a in survey.ancestors(call) if isinstance(a, cst.With) for i in a.items)
    if dotted(path.value) in [dotted(name.name) for name in opened if name is not None]:
        return []
    value = content.value
    if isinstance(value, cst.Name) and value.value not in models:
        value = _assigned(survey, call, value.value) or value
    optimizers = names_of(survey, optimizer_places(survey), function)
    model = optimizer = None
    further = []
    for key, entry in _entries(value):
        state = _state_of(entry, models) or ((dotted(entry) or "").removesuffix(".module") if not key else None)
        if state in models:
            model = state
        elif (updated := _state_of(entry, optimizers)) is not None:
            optimizer = updated
        else:
            further.append(f"{key}: {text_of(entry)}")
    if model is None:
        return []
    return [
        *_split_path(survey, path.value),
        f"partial={optimizer is not None}",
        f"model={model}",
        *([f"optimizer={optimizer}"] if optimizer is not None else []),
        *([f"user_content={{{', '.join(further)}}}"] if further else []),
    ]


def _assigned(survey: Survey, call: cst.Call, name: str) -> cst.BaseExpression | None:
    """Value of a variable at a statement: its only one, or the last one before it in the same block."""
    assignments = survey.assignments(survey.function(call), name)
    if len(assignments) > 1:
        statement = survey.statement(call)
        block = survey.body_of(statement) if statement is not None else []
        before = block[: block.index(statement)] if statement in block else []
        assignments = [a for a in assignments if survey.statement(a) in before][-1:]
    return assignments[0].value if len(assignments) == 1 else None


def _entries(value: cst.BaseExpression) -> list[tuple[str, cst.BaseExpression]]:
    """Keys and values of a dictionary; any other value alone, without a key."""
    if isinstance(value, cst.Dict) and all(isinstance(element, cst.DictElement) for element in value.elements):
        return [(text_of(e.key), e.value) for e in value.elements if isinstance(e, cst.DictElement)]
    if isinstance(value, cst.Call) and dotted(value.func) == "dict" and all(arg.keyword for arg in value.args):
        return [(f'"{arg.keyword.value}"', arg.value) for arg in value.args if arg.keyword is not None]
    return [("", value)]


def _state_of(value: cst.BaseExpression, names: set[str]) -> str | None:
    """``model`` in ``model.state_dict()`` and ``model.module.state_dict()``."""
    owner, _, method = (dotted(value.func) or "" if isinstance(value, cst.Call) else "").rpartition(".")
    owner = owner.removesuffix(".module")
    return owner if method == "state_dict" and owner in names else None


def _guards(survey: Survey, statement: Statement) -> list[cst.If] | None:
    """Rank conditions around the statement, innermost first; None if one of them includes more than the rank."""
    conditions: list[cst.If] = []
    for above in survey.ancestors(statement):
        if isinstance(above, cst.FunctionDef | cst.For | cst.While):
            break
        if isinstance(above, cst.If):
            if not is_rank_guard(survey, above.test):
                if is_on_process(survey, above.test):
                    return None
                break
            if above.orelse is not None:
                return None
            conditions.append(above)
    return conditions


def _split_path(survey: Survey, path: cst.BaseExpression) -> list[str]:
    """Directory and file name, as arguments."""
    if isinstance(path, cst.SimpleString) and isinstance(path.evaluated_value, str):
        head, _, tail = path.evaluated_value.rpartition("/")
        return [f"path={head or '.'!r}".replace("'", '"'), f"tag={tail!r}".replace("'", '"')]
    if isinstance(path, cst.Call) and survey.callee(path) == "os.path.join" and len(path.args) == 2:
        return [f"path={text_of(path.args[0].value)}", f"tag={text_of(path.args[1].value)}"]
    text = text_of(path)
    return [f'path=os.path.dirname({text}) or "."', f"tag=os.path.basename({text})"]


def _drop_variable(survey: Survey, edits: Edits, call: cst.Call) -> None:
    """Remove the assignment ``checkpoint = {...}`` if only ``torch.save`` used it."""
    saved, function = call.args[0].value, survey.function(call)
    if not isinstance(saved, cst.Name):
        return
    uses = [n for n in survey.nodes if isinstance(n, cst.Name) and n.value == saved.value]
    assignments = survey.assignments(function, saved.value)
    if sum(survey.function(n) is function for n in uses) == 2 and len(assignments) == 1:
        statement = survey.statement(assignments[0])
        if statement is not None:
            edits.remove(statement)
