"""Arguments of public calls, checked by the annotations of their signatures."""

from __future__ import annotations

import ast
import os
import sys
from functools import cache, wraps
from inspect import Parameter, signature
from numbers import Integral, Real
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from smp_advisor.arguments import shown
from smp_advisor.errors import AdvisorError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Parameters = ParamSpec("Parameters")
    Result = TypeVar("Result")
    Class = TypeVar("Class")

_PLAIN: dict[str, tuple[type, ...]] = {
    "None": (type(None),),
    "bool": (bool,),
    "int": (Integral,),
    "float": (Real,),
    "str": (str,),
    "Path": (os.PathLike,),
    "PathLike": (os.PathLike,),
    "dict": (dict,),
    "list": (list,),
    "tuple": (tuple,),
}
_INNER = {"ControlState", "Entry", "Probe", "Recommendation"}
"""Classes of results that methods take, too."""
_TITLES = {"None": "None", "Path": "a path", "PathLike": "a path", "str": "text", "int": "a whole number"}
_TITLES |= {"float": "a number", "bool": "True or False", "dict": "a dictionary", "list": "a list", "tuple": "a tuple"}


@cache
def _names(annotation: str) -> tuple[str, ...]:
    """Return the names of a union; empty if one of them is no plain type and no class of the package."""
    names = []
    parts = [ast.parse(annotation, mode="eval").body]
    while parts:
        part = parts.pop(0)
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.BitOr):
            parts[:0] = [part.left, part.right]
            continue
        if isinstance(part, ast.Subscript):
            part = part.value
        name = part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", None)
        if isinstance(part, ast.Constant) and part.value is None:
            name = "None"
        if name is None or not (name in _PLAIN or _class(name)):
            return ()
        names.append(name)
    return tuple(dict.fromkeys(names))


@cache
def _class(name: str) -> bool:
    """Return whether a name is that of a public class. Its module may not be loaded, so that only its name is known."""
    return name in _INNER or (name[0].isupper() and name in sys.modules["smp_advisor"].__all__)


def _accepts(name: str, value: object) -> bool:
    if name in _PLAIN:
        return isinstance(value, _PLAIN[name]) and (not isinstance(value, bool) or name == "bool")
    return any(kind.__name__ == name for kind in type(value).__mro__)


def _title(names: Iterable[str]) -> str:
    titles = list(dict.fromkeys(_TITLES.get(name, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}") for name in names))
    return titles[0] if len(titles) == 1 else f"{', '.join(titles[:-1])} or {titles[-1]}"


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return the function, which refuses an argument of another type than its annotation names, in one sentence.

    Annotations with other types than plain ones and public classes are left to the function.

    Examples
    --------
    >>> @checked
    ... def half(number: float) -> float:
    ...     return number / 2
    >>> half("4")
    Traceback (most recent call last):
    smp_advisor.errors.AdvisorError: half() requires for number a number, not '4'.
    """
    form = signature(function)
    kinds = {
        name: parameter.annotation
        for name, parameter in form.parameters.items()
        if parameter.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        and isinstance(parameter.annotation, str)
    }

    @wraps(function)
    def call(*positional: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        try:
            values = form.bind(*positional, **keywords).arguments
        except TypeError:
            values = {}  # Python's own sentence names the argument
        for name, value in values.items():
            names = _names(kinds[name]) if name in kinds else ()
            if names and not any(_accepts(kind, value) for kind in names):
                raise AdvisorError(f"{function.__name__}() requires for {name} {_title(names)}, not {shown(value)}.")
        return function(*positional, **keywords)

    return call


def checked_methods(cls: type[Class]) -> type[Class]:
    """Return the class, whose public methods check their arguments as `checked` does."""
    for name, member in list(vars(cls).items()):
        if name.startswith("_"):
            continue
        if isinstance(member, (classmethod, staticmethod)):
            setattr(cls, name, type(member)(checked(member.__func__)))
        elif callable(member) and hasattr(member, "__code__"):
            setattr(cls, name, checked(member))
    return cls
