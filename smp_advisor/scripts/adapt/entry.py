"""Entry point of a script: the statement before which the library is initialized."""

from __future__ import annotations

import libcst as cst

from smp_advisor.scripts.adapt.aliases import names_of
from smp_advisor.scripts.adapt.code import dotted, text_of, walk
from smp_advisor.scripts.adapt.imports import is_docstring
from smp_advisor.scripts.adapt.known_names import known_names
from smp_advisor.scripts.adapt.roles import model_places
from smp_advisor.scripts.adapt.survey import Statement, Survey, targets_of

__all__ = ["entry", "is_main_guard"]

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
