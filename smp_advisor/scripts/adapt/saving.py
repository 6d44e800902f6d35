"""Saved states of a script: where they are, and the step that saves them with SMP v1 from every rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.adaptation import add_import
from smp_advisor.scripts.adapt.aliases import names_of
from smp_advisor.scripts.adapt.code import (
    Edits,
    call_text,
    dotted,
    keyword,
    names_in,
    positional,
    statements,
    text_of,
    walk,
)
from smp_advisor.scripts.adapt.roles import model_places, optimizer_places

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.adaptation import Draft
    from smp_advisor.scripts.adapt.survey import Statement, Survey


_RANK_WORDS = ("rank", "gpu_id", "is_main_process", "is_master", "master_process")


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """One call that saves the state of the model."""

    call: cst.Call
    statement: Statement
    model: str
    optimizer: str | None = None
    """None if the state of the optimizer is not saved."""
    content: tuple[tuple[str, str], ...] = ()
    """Other entries of the saved dictionary: source code of key and value."""
    value: cst.BaseExpression
    """The saved object."""
    path: cst.BaseExpression
    plain: bool = True
    """Whether the expression of the saved object is known, so that it can be split into its entries."""
    pretrained: bool = False
    """Whether it is ``model.save_pretrained(folder)`` of transformers, where `path` is a folder."""


def saved_states(survey: Survey) -> list[Saved]:
    """Calls of ``torch.save`` with the state of a model, and of ``model.save_pretrained``."""
    states = []
    for call in survey.calls:
        statement = survey.statement(call)
        if statement is None:
            continue
        function = survey.function(call)
        models = names_of(survey, model_places(survey), function)
        if survey.callee(call) == "torch.save":
            content = keyword(call, "obj") or positional(call, 0)
            path = keyword(call, "f") or positional(call, 1)
            if content is None or path is None:
                continue
            value, target = content.value, path.value
            opened = any(
                item.asname is not None and dotted(item.asname.name) == dotted(target)
                for above in survey.ancestors(statement)
                if isinstance(above, cst.With)
                for item in above.items
            )
            plain = not opened
            if isinstance(value, cst.Name) and value.value not in models:
                assigned = _assigned(survey, statement, value.value)
                value, plain = assigned or value, plain and assigned is not None
            saved = _parse_state(survey, call, statement, value=value, path=target, models=models, plain=plain)
            if saved is not None:
                states.append(saved)
        elif isinstance(call.func, cst.Attribute) and call.func.attr.value == "save_pretrained" and call.args:
            owner = (dotted(call.func.value) or "").removesuffix(".module")
            if owner in models:
                folder = call.args[0].value
                states.append(
                    Saved(call=call, statement=statement, model=owner, value=call.func, path=folder, pretrained=True)
                )
    return states


def _assigned(survey: Survey, statement: Statement, name: str) -> cst.BaseExpression | None:
    """Value of a variable at a statement: its only one, or the last one before it in the same block."""
    assignments = survey.assignments(survey.function(statement), name)
    if len(assignments) > 1:
        block = survey.body_of(statement)
        before = block[: block.index(statement)] if statement in block else []
        assignments = [a for a in assignments if survey.statement(a) in before][-1:]
    return assignments[0].value if len(assignments) == 1 else None


def _parse_state(
    survey: Survey,
    call: cst.Call,
    statement: Statement,
    *,
    value: cst.BaseExpression,
    path: cst.BaseExpression,
    models: set[str],
    plain: bool,
) -> Saved | None:
    optimizers = names_of(survey, optimizer_places(survey), survey.function(call))
    model = _state_of(value, models)
    module = (dotted(value) or "").removesuffix(".module")
    if model is None and module in models:
        # torch.save(model, path)
        model = module
    if model is not None:
        return Saved(call=call, statement=statement, model=model, value=value, path=path, plain=plain)
    entries = _entries(value)
    if entries is None:
        return None
    optimizer, further = None, []
    for key, entry in entries:
        state = _state_of(entry, models)
        if state is not None:
            model = state
        elif (owner := _state_of(entry, optimizers)) is not None:
            optimizer = owner
        else:
            further.append((key, text_of(entry)))
    if model is None:
        return None
    return Saved(
        call=call,
        statement=statement,
        model=model,
        optimizer=optimizer,
        content=tuple(further),
        value=value,
        path=path,
        plain=plain,
    )


def _entries(value: cst.BaseExpression) -> list[tuple[str, cst.BaseExpression]] | None:
    if isinstance(value, cst.Dict) and all(isinstance(element, cst.DictElement) for element in value.elements):
        return [(text_of(e.key), e.value) for e in value.elements if isinstance(e, cst.DictElement)]
    if isinstance(value, cst.Call) and dotted(value.func) == "dict" and all(arg.keyword for arg in value.args):
        return [(f'"{arg.keyword.value}"', arg.value) for arg in value.args if arg.keyword is not None]
    return None


def _state_of(value: cst.BaseExpression, names: set[str]) -> str | None:
    """``model`` in ``model.state_dict()`` and ``model.module.state_dict()``."""
    if not (
        isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value == "state_dict"
    ):
        return None
    owner = dotted(value.func.value) or ""
    owner = owner.removesuffix(".module")
    return owner if owner in names else None


def names_a_rank(test: cst.BaseExpression) -> bool:
    """Whether a condition depends on the process."""
    text = text_of(test)
    return any(word in text for word in _RANK_WORDS)


def is_rank_guard(test: cst.BaseExpression) -> bool:
    """Whether a condition only selects processes: ``rank == 0``, ``smp.dp_rank() == 0``, ``is_main_process``."""
    return names_a_rank(test) and not any(isinstance(node, cst.BooleanOperation) for node in walk(test))


_METRICS = ("loss", "acc", "best", "metric", "score", "held_", "val", "ppl", "perplexity", "bleu", "f1")


def save_by_library(draft: Draft) -> None:
    """Replace the calls that save the state of the model."""
    for _ in range(12):
        states = saved_states(draft.survey)
        if not states or not _save_by_library(draft, states[0]):
            break
    _report_other_saves(draft)


def _report_other_saves(draft: Draft) -> None:
    """Add a to-do for every state that is saved in an unknown way."""
    survey = draft.survey
    places = model_places(survey) | optimizer_places(survey)
    for call in survey.calls:
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "state_dict" and not call.args:
            owner = (dotted(call.func.value) or "").removesuffix(".module")
            if owner in names_of(survey, places, survey.function(call)):
                draft.add_todo("partial_state", call=text_of(call))


def _save_by_library(draft: Draft, saved: Saved) -> bool:
    survey, edits = draft.survey, Edits()
    if not saved.plain or not isinstance(saved.statement, cst.SimpleStatementLine):
        draft.add_todo("save_by_hand", saved.call)
        return False
    partial = saved.optimizer is not None
    directory, tag, needs_os = _split_path(survey, saved.path)
    if saved.pretrained:
        # File name of the weights in a folder of transformers.
        directory, tag, needs_os = text_of(saved.path), '"pytorch_model.bin"', False
        draft.add_todo("configuration_apart", saved.call)
    arguments = [
        f"path={directory}",
        f"tag={tag}",
        f"partial={partial}",
        f"model={saved.model}",
    ]
    if saved.optimizer is not None:
        arguments.append(f"optimizer={saved.optimizer}")
    if saved.content:
        entries = ", ".join(f"{key}: {value}" for key, value in saved.content)
        arguments.append(f"user_content={{{entries}}}")
    new = statements(call_text("smp.save_checkpoint", arguments, width=88))
    above = guards(survey, saved.statement)
    if above is None:
        draft.add_todo("some_ranks_save", saved.call)
        above = []
    outermost = above[-1] if above else None
    if outermost is not None:
        # The other statements under the rank condition stay there.
        siblings = [s for s in survey.body_of(saved.statement) if s is not saved.statement]
        if siblings:
            edits.remove(saved.statement)
            edits.insert_before(outermost, new)
        else:
            new[0] = new[0].with_changes(leading_lines=outermost.leading_lines)
            edits.change(outermost, lambda _: cst.FlattenSentinel(new))
    else:
        new[0] = new[0].with_changes(leading_lines=saved.statement.leading_lines)
        edits.change(saved.statement, lambda _: cst.FlattenSentinel(new))
    drop_variable(survey, edits, saved)
    _report_metric_conditions(draft, saved)
    draft.apply(edits)
    if needs_os:
        add_import(draft, "import os", local="os")
    if not partial and draft.target.sharded_data_parallel:
        draft.add_todo("needs_1_15", directory=directory)
    return True


def _report_metric_conditions(draft: Draft, saved: Saved) -> None:
    """Add a to-do for a condition on a metric, whose value differs between ranks."""
    for above in draft.survey.ancestors(saved.statement):
        if isinstance(above, cst.FunctionDef):
            return
        if isinstance(above, cst.If) and any(
            word in name.lower() for name in names_in(above.test) for word in _METRICS
        ):
            draft.add_todo("ranks_must_agree", above)
            return


def guards(survey: Survey, statement: Statement) -> list[cst.If] | None:
    """Rank conditions around the statement, innermost first; None if one of them includes more than the rank."""
    conditions: list[cst.If] = []
    for above in survey.ancestors(statement):
        if isinstance(above, cst.FunctionDef | cst.For | cst.While):
            break
        if isinstance(above, cst.If):
            if not is_rank_guard(above.test):
                if "rank" in text_of(above.test):
                    return None
                break
            if above.orelse is not None:
                return None
            conditions.append(above)
    return conditions


def _split_path(survey: Survey, path: cst.BaseExpression) -> tuple[str, str, bool]:
    """Expressions of the directory and the file name, and whether they require ``os``."""
    if isinstance(path, cst.SimpleString) and isinstance(path.evaluated_value, str):
        head, _, tail = path.evaluated_value.rpartition("/")
        return repr(head or ".").replace("'", '"'), repr(tail).replace("'", '"'), False
    if isinstance(path, cst.Call) and survey.callee(path) == "os.path.join" and len(path.args) == 2:
        return text_of(path.args[0].value), text_of(path.args[1].value), False
    text = text_of(path)
    return f'os.path.dirname({text}) or "."', f"os.path.basename({text})", True


def drop_variable(survey: Survey, edits: Edits, saved: Saved) -> None:
    """Remove the assignment ``checkpoint = {...}`` if only ``torch.save`` used it."""
    saved_object = saved.call.args[0].value
    if not isinstance(saved_object, cst.Name):
        return
    function = survey.function(saved.call)
    uses = [
        n
        for n in survey.nodes
        if isinstance(n, cst.Name) and n.value == saved_object.value and survey.function(n) is function
    ]
    assignments = survey.assignments(function, saved_object.value)
    if len(uses) == 2 and len(assignments) == 1:
        statement = survey.statement(assignments[0])
        if statement is not None:
            edits.remove(statement)
