"""Imports of a generated script: those of all its parts, without the ones that it does not use."""

from __future__ import annotations

import ast
import re
import sys
from typing import TYPE_CHECKING

from smp_advisor.export.literal import import_line

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["gathered"]

_EMPTY_LINES = re.compile(r"\n{4,}")


def gathered(source: str) -> str:
    """Merge the imports at the top level of `source` into one sorted block at the place of the first one.

    Each part of a script imports what it uses itself. Names without a use in the script are left out. More than two
    empty lines in a row, which are between the parts, become two.
    """
    tree = ast.parse(source)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names = [
        (node.module if isinstance(node, ast.ImportFrom) else None, alias)
        for node in imports
        for alias in node.names
        if (alias.asname or alias.name.split(".")[0]) in used
    ]
    lines = source.splitlines(keepends=True)
    for node in reversed(imports):
        del lines[node.lineno - 1 : node.end_lineno]
    lines.insert(imports[0].lineno - 1, _block(names))
    return _EMPTY_LINES.sub("\n\n\n", "".join(lines))


def _block(names: Iterable[tuple[str | None, ast.alias]]) -> str:
    """Import statements: modules first, then names from modules; the standard library before packages."""
    modules = {ast.unparse(alias) for module, alias in names if module is None}
    members: dict[str, set[str]] = {}
    for module, alias in names:
        if module is not None:
            members.setdefault(module, set()).add(ast.unparse(alias))
    sections = []
    for standard in (True, False):
        plain = [f"import {module}" for module in sorted(modules) if _is_standard(module) is standard]
        chosen = [module for module in sorted(members) if _is_standard(module) is standard]
        sections.append("\n".join([*plain, *(import_line(module, members[module]) for module in chosen)]) + "\n")
    return "\n".join(section for section in sections if section.strip())


def _is_standard(module: str) -> bool:
    return module.split(".", maxsplit=1)[0] in sys.stdlib_module_names
