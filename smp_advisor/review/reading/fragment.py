"""Text that is a part of a script: names that it does not bind, and methods without their class."""

from __future__ import annotations

import ast
import builtins
import re
from typing import TYPE_CHECKING

from smp_advisor.core.files import table
from smp_advisor.core.words import listed
from smp_advisor.review.reading.module import parse
from smp_advisor.review.reading.run import Frame
from smp_advisor.review.reading.source import Source
from smp_advisor.review.reading.values import Unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from smp_advisor.review.reading.module import Module
    from smp_advisor.review.reading.run import Run

_DATA = table("smp_advisor.review.reading", "fragments.toml")
_HOME = "__home__"


def complete(run: Run, module: Module) -> list[ast.stmt]:
    """Give names that the text does not bind their customary meaning, and return it with its methods in a class."""
    text, statements = module.source.text, module.tree.body
    methods = [node for node in statements if isinstance(node, ast.FunctionDef) and _parameters(node)[:1] == ["self"]]
    heads = [f"{node.name}({', '.join(_parameters(node))})" for node in methods]
    home = next((path for path, head in _DATA["homes"].items() if any(re.search(head, line) for line in heads)), "")
    free = _free(module)
    paths = {name: path for name in sorted(free) if (path := _meaning(name, text))}
    lines = [_imported(path, name) for name, path in paths.items()] + ([_imported(home, _HOME)] if home else [])
    near = _DATA["near"]
    objects = {name for name in free & {*_DATA["objects"]} if re.search(near.get(name, ""), text)}
    lines += [line for name, line in _DATA["objects"].items() if name in objects]
    prelude = parse(Source("<assumed>", "\n".join(lines)), entry=False)
    run.execute(Frame(prelude, module.scope), prelude.tree.body)
    unknown = free - module.scope.names.keys()  # one value for each, as two readings of a name are the same object
    module.scope.names |= {name: Unknown(f"{name} {ELSEWHERE}", _DATA["ranks"].get(name, "")) for name in unknown}
    assumed = [f"{name} is {path}" for name, path in paths.items() if path != name]
    assumed += [f"{name} is {_DATA['objects'][name].partition('= ')[2]}" for name in sorted(objects)]
    run.trace.assumed += [f"Names that the text does not bind: {listed(assumed)}."] * bool(assumed)
    if not home:
        return [*statements, *map(_made, _modules(module))]
    run.trace.assumed.append(f"Methods without a class are those of a {home}.")
    cls = ast.ClassDef("Part", [ast.Name(_HOME, ast.Load())], [], [*methods], [])
    ast.fix_missing_locations(ast.copy_location(cls, methods[0]))
    cls.end_lineno, cls.end_col_offset = methods[-1].end_lineno, methods[-1].end_col_offset
    return [cls, *(node for node in statements if node not in methods), *map(_made, [cls, *_modules(module)])]


def _modules(module: Module) -> list[ast.ClassDef]:
    """Return the modules of Lightning that no line of the text names: another file makes them."""
    names = {node.id for node in module.all(ast.Name)}
    classes = [node for node in module.tree.body if isinstance(node, ast.ClassDef) and node.name not in names]
    return [cls for cls in classes if any(ast.unparse(base).endswith("LightningModule") for base in cls.bases)]


def _made(cls: ast.ClassDef) -> ast.stmt:
    instance = ast.copy_location(ast.Expr(ast.Call(ast.Name(cls.name, ast.Load()), [], [])), cls)
    return ast.fix_missing_locations(instance)


def _parameters(node: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in node.args.args]


def _imported(path: str, name: str) -> str:
    package, _, last = path.rpartition(".")
    return f"from {package} import {last} as {name}" if package else f"import {path} as {name}"


def _meaning(name: str, text: str) -> str:
    """Return the dotted name of what people call so; empty for other names."""
    for entry in _DATA["name"]:
        applies = name in entry.get("names", ()) or re.fullmatch(entry.get("like", r"(?!)"), name)
        if applies and re.search(entry.get("near", ""), text):
            package = entry.get("package", "")
            return name if not package else f"{package}{name}" if package.endswith(".") else str(package)
    return ""


def _free(module: Module) -> set[str]:
    """Return the names that the text reads and never binds."""
    if any(alias.name == "*" for alias in module.all(ast.alias)):
        return set()
    bound = bindings(node for kind in _BINDING for node in module.all(kind))
    return {node.id for node in module.all(ast.Name)} - {*bound, *module.scope.names, *dir(builtins)}


ELSEWHERE = "is set elsewhere"


def bindings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that the nodes bind: assignments, parameters, imports, functions, handlers."""
    for node in nodes:
        if isinstance(node, ast.Name):
            yield from [] if isinstance(node.ctx, ast.Load) else [node.id]
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            yield from node.names
        elif isinstance(node, _DEFINITIONS):
            yield getattr(node, "name", None) or ""


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs)
_BINDING = (ast.Name, ast.alias, ast.arg, ast.Global, ast.Nonlocal, *_DEFINITIONS)
