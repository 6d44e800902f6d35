"""Arguments of public calls, checked by the annotations of their signatures."""

from __future__ import annotations

import ast
import builtins
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from importlib import import_module
from inspect import CO_VARKEYWORDS, getsource, isclass, isfunction, signature, unwrap
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, is_typeddict

from smp_advisor.arguments import meant, shown
from smp_advisor.errors import AdvisorError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Class = TypeVar("Class")

_PLAIN: dict[object, tuple[type, ...]] = {int: (Integral,), float: (Real,), Path: (PathLike,)}
"""Types that an annotation accepts besides its own instances."""
_TITLES = {NoneType: "None", Path: "a path", PathLike: "a path", str: "text", int: "a whole number"}
_TITLES |= {float: "a number", bool: "True or False", tuple: "a tuple", list: "a list", dict: "a dictionary"}


class _Names(dict[str, Any]):
    """Meanings of the names in the annotations of a module, with those of its imports for type checkers."""

    def __init__(self, module: str) -> None:
        super().__init__(vars(builtins) | vars(sys.modules[module]))
        tree = ast.parse(getsource(sys.modules[module]))
        blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        self._imports = {
            name.asname or name.name: (getattr(node, "module", ""), name.name)
            for block in blocks
            for node in block.body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in node.names
        }

    def __missing__(self, name: str) -> Any:
        home, original = self._imports.get(name, ("", ""))
        if (home or original).split(".")[0] not in ("smp_advisor", "collections", "typing", "pathlib", "os"):
            self[name] = Any  # other packages may take seconds to import
        else:
            self[name] = getattr(import_module(home), original) if home else import_module(original)
        return self[name]


_names = cache(_Names)


def _meaning(annotation: str, module: str) -> Any:
    """Return the type of an annotation; Any for an unknown one."""
    try:
        return eval(annotation, {}, _names(module))  # noqa: S307 - an annotation of this package
    except (AttributeError, NameError, TypeError, ImportError, OSError, SyntaxError):
        return Any


@cache
def _test_of(annotation: str, module: str) -> Callable[[Any], bool]:
    return _test(_meaning(annotation, module))


def _test(kind: Any) -> Callable[[Any], bool]:  # noqa: C901 - one branch a form of types
    """Return a function that returns whether a value is of a type."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        tests = [_test(part) for part in inner]
        return lambda value: any(test(value) for test in tests)
    if origin is Literal:
        return lambda value: any(type(value) is type(choice) and value == choice for choice in inner)
    if origin is Callable:
        return callable
    if kind is None or kind is NoneType:
        return lambda value: value is None
    if kind in (Any, object) or not isclass(origin):
        return lambda _: True
    if origin in (int, float):
        numbers = _PLAIN[origin]
        return lambda value: isinstance(value, numbers) and not isinstance(value, bool) and _is_amount(value)
    if is_typeddict(origin):
        return lambda value: isinstance(value, Mapping)
    if getattr(origin, "_is_protocol", False) and not origin.__module__.startswith(("collections", "os")):
        names = [name for name in vars(origin) if not name.startswith("_")]
        return lambda value: all(hasattr(value, name) for name in names)
    kinds, takes_text = _PLAIN.get(origin, (origin,)), issubclass(origin, str | bytes)
    parts = [_test(part) for part in inner if part is not ...]
    in_row = len(parts) == 1

    def test(value: Any) -> bool:
        if not isinstance(value, kinds):
            return False
        if isinstance(value, str | bytes):  # text is no list of its letters
            return takes_text
        if isinstance(value, Mapping) and len(parts) == 2:
            return all(parts[0](name) and parts[1](entry) for name, entry in value.items())
        return not (in_row and isinstance(value, list | tuple)) or all(map(parts[0], value))

    return test


def _is_amount(value: object) -> bool:
    """Return whether a number is finite, as a float too, and not negative: all are counts, sizes, times or shares."""
    try:
        return not isinstance(value, Real) or (math.isfinite(value) and float(value) >= 0)
    except OverflowError:
        return False


def _title(kind: Any) -> str:
    """Return what an annotation accepts, in words."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        *first, last = dict.fromkeys(_title(part) for part in inner)
        return f"{', '.join(first)} or {last}" if first else last
    if origin is Literal:
        return f"one of {', '.join(map(repr, inner))}"
    if origin is Callable:
        return "a function"
    if is_typeddict(origin) or (isclass(origin) and issubclass(origin, Mapping)):
        return "a dictionary"
    if origin in _TITLES or kind is None:
        return _TITLES[origin if kind is not None else NoneType]
    if issubclass(origin, Iterable) and not origin.__module__.startswith("smp_advisor"):
        return f"a list of {' or '.join(_title(part) for part in inner if part is not ...)}" if inner else "a list"
    return f"{'an' if origin.__name__[0] in 'AEIOU' else 'a'} {origin.__name__}"


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return the function, which refuses an argument of another type than its annotation names, in one sentence.

    An unknown keyword is answered with the one that is meant.

    Examples
    --------
    >>> @checked
    ... def half(number: float) -> float:
    ...     return number / 2
    >>> half("4")
    Traceback (most recent call last):
    smp_advisor.errors.AdvisorError: half() requires for number a number, not '4'.
    """
    form = signature(function).parameters.values()
    positional = [entry.name for entry in form if entry.kind in (entry.POSITIONAL_ONLY, entry.POSITIONAL_OR_KEYWORD)]
    keyword_names = [entry.name for entry in form if entry.kind in (entry.KEYWORD_ONLY, entry.POSITIONAL_OR_KEYWORD)]
    takes_any = bool(unwrap(function).__code__.co_flags & CO_VARKEYWORDS)
    annotations = {
        entry.name: entry.annotation
        for entry in form
        if isinstance(entry.annotation, str) and entry.name in {*positional, *keyword_names}
    }
    title = function.__qualname__.removesuffix(".__init__").removeprefix("__create_fn__.<locals>.").rpartition(".")[2]

    @wraps(function)
    def call(*values: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        for name, value in (*zip(positional, values, strict=False), *keywords.items()):
            if name in annotations:
                fits = _test_of(annotations[name], function.__module__)
                if not fits(value):
                    kind = _meaning(annotations[name], function.__module__)
                    is_low = isinstance(value, Real) and value < 0 and fits(-value)
                    least = " of at least 0" if is_low else ""
                    raise AdvisorError(f"{title}() requires for {name} {_title(kind)}{least}, not {shown(value)}.")
            elif not takes_any and name not in keyword_names and name not in positional:
                keyword = meant(name, keyword_names)
                hint = f"did you mean {keyword}?" if keyword else f"it takes {', '.join(keyword_names)}."
                raise AdvisorError(f"{title}() takes no argument {name!r}; {hint}")
        return function(*values, **keywords)

    return call


def checked_methods(cls: type[Class]) -> type[Class]:
    """Return the class, whose public methods check their arguments as `checked` does.

    Its constructor does so itself, and may read a field from text.
    """
    for name, member in list(vars(cls).items()):
        own = isinstance(member, classmethod | staticmethod)
        function = member.__func__ if own else member
        if name.startswith("_") or not isfunction(function) or hasattr(function, "__wrapped__"):
            continue
        type.__setattr__(cls, name, type(member)(checked(function)) if own else checked(function))
    return cls


def checked_class(cls: type[Class]) -> type[Class]:
    """Return the class, whose constructor and public methods check their arguments as `checked` does."""
    initialize = vars(cls)["__init__"]
    initialize.__module__ = cls.__module__  # that of a dataclass has another one
    type.__setattr__(cls, "__init__", checked(initialize))
    return checked_methods(cls)
