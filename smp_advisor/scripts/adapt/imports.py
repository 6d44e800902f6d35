"""Adding imports to a script, and dropping those that nothing uses any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.code import LINE_LENGTH, dotted, spelled, statements
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.survey import Statement, Survey

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["add_import", "add_names", "after_imports", "drop_unused_imports", "first_statement"]


def _is_import(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and all(
        isinstance(small, cst.Import | cst.ImportFrom) for small in statement.body
    )


def _is_docstring(statement: cst.CSTNode) -> bool:
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and isinstance(statement.body[0], cst.Expr)
        and isinstance(statement.body[0].value, cst.SimpleString | cst.ConcatenatedString)
    )


def after_imports(survey: Survey) -> Statement | None:
    """Last import statement of the module's opening block of imports, docstring and plain settings."""
    last = None
    for statement in survey.module.body:
        if isinstance(statement, cst.FunctionDef | cst.ClassDef):
            break
        if _is_import(statement):
            last = statement
    return last


def first_statement(survey: Survey) -> Statement | None:
    """First statement that is neither docstring nor ``from __future__``."""
    for statement in survey.module.body:
        if _is_docstring(statement):
            continue
        if isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], cst.ImportFrom):
            module = statement.body[0].module
            if module is not None and dotted(module) == "__future__":
                continue
        return statement
    return None


def add_import(draft: Draft, text: str, *, local: str) -> None:
    """Add an import statement unless `local` is imported from there already."""
    survey = draft.survey
    new = statements(text)
    wanted = Survey(cst.Module(body=new)).imported
    if survey.imported.get(local) == wanted[local]:
        return
    edits = Edits()
    last = after_imports(survey)
    first = first_statement(survey)
    if last is not None:
        edits.insert_after(last, new)
    elif first is not None:
        edits.insert_before(first, new)
    draft.apply(edits)


def add_names(draft: Draft, module: str, names: list[str]) -> None:
    """Add ``from module import names``, to a statement that imports from there already if there is one."""
    survey = draft.survey
    missing = [name for name in names if survey.imported.get(name) != f"{module}.{name}"]
    if not missing:
        return
    for node in survey.nodes:
        if (
            isinstance(node, cst.ImportFrom)
            and node.module is not None
            and dotted(node.module) == module
            and not isinstance(node.names, cst.ImportStar)
            and node.lpar is None
        ):
            comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            kept = [alias.with_changes(comma=comma) for alias in node.names]
            new = [cst.ImportAlias(name=cst.Name(name), comma=comma) for name in missing]
            new[-1] = new[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            longer = node.with_changes(names=[*kept, *new])
            if len(spelled(longer)) > LINE_LENGTH:
                break
            edits = Edits()
            edits.replace(node, longer)
            draft.apply(edits)
            return
    add_import(draft, f"from {module} import {', '.join(missing)}", local=missing[0])


def drop_unused_imports(draft: Draft, names: set[str]) -> None:
    """Drop imports of these full names that the script no longer uses."""
    survey = draft.survey
    used = {name for node in survey.nodes if isinstance(node, cst.Name) for name in [node.value]}
    counts: dict[str, int] = dict.fromkeys(used, 0)
    for node in survey.nodes:
        if isinstance(node, cst.Name) and not any(
            isinstance(above, cst.Import | cst.ImportFrom) for above in survey.ancestors(node)
        ):
            counts[node.value] += 1
    edits = Edits()
    for node in survey.nodes:
        if not isinstance(node, cst.Import | cst.ImportFrom) or isinstance(node.names, cst.ImportStar):
            continue
        kept = []
        for alias in node.names:
            found = Survey(
                cst.Module(body=[cst.SimpleStatementLine(body=[node.with_changes(names=[_bare(alias)])])])
            ).imported
            local, origin = next(iter(found.items()))
            full = dotted(alias.name) if isinstance(node, cst.Import) else origin
            if (full in names or origin in names) and counts.get(local, 0) == 0:
                continue
            kept.append(alias)
        if len(kept) == len(node.names):
            continue
        if kept:
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            edits.replace(node, node.with_changes(names=kept))
        else:
            statement = survey.statement(node)
            if statement is not None and isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
                edits.remove(statement)
    draft.apply(edits)


def _bare(alias: cst.ImportAlias) -> cst.ImportAlias:
    return alias.with_changes(comma=cst.MaybeSentinel.DEFAULT)
