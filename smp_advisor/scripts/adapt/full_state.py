"""Steps: gather the shards of all ranks before a save, write on one rank, and load what was saved."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.adaptation import add_import, add_names
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
from smp_advisor.scripts.adapt.launch import add_dist
from smp_advisor.scripts.adapt.roles import model_places, optimizer_places, reaches
from smp_advisor.scripts.adapt.saving import Saved, guards, is_rank_guard, saved_states

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
    """Gather the shards of SMP v2 before each save, and write on one rank."""
    for number in range(12):
        states = [saved for saved in saved_states(draft.survey) if not _is_gathered(draft, saved)]
        if not states or not _gather(draft, states[0], number, by_context=True):
            return


def save_full_state_by_checkpoint(draft: Draft) -> None:
    """Gather the shards of FSDP before each save, write on one rank, and distribute states that are loaded."""
    _load_full_state(draft)
    _run_on_every_rank(draft)
    for number in range(12):
        listed = draft.todo
        states = [s for s in saved_states(draft.survey) if not any(draft.excerpt(s.call) in text for text in listed)]
        if not states:
            break
        _gather(draft, states[0], number, by_context=False)
    # Other objects need no gathering.
    survey, edits = draft.survey, Edits()
    gathered = {saved.call for saved in saved_states(survey)}
    ungathered = [call for call in survey.calls if survey.callee(call) == "torch.save" and call not in gathered]
    _guard_saves(survey, edits, ungathered)
    draft.apply(edits)
    add_dist(draft)


def _is_gathered(draft: Draft, saved: Saved) -> bool:
    return any(
        isinstance(above, cst.With) and "state_dict_type" in text_of(above.items[0])
        for above in draft.survey.ancestors(saved.value)
    )


def _gather(draft: Draft, saved: Saved, number: int, *, by_context: bool) -> bool:
    """Gather a state on all ranks, by FSDP's context or by functions, and save it on one; False with a to-do."""
    survey, edits, suffix = draft.survey, Edits(), "" if number == 0 else f"_{number + 1}"
    above = guards(survey, saved.statement)
    entire = dotted(saved.value) in (saved.model, f"{saved.model}.module")
    simple = isinstance(saved.statement, cst.SimpleStatementLine)
    if not saved.plain or saved.pretrained or (entire and not by_context) or above is None or not simple:
        draft.add_todo("gather_by_context" if by_context else "gather_by_checkpoint", saved.call)
        return False

    # The saved object refers to the gathered states.
    names = {
        f"{saved.model}.state_dict()": f"model_state{suffix}",
        f"{saved.model}.module.state_dict()": f"model_state{suffix}",
        f"{saved.optimizer}.state_dict()": f"optimizer_state{suffix}",
    }
    for node in walk(saved.value):
        if isinstance(node, cst.Call) and text_of(node) in names:
            edits.replace(node, cst.Name(names[text_of(node)]))
    if entire:
        edits.replace(saved.value, cst.Name(f"model_state{suffix}"))

    # All ranks take part in gathering, so it comes before conditions on the rank and before the saved object.
    place: cst.CSTNode = above[-1] if above else saved.statement
    origin = survey.statement(saved.value)
    if origin is not None and survey.follows(origin, place) and origin is not saved.statement:
        place = origin
    text, module, imported = _gathering(saved, suffix, by_context=by_context)
    edits.insert_before(place, statements(text))
    if not above:
        function = survey.function(saved.call)
        if function is not None and not by_context:
            _call_on_every_rank(draft, edits, function)
        edits.change(saved.statement, _on_first_rank)
    draft.apply(edits)
    add_names(draft, module, imported)
    if by_context:
        add_import(draft, "import torch.distributed as dist", local="dist")
    return True


def _gathering(saved: Saved, suffix: str, *, by_context: bool) -> tuple[str, str, list[str]]:
    """Statements that gather the states, and the module and names that they need."""
    if by_context:
        configs = ["FullStateDictConfig(offload_to_cpu=True, rank0_only=True)"]
        body = f"    model_state{suffix} = {saved.model}.state_dict()\n"
        imported = ["FullStateDictConfig", "StateDictType"]
        if saved.optimizer is not None:
            configs.append("FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)")
            imported.append("FullOptimStateDictConfig")
            body += f"    optimizer_state{suffix} = FSDP.optim_state_dict({saved.model}, {saved.optimizer})\n"
        head = call_text("with FSDP.state_dict_type", [saved.model, "StateDictType.FULL_STATE_DICT", *configs])
        return f"{head}:\n{body}", "torch.distributed.fsdp", imported
    options = "options=StateDictOptions(full_state_dict=True, cpu_offload=True)"
    lines = [f"model_state{suffix} = " + call_text("get_model_state_dict", [saved.model, options], width=90)]
    imported = ["StateDictOptions", "get_model_state_dict"]
    if saved.optimizer is not None:
        arguments = [saved.model, saved.optimizer, options]
        lines.append(f"optimizer_state{suffix} = " + call_text("get_optimizer_state_dict", arguments, width=90))
        imported.append("get_optimizer_state_dict")
    return "\n".join(lines), _STATES, imported


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


def _run_on_every_rank(draft: Draft) -> None:
    """Remove the rank from conditions around forward passes and saves, in which all ranks take part."""
    survey, edits = draft.survey, Edits()
    models = model_places(survey)
    forward = {call for call in survey.calls if dotted(call.func) in names_of(survey, models, survey.function(call))}
    collective = forward | {saved.call for saved in saved_states(survey)}
    for node in survey.nodes:
        if not isinstance(node, cst.If) or not reaches(survey, node.body, collective, 3):
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
