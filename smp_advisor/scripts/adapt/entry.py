"""Where a script starts to work, and what its processes do first: download once, and seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.aliases import names_of
from smp_advisor.scripts.adapt.code import Edits, dotted, expression, keyword, statements, text_of, walk
from smp_advisor.scripts.adapt.draft import is_docstring
from smp_advisor.scripts.adapt.roles import model_places
from smp_advisor.scripts.adapt.survey import Statement, Survey, known_names, targets_of

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft


_PASSIVE = known_names("passive_prefixes")
_WORKING = known_names("working_prefixes")


def is_main_guard(statement: cst.CSTNode) -> bool:
    """Whether a statement is ``if __name__ == "__main__":``."""
    return (
        isinstance(statement, cst.If)
        and "__name__" in text_of(statement.test)
        and "__main__" in text_of(statement.test)
    )


def entry(survey: Survey) -> Statement | None:
    """First statement that does work, before which the library is initialized; None if there is none."""
    block = list(survey.module.body)
    while True:
        first = next((statement for statement in block if _works(survey, statement)), None)
        if first is None:
            return None
        if is_main_guard(first):
            block = survey.body_of(cst.ensure_type(first, cst.If).body.body[0])
            if not any(_works(survey, statement) for statement in block):
                return block[0]
            continue
        called = _only_call(survey, first)
        if called is None or not called.body.body:
            return first
        block = _after_docstring(called)
        if not any(_works(survey, statement) for statement in block):
            return block[0] if block else first
        return block[0]


def _after_docstring(function: cst.FunctionDef) -> list[Statement]:
    body = [statement for statement in function.body.body if isinstance(statement, Statement)]
    return body[1:] if is_docstring(body[0]) and len(body) > 1 else body


def _works(survey: Survey, statement: Statement) -> bool:
    if isinstance(statement, cst.FunctionDef | cst.ClassDef):
        return False
    if is_main_guard(statement):
        return True
    return any(
        (isinstance(node, cst.Call) and _is_work(survey, node)) or _creates_model(survey, node)
        for node in walk(statement)
    )


def _creates_model(survey: Survey, node: cst.CSTNode) -> bool:
    """Whether a node assigns the result of a call to a trained model, for example of a function of another module."""
    if not isinstance(node, cst.Assign) or not isinstance(node.value, cst.Call):
        return False
    names = names_of(survey, model_places(survey), survey.function(node))
    return any(dotted(target) in names for target in targets_of(node))


def _is_work(survey: Survey, call: cst.Call) -> bool:
    name = survey.callee(call)
    if not name or name.startswith(_PASSIVE):
        return False
    if survey.named(name) or survey.classes_named(name):
        return not _reads_options(survey, name)
    return f"{name}.".startswith(_WORKING)


def _reads_options(survey: Survey, name: str) -> bool:
    """Whether a function of the script only parses the command line."""
    return any(
        isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "add_argument"
        for function in survey.named(name)
        for node in walk(function)
    ) and not any(
        isinstance(node, cst.Call)
        and survey.callee(node).split(".")[0] == "torch"
        and "cuda" not in survey.callee(node)
        for function in survey.named(name)
        for node in walk(function)
    )


def _only_call(survey: Survey, statement: Statement) -> cst.FunctionDef | None:
    """The function called by a statement such as ``main()``, if it is called nowhere else."""
    if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(statement.body[0], cst.Expr):
        return None
    call = statement.body[0].value
    if not isinstance(call, cst.Call) or any("smp." in text_of(arg) for arg in call.args):
        return None
    functions = survey.named(dotted(call.func) or "")
    # A function that runs more than once must not initialize the library.
    calls = [site for site in survey.calls if dotted(site.func) == dotted(call.func)]
    return functions[0] if len(functions) == 1 and len(calls) == 1 else None


def download_once(draft: Draft) -> None:
    """Restrict ``download=True`` to local rank 0."""
    download_on(draft, local_rank="smp.local_rank()", barrier="smp.barrier()")


def download_on(draft: Draft, *, local_rank: str, barrier: str) -> bool:
    """Restrict ``download=True`` to the first process of an instance; whether there was such a call."""
    survey, edits = draft.survey, Edits()
    for call in survey.calls:
        option = keyword(call, "download")
        if option is None or dotted(option.value) != "True":
            continue
        if any(isinstance(above, cst.If) and "local_rank" in text_of(above.test) for above in survey.ancestors(call)):
            continue
        statement = survey.statement(call)
        if not isinstance(statement, cst.SimpleStatementLine):
            draft.add_todo("downloads_everywhere", call, local_rank=local_rank, barrier=barrier)
            continue
        edits.insert_before(statement, statements(f"if {local_rank} == 0:\n    {text_of(call)}\n{barrier}\n"))
        edits.replace(option.value, cst.Name("False"))
    changed = bool(edits)
    draft.apply(edits)
    return changed


_MODEL_SEEDS = frozenset(known_names("model_seeds"))
_DATA_SEEDS = frozenset(known_names("data_seeds"))


def seed_by_rank(draft: Draft) -> None:
    """Add the rank to every seed, and give data splits their own generator."""
    survey, edits = draft.survey, Edits()
    seeded = False
    for call in survey.calls:
        name = survey.callee(call)
        if name not in _MODEL_SEEDS | _DATA_SEEDS or len(call.args) != 1 or call.args[0].star:
            continue
        seeded |= name in _MODEL_SEEDS
        argument = call.args[0]
        if "smp." in text_of(argument.value):
            continue
        rank = "smp.dp_rank()" if name in _MODEL_SEEDS else draft.target.data_rank
        text = text_of(argument.value)
        if not isinstance(argument.value, cst.Name | cst.Attribute | cst.Integer | cst.Call | cst.Subscript):
            text = f"({text})"
        edits.replace(argument.value, expression(f"{text} + {rank}"))
    if seeded:
        for call in survey.calls:
            if survey.callee(call).endswith("random_split") and keyword(call, "generator") is None:
                # The split must be the same on every rank.
                added = expression(
                    f"f({', '.join(text_of(arg).rstrip(', ') for arg in call.args)},"
                    " generator=torch.Generator().manual_seed(0))"
                )
                edits.replace(call, cst.ensure_type(added, cst.Call).with_changes(func=call.func))
    elif draft.target.tensor_parallel:
        start = next(
            (c for c in survey.calls if survey.callee(c) == "torch.cuda.set_device" and "smp." in text_of(c)), None
        )
        statement = survey.statement(start) if start is not None else None
        if statement is not None:
            edits.insert_after(statement, statements("torch.manual_seed(smp.dp_rank())\n"))
    draft.apply(edits)


def seed_models(draft: Draft) -> None:
    """Seed PyTorch after the process group if the script has no seed."""
    survey, edits = draft.survey, Edits()
    if any(survey.callee(call) in _MODEL_SEEDS for call in survey.calls):
        return
    group = next((c for c in survey.calls if survey.callee(c) == "torch.distributed.init_process_group"), None)
    statement = survey.statement(group) if group is not None else None
    if statement is None or survey.imported.get("torch") != "torch":
        draft.add_todo("seed_models")
        return
    edits.insert_after(statement, statements("torch.manual_seed(0)\n"))
    draft.apply(edits)
