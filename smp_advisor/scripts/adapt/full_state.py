"""Steps: gather the shards of all ranks before a save, write on one rank, and load what was saved."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.adaptation import add_names
from smp_advisor.scripts.adapt.aliases import aliases_of, names_of
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
from smp_advisor.scripts.adapt.launch import add_dist
from smp_advisor.scripts.adapt.roles import model_places, optimizer_places, optimizers, reaches
from smp_advisor.scripts.adapt.saving import is_rank_guard, names_a_rank
from smp_advisor.scripts.adapt.survey import assigned_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.scripts.adapt.adaptation import Draft
    from smp_advisor.scripts.adapt.survey import Function, Statement, Survey


_STATES = "torch.distributed.checkpoint.state_dict"
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
    add_dist(draft)


def save_full_state(draft: Draft) -> None:
    """Gather the shards on every rank before a save, wherever its state is read, and write on one rank."""
    by_context = draft.target.kind == "smp_fsdp"
    if not by_context:
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
            draft.add_todo("gather_by_context" if by_context else "gather_by_checkpoint", call)
            continue
        owners = gathered.setdefault((place, model), [])
        if owner not in owners:
            owners.append(owner)
        number = list(gathered).index((place, model)) + 1
        edits.replace(call, cst.Name(_state_name(number, is_model=is_model)))
        function = survey.function(call)
        if function is not None and not by_context:
            _call_on_every_rank(draft, edits, function)
    names: set[str] = set()
    for number, ((place, model), owners) in enumerate(gathered.items(), 1):
        optimizer = next((owner for owner in owners if owner != model), None)
        text, imported = _gathering(number, model, optimizer, alone=model not in owners, by_context=by_context)
        edits.insert_before(place, statements(text))
        names |= imported
    _report_entire_models(draft, by_context=by_context)
    _guard_saves(survey, edits, _saves(survey))
    draft.apply(edits)
    if names:
        add_names(draft, "torch.distributed.fsdp" if by_context else _STATES, sorted(names))
    add_dist(draft)


def _saves(survey: Survey) -> list[cst.Call]:
    return [call for call in survey.calls if survey.callee(call) == "torch.save"]


def _saved_states(survey: Survey) -> list[tuple[cst.Call, bool]]:
    """Calls of ``state_dict`` whose result is saved, here or in a function of the script; and whether of a model."""
    saves = set(_saves(survey))
    states = []
    for call in survey.calls:
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "state_dict" or call.args:
            continue
        owner, function = (dotted(call.func.value) or "").removesuffix(".module"), survey.function(call)
        is_model = owner in names_of(survey, model_places(survey), function)
        if not is_model and owner not in names_of(survey, optimizer_places(survey), function):
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
    names, function = assigned_names(statement), survey.function(statement)
    users = (c for c in survey.calls if survey.function(c) is function and names & set(names_in(c)))
    return any(reaches(survey, call, saves, 3) for call in users)


def _model_of(survey: Survey, call: cst.Call, name: str) -> str:
    """The model of an optimizer, as its function spells it; empty if it has no name there."""
    function = survey.function(call)
    for optimizer in optimizers(survey):
        places = aliases_of(survey, (optimizer.function, optimizer.name)) if optimizer.name is not None else set()
        if optimizer.model is not None and name in names_of(survey, places, function):
            return _shortest(names_of(survey, aliases_of(survey, optimizer.model), function))
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
        if opens or (isinstance(above, cst.If) and names_a_rank(above.test)):
            place = above
    return place


def _state_name(number: int, *, is_model: bool) -> str:
    return ("model_state" if is_model else "optimizer_state") + ("" if number == 1 else f"_{number}")


def _gathering(
    number: int, model: str, optimizer: str | None, *, alone: bool, by_context: bool
) -> tuple[str, set[str]]:
    """Statements that gather the states, and the names that they need; `alone` leaves the model out."""
    states = [_state_name(number, is_model=is_model) for is_model in (True, False)]
    if by_context:
        configs = ["FullStateDictConfig(offload_to_cpu=True, rank0_only=True)"]
        body = f"    {states[0]} = {model}.state_dict()\n"
        if optimizer is not None:
            configs.append("FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)")
            body += f"    {states[1]} = FSDP.optim_state_dict({model}, {optimizer})\n"
        head = call_text("with FSDP.state_dict_type", [model, "StateDictType.FULL_STATE_DICT", *configs])
        return f"{head}:\n{body}", {"StateDictType", *(config.partition("(")[0] for config in configs)}
    options = "options=StateDictOptions(full_state_dict=True, cpu_offload=True)"
    lines, imported = [], {"StateDictOptions"}
    for state, kind, owners in ((states[0], "model", [model]), (states[1], "optimizer", [model, optimizer])):
        if None not in owners and not (alone and kind == "model"):
            function = f"get_{kind}_state_dict"
            lines.append(f"{state} = " + call_text(function, [*map(str, owners), options], width=90))
            imported.add(function)
    return "\n".join(lines), imported


def _report_entire_models(draft: Draft, *, by_context: bool) -> None:
    """List saves of an object that has shards: a model itself, or the folder of a pretrained one."""
    survey = draft.survey
    for call in survey.calls:
        names = names_of(survey, model_places(survey), survey.function(call))
        saved = call.args[0].value if survey.callee(call) == "torch.save" and call.args else None
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "save_pretrained":
            saved = call.func.value
        if saved is not None and (dotted(saved) or "").removesuffix(".module") in names:
            draft.add_todo("gather_by_context" if by_context else "gather_by_checkpoint", call)


def _outer_statement(survey: Survey, call: cst.Call) -> Statement | None:
    """Statement to guard: the ``with open(...)`` block of a save to a file; None if a rank condition guards it."""
    statement = survey.statement(call)
    if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(survey.parent(call), cst.Expr):
        return None
    outer: Statement = statement
    for above in survey.ancestors(statement):
        if isinstance(above, cst.If) and is_rank_guard(above.test):
            return None
        if isinstance(above, cst.With) and any("open(" in text_of(item) for item in above.items) and outer is statement:
            outer = above
        if isinstance(above, cst.FunctionDef):
            if _is_guarded(survey, above):
                return None
            break
    return outer


def _is_guarded(survey: Survey, function: cst.FunctionDef) -> bool:
    """Whether every call of a function is under a rank condition."""
    sites = [call for call in survey.calls if (dotted(call.func) or "").rpartition(".")[2] == function.name.value]
    return bool(sites) and all(
        any(isinstance(above, cst.If) and is_rank_guard(above.test) for above in survey.ancestors(site))
        for site in sites
    )


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
        _drop_rank(node, edits)
        if is_rank_guard(node.test) and reaches(survey, node.body, forward, 3):
            draft.add_todo("model_runs_on_one_rank", node)
    draft.apply(edits)


def _drop_rank(node: cst.If, edits: Edits) -> None:
    """Leave the other condition of ``rank == 0 and ...``."""
    test = node.test
    if not (isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And)):
        return
    remaining = [part for part in (test.left, test.right) if not is_rank_guard(part)]
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
            _drop_rank(above, edits)
            if is_rank_guard(above.test):
                edits.replace(above.test, cst.Name("True"))
                draft.add_todo("all_ranks_run", above, function=function.name.value)


def _load_full_state(draft: Draft) -> None:
    """Distribute a state from ``torch.load`` over the ranks; states in memory are sharded already."""
    survey, edits = draft.survey, Edits()
    models, optimizers = model_places(survey), optimizer_places(survey)
    imported: set[str] = set()
    options = "options=StateDictOptions(full_state_dict=True)"
    for call in survey.calls:
        owner, _, method = (dotted(call.func) or "").rpartition(".")
        if method != "load_state_dict" or not call.args or not _is_loaded(survey, call, survey.function(call)):
            continue
        state, function = text_of(call.args[0].value), survey.function(call)
        if not _after_wrapper(survey, call):
            continue
        if owner in names_of(survey, models, function):
            text = call_text("set_model_state_dict", [owner, state, options])
            imported |= {"StateDictOptions", "set_model_state_dict"}
        elif owner in names_of(survey, optimizers, function):
            model = next(iter(sorted(names_of(survey, models, function), key=len)), "")
            if not model:
                draft.add_todo("load_optimizer_state", call)
                continue
            text = call_text("set_optimizer_state_dict", [model, owner, state, options])
            imported |= {"StateDictOptions", "set_optimizer_state_dict"}
        else:
            continue
        edits.replace(call, expression(text))
    draft.apply(edits)
    if imported:
        add_names(draft, _STATES, sorted(imported))


def _after_wrapper(survey: Survey, call: cst.Call) -> bool:
    """Whether a call comes after the model is sharded; one in another function does."""
    wrappers = [c for c in survey.calls if survey.callee(c).endswith((".FullyShardedDataParallel", ".fully_shard"))]
    here = [wrapper for wrapper in wrappers if survey.function(wrapper) is survey.function(call)]
    return not here or any(survey.follows(wrapper, call) for wrapper in here)


def _is_loaded(survey: Survey, call: cst.Call, function: Function) -> bool:
    """Whether the argument of ``load_state_dict`` comes from ``torch.load``."""
    stack, visited = [call.args[0].value], set[str]()
    while stack:
        value = stack.pop()
        if any(isinstance(n, cst.Call) and survey.callee(n) == "torch.load" for n in walk(value)):
            return True
        for name in set(names_in(value)) - visited:
            visited.add(name)
            stack += [a.value for a in survey.assignments(function, name) if a.value is not None]
    return False
