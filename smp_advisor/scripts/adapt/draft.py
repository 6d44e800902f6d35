"""The script during its adaptation: its current source, its imports, and the to-do list."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.files import table
from smp_advisor.scripts.adapt.code import LINE_LENGTH, Edits, dotted, statements, text_of
from smp_advisor.scripts.adapt.survey import Statement, Survey

if TYPE_CHECKING:
    from pathlib import Path

    from smp_advisor.scripts.adapt.adaptation import Target


def sentence(key: str, **fields: object) -> str:
    """The sentence of a key in ``data/sentences.toml``."""
    sentences: dict[str, str] = table("smp_advisor.scripts.adapt", "data/sentences.toml")
    return sentences[key].format(nearest=sentences["nearest"], **fields)


class Draft:
    """State passed from step to step. Each step reads `survey`, collects edits, and applies them."""

    def __init__(self, module: cst.Module, target: Target, file: Path | None = None) -> None:
        self.module = module
        self.target = target
        self.file = file
        """The script; None if it was passed as text."""
        self.todo: list[str] = []
        self.abandoned = False
        """Whether the script cannot be adapted at all."""
        self._survey: Survey | None = None

    @property
    def survey(self) -> Survey:
        """Index of the current source."""
        if self._survey is None:
            self._survey = Survey(self.module)
        return self._survey

    def apply(self, edits: Edits) -> None:
        """Make the edits; nodes read before are no longer part of the script."""
        self.module = edits.apply(self.module)
        self._survey = None

    def add_todo(self, key: str, node: cst.CSTNode | None = None, **fields: object) -> None:
        """Add the sentence of this key, in which `{code}` quotes the statement around `node`."""
        self.add_sentence(sentence(key, code=self.excerpt(node) if node is not None else "", **fields))

    def add_sentence(self, text: str) -> None:
        """Add a sentence to the to-do list, unless it is there already."""
        if text not in self.todo:
            self.todo.append(text)

    def abandon(self, key: str, node: cst.CSTNode | None = None, **fields: object) -> None:
        """Leave the script unchanged, for the reason in the sentence of this key."""
        self.todo = []
        self.add_todo(key, node, **fields)
        self.abandoned = True

    def excerpt(self, node: cst.CSTNode) -> str:
        """First line of the statement around a node, at most 80 characters, to quote in a to-do."""
        statement = self.survey.statement(node) or node
        text = cst.Module(body=[]).code_for_node(statement)
        line = next(
            (line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")), ""
        )
        return line if len(line) <= 80 else line[:77] + "..."


Step = Callable[[Draft], None]


def unified_diff(before: str, after: str, path: str) -> str:
    """Diff for ``patch -p1``; empty if the texts are equal."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{path}", f"b/{path}"
    )
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def _is_import(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and all(
        isinstance(small, cst.Import | cst.ImportFrom) for small in statement.body
    )


def is_docstring(statement: cst.CSTNode) -> bool:
    """Whether a statement is only a string."""
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and isinstance(statement.body[0], cst.Expr)
        and isinstance(statement.body[0].value, cst.SimpleString | cst.ConcatenatedString)
    )


def _last_import(survey: Survey) -> Statement | None:
    """Last import statement of the module before its first function or class."""
    last = None
    for statement in survey.module.body:
        if isinstance(statement, cst.FunctionDef | cst.ClassDef):
            break
        if _is_import(statement):
            last = statement
    return last


def _first_statement(survey: Survey) -> Statement | None:
    """First statement that is neither the docstring nor ``from __future__ import``."""
    for statement in survey.module.body:
        if is_docstring(statement):
            continue
        if isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], cst.ImportFrom):
            module = statement.body[0].module
            if module is not None and dotted(module) == "__future__":
                continue
        return statement
    return None


def add_import(draft: Draft, text: str, *, local: str) -> None:
    """Add an import statement, unless the name `local` is already imported from the same place."""
    survey = draft.survey
    new = statements(text)
    origins = Survey(cst.Module(body=new)).imported
    if survey.imported.get(local) == origins[local]:
        return
    edits = Edits()
    last = _last_import(survey)
    first = _first_statement(survey)
    if last is not None:
        edits.insert_after(last, new)
    elif first is not None:
        edits.insert_before(first, new)
    draft.apply(edits)


def add_names(draft: Draft, module: str, names: list[str]) -> None:
    """Add ``from module import names``, to an existing import statement of that module if there is one."""
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
            present = [alias.with_changes(comma=comma) for alias in node.names]
            new = [cst.ImportAlias(name=cst.Name(name), comma=comma) for name in missing]
            new[-1] = new[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            longer = node.with_changes(names=[*present, *new])
            if len(text_of(longer)) > LINE_LENGTH:
                break
            edits = Edits()
            edits.replace(node, longer)
            draft.apply(edits)
            return
    add_import(draft, f"from {module} import {', '.join(missing)}", local=missing[0])


def drop_unused_imports(draft: Draft, names: set[str]) -> None:
    """Remove imports of these qualified names that the script no longer uses."""
    survey, edits = draft.survey, Edits()
    used = {
        node.value
        for node in survey.nodes
        if isinstance(node, cst.Name)
        and not any(isinstance(above, cst.Import | cst.ImportFrom) for above in survey.ancestors(node))
    }
    for node in survey.nodes:
        if not isinstance(node, cst.Import | cst.ImportFrom) or isinstance(node.names, cst.ImportStar):
            continue
        aliases = []
        for alias in node.names:
            origins = Survey(
                cst.Module(body=[cst.SimpleStatementLine(body=[node.with_changes(names=[_bare(alias)])])])
            ).imported
            local, origin = next(iter(origins.items()))
            full = dotted(alias.name) if isinstance(node, cst.Import) else origin
            if (full in names or origin in names) and local not in used:
                continue
            aliases.append(alias)
        if len(aliases) == len(node.names):
            continue
        if aliases:
            aliases[-1] = aliases[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            edits.replace(node, node.with_changes(names=aliases))
        else:
            statement = survey.statement(node)
            if statement is not None and isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
                edits.remove(statement)
    draft.apply(edits)


def _bare(alias: cst.ImportAlias) -> cst.ImportAlias:
    return alias.with_changes(comma=cst.MaybeSentinel.DEFAULT)
