"""Options that a script has and that nothing in it receives: they are parsed, and shown at most."""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import TYPE_CHECKING

from smp_advisor.review.reading.outside import COMMAND_LINES, COMMANDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PARSES = frozenset(["parse_args", "parse_known_args"])
_INTO_CLASSES = frozenset(["parse_args_into_dataclasses", "parse_args_and_config"])
_PARSERS = frozenset(["HfArgumentParser", "TrlParser"])
_SHOWS = frozenset(["print", "pprint", "debug", "info", "warning", "error", "critical", "log", "warn", "exception"])
_RECORDERS = frozenset(["wandb", "mlflow"])
"""Packages whose calls record all options."""
_COMPUTES = frozenset(["int", "float", "str", "bool", "max", "min", "abs", "round"])
_WHOLE = frozenset(["__dict__", "_get_kwargs", "to_dict", "items", "keys", "values", "dict", "model_dump", "asdict"])
"""Attributes that hand on all options."""
_DEEPEST = 6
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_ARGPARSE = "argparse"
"""Kind of the options of argparse; others are those of their class or function."""


def unused_options(trees: Iterable[ast.Module]) -> frozenset[str]:
    """Find options that no call, condition or computation of a script receives.

    Parameters
    ----------
    trees
        The files of the script: those that are not among them may read what is passed to them.

    Returns
    -------
    frozenset of str
        Names as attributes or parameters (``train_batch_size``), without those that may be read unseen.
    """
    return _Options(trees).unused()


def _label(node: ast.AST | None) -> str:
    """Last part of a name: that of ``self.args`` is ``args``."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _flags(call: ast.Call) -> str:
    """Attribute of an option of argparse."""
    names = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    for keyword in call.keywords:
        if keyword.arg == "dest":
            return str(keyword.value.value) if isinstance(keyword.value, ast.Constant) else ""
    long = [name for name in names if name.startswith("--")] or names
    return long[0].lstrip("-").replace("-", "_") if long else ""


def _parameters(function: _Function) -> list[str]:
    spec = function.args
    return [argument.arg for argument in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]


class _Options:
    """Options of the files of a script, and where they go."""

    def __init__(self, trees: Iterable[ast.Module]) -> None:
        self.parent: dict[ast.AST, ast.AST] = {}
        self.calls: dict[str, list[ast.Call]] = defaultdict(list)
        self.loads: dict[str, list[ast.expr]] = defaultdict(list)
        self.functions: dict[str, list[_Function]] = defaultdict(list)
        self.classes: dict[str, ast.ClassDef] = {}
        self.texts: set[str] = set()
        self.lost: set[str] = set()
        self.namespaces: set[str] = set()
        self.followed: set[tuple[str, str]] = set()
        for node in (node for tree in trees for node in ast.walk(tree)):
            self.parent |= dict.fromkeys(ast.iter_child_nodes(node), node)
            self._sort(node)

    def _sort(self, node: ast.AST) -> None:
        match node:
            case ast.Call():
                self.calls[_label(node.func)].append(node)
            case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()):
                self.loads[_label(node)].append(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.functions[node.name].append(node)
            case ast.ClassDef():
                self.classes[node.name] = node
            case ast.Constant(value=str(text)):
                place = self.parent[node]
                declares = isinstance(place, ast.Call) and _label(place.func) in ("add_argument", "option", "argument")
                if not declares and not (isinstance(place, ast.Dict) and node in place.keys):
                    self.texts.add(text)

    def unused(self) -> frozenset[str]:
        parses = [call for name in _PARSES for call in self.calls[name]]
        declared = {(_ARGPARSE, name) for call in self.calls["add_argument"] if parses and (name := _flags(call))}
        for call in parses:
            self._flow(call, [_ARGPARSE])
            if any(keyword.arg == "namespace" for keyword in call.keywords):
                self.lost.add(_ARGPARSE)
        for call in (call for name in _PARSERS for call in self.calls[name]):
            declared |= self._of_classes(call)
        if any(len(call.args) > 1 and not isinstance(call.args[1], ast.Constant) for call in self.calls["getattr"]):
            return frozenset()
        left = {name for kind, name in declared if kind not in self.lost and not self._reads(name)}
        received = {name for kind, name in declared if kind in self.lost}
        return frozenset(left - received) | frozenset(self._of_commands())

    def _of_classes(self, parser: ast.Call) -> set[tuple[str, str]]:
        """Fields of own dataclasses among those of a parser; those of TrainingArguments are the library's."""
        given = parser.args[0] if parser.args else None
        kinds = [_label(part) for part in (given.elts if isinstance(given, (ast.Tuple, ast.List)) else [given])]
        for call in (call for name in _INTO_CLASSES for call in self.calls[name]):
            self._flow(call, kinds)
        own = [self.classes[kind] for kind in kinds if kind in self.classes and not self.classes[kind].bases]
        fields = ((cls.name, part.target) for cls in own for part in cls.body if isinstance(part, ast.AnnAssign))
        return {(kind, target.id) for kind, target in fields if isinstance(target, ast.Name)}

    def _of_commands(self) -> Iterator[str]:
        """Yield the parameters of functions of Click, Typer and python-fire that they do not read."""
        starts = {name.rpartition(".")[2] for name in COMMAND_LINES}
        passed = {_label(part) for name in starts for call in self.calls[name] for top in call.args
                  for part in ast.walk(top)}  # fmt: skip
        for function in [function for same in self.functions.values() for function in same]:
            decorators = {_label(part.func if isinstance(part, ast.Call) else part) for part in function.decorator_list}
            is_command = function.name in passed or "option" in decorators or decorators & COMMANDS - {"main"}
            if is_command and not any(_label(part) in ("locals", "params") for part in ast.walk(function)):
                yield from (name for name in _parameters(function) if not self._reads_parameter(function, name))

    def _flow(self, node: ast.AST, kinds: list[str], depth: int = 0) -> None:
        """Follow the parsed options from `node` on; they are lost where other code may read them."""
        place = self.parent.get(node)
        if isinstance(place, ast.keyword):
            place = self.parent[place]
        attribute = isinstance(place, ast.Attribute) and place.attr not in _WHOLE
        if attribute or isinstance(place, (ast.Expr, ast.Delete)) or self._is_shown(node, _RECORDERS):
            return
        if isinstance(place, ast.Subscript) and isinstance(place.slice, ast.Constant):
            self._item(place, place.slice.value, kinds, depth)
        elif isinstance(place, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            for target in place.targets if isinstance(place, ast.Assign) else [place.target]:
                self._assigned(target, kinds, depth)
        elif isinstance(place, ast.Call) and (into := self._parameter(place, node)) is not None:
            self._named(into[1], kinds, depth)
        elif (calls := self._calls_of(self._returning(place))) and depth < _DEEPEST:
            for call in calls:
                self._flow(call, kinds, depth + 1)
        else:
            self.lost.update(kinds)

    def _item(self, place: ast.Subscript, key: object, kinds: list[str], depth: int) -> None:
        if isinstance(key, int):
            into_classes = kinds != [_ARGPARSE] and -len(kinds) <= key < len(kinds)
            self._flow(place, [kinds[key]] if into_classes else kinds, depth)

    def _assigned(self, target: ast.expr, kinds: list[str], depth: int) -> None:
        if not isinstance(target, (ast.Tuple, ast.List)):
            self._named(_label(target), kinds, depth)
        elif kinds == [_ARGPARSE]:  # of parse_known_args
            self._named(_label(target.elts[0]), kinds, depth)
        else:
            for part, kind in zip(target.elts, kinds, strict=False):
                self._named(_label(part), [kind], depth)

    def _returning(self, place: ast.AST | None) -> _Function | None:
        """Return the function that returns what is at `place`, alone or in a tuple."""
        if isinstance(place, ast.Tuple):
            place = self.parent[place]
        function = place if isinstance(place, ast.Return) else None
        while function is not None and not isinstance(function, _Function):
            function = self.parent.get(function)  # type: ignore[assignment]
        return function

    def _calls_of(self, function: _Function | None) -> list[ast.Call]:
        """Calls of a function other than by itself: one that is named parse_args calls that of its parser."""
        own = {id(node) for node in ast.walk(function)} if function is not None else set[int]()
        return [call for call in self.calls[function.name] if id(call) not in own] if function is not None else []

    def _named(self, name: str, kinds: list[str], depth: int) -> None:
        if not name or depth > _DEEPEST:
            self.lost.update(kinds)
        elif (name, ",".join(kinds)) not in self.followed:
            self.followed.add((name, ",".join(kinds)))
            self.namespaces.add(name)
            for load in self.loads[name]:
                self._flow(load, kinds, depth + 1)

    def _parameter(self, call: ast.Call, node: ast.AST) -> tuple[_Function, str] | None:
        """Return the parameter of an own function that `node` is passed to; None if it is not known."""
        name = _label(call.func)
        functions = self.functions[name]
        if name in self.classes:
            body = self.classes[name].body
            functions = [part for part in body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
        if len(functions) != 1:
            return None
        names = _parameters(functions[0])
        keyword = next((word.arg for word in call.keywords if word.value is node), None)
        if keyword is None and node in call.args and not any(isinstance(arg, ast.Starred) for arg in call.args):
            position = call.args.index(node) + (names[:1] == ["self"])
            keyword = names[position] if position < len(names) else None
        return (functions[0], keyword) if keyword in names and keyword is not None else None

    def _is_shown(self, node: ast.AST, recorders: frozenset[str] = frozenset()) -> bool:
        """Return whether a value is only printed, logged, or the subject of an assertion or of an error."""
        while not isinstance(node, ast.stmt) and node in self.parent:
            node = self.parent[node]
            if isinstance(node, ast.Call):
                root = node.func
                while isinstance(root, ast.Attribute):
                    root = root.value
                if _label(node.func) in _SHOWS or _label(root) in recorders:
                    return True
        if isinstance(node, ast.If):
            return all(isinstance(part, ast.Raise) for part in node.body) and not node.orelse
        bare = isinstance(node, ast.Expr) and isinstance(node.value, (ast.Attribute, ast.Name))
        return bare or isinstance(node, (ast.Assert, ast.Raise))

    def _reads(self, name: str, depth: int = 0) -> bool:
        """Return whether an attribute of this name is received, or the name is a text that may select it."""
        reads = [load for load in self.loads[name] if isinstance(load, ast.Attribute)]
        return name in self.texts or any(self._is_received(load, name, depth) for load in reads)

    def _reads_parameter(self, function: _Function, name: str, depth: int = 0) -> bool:
        inside = {id(node) for part in function.body for node in ast.walk(part)}
        reads = [load for load in self.loads[name] if isinstance(load, ast.Name) and id(load) in inside]
        return any(self._is_received(load, name, depth) for load in reads)

    def _is_received(self, node: ast.expr, name: str, depth: int) -> bool:
        if self._is_shown(node):
            return False
        place = self.parent.get(node)
        while isinstance(place, (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.IfExp)) or (
            isinstance(place, ast.Call) and isinstance(place.func, ast.Name) and place.func.id in _COMPUTES
        ):
            node, place = place, self.parent.get(place)
        if depth >= _DEEPEST:
            return True
        if isinstance(place, ast.Assign) and len(place.targets) == 1:
            target = place.targets[0]
            if isinstance(target, ast.Attribute):
                again = _label(target.value) in self.namespaces and target.attr == name
                stores = _label(target.value) == "self" and not self._reads(target.attr, depth + 1)
                return not again and not stores
            if isinstance(target, ast.Name):
                loads = [load for load in self.loads[target.id] if isinstance(load, ast.Name)]
                return any(self._is_received(load, target.id, depth + 1) for load in loads if load is not node)
        call = self.parent[place] if isinstance(place, ast.keyword) else place
        if isinstance(call, ast.Call) and (into := self._parameter(call, node)) is not None:
            return self._reads_parameter(*into, depth + 1)
        return True
