"""The arguments of a forward method as tensors with names, and how they are put together for a call."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.argument_names import COUNTERS, EDGES, LABELS, MASKS, STATES
from smp_advisor.profiling.forward_source import Key, Reading, forward_arguments, reading_of
from smp_advisor.profiling.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

__all__ = ["CallForm", "Leaf", "call_forms"]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
_ANY_KEY = "_"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor that a call passes, by itself or in a container."""

    name: str
    """Its meaning: the name of the argument, the key or the variable."""
    required: bool
    argument: str
    """The parameter of the forward method."""
    is_part: bool

    @property
    def text(self) -> str:
        """Text for the user: ``labels``, or ``batch.labels``."""
        return f"{self.argument}.{self.name}" if self.is_part else self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class CallForm:
    """The tensors of a call in the order of their likelihood as main argument, and the inputs of the model."""

    leaves: tuple[Leaf, ...]
    inputs: Callable[[Mapping[Leaf, Any]], Any]
    """Inputs by name or by position, with the values of some of the leaves."""


def call_forms(model: nn.Module) -> list[CallForm]:
    """How the forward method can be called: with the containers that its source reads, then with tensors only."""
    parameters = forward_arguments(model)
    readings: dict[str, Reading] = {}
    for name, parameter in parameters.items():
        optional = parameter.default is not parameter.empty and name not in list(parameters)[:1]
        if name in EDGES | LABELS | MASKS or STATES.match(name) or optional:
            continue
        if (reading := reading_of(model, name)) is not None:
            readings[name] = reading
    forms = [_form(parameters, chosen) for chosen in ([readings, {}] if readings else [{}])]
    return [form for form in forms if form.leaves]


def _form(parameters: Mapping[str, inspect.Parameter], readings: Mapping[str, Reading]) -> CallForm:
    leaves: list[Leaf] = []
    variadic = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    for name, parameter in parameters.items():
        required = parameter.default is parameter.empty
        if name in readings:
            keys = readings[name].keys
            is_part = parameter.kind not in variadic
            leaves += [Leaf(key.name, key.required and (required or not leaves), name, is_part) for key in _named(keys)]
        elif parameter.kind not in variadic and name not in COUNTERS:
            leaves.append(Leaf(name, required, name, is_part=False))
    by_position = any(parameter.kind in _POSITIONAL for parameter in parameters.values()) and any(
        parameters[leaf.argument].kind in _POSITIONAL for leaf in leaves
    )
    counters = [
        name for name, p in parameters.items() if name in COUNTERS and p.default is p.empty and p.kind not in variadic
    ]

    def inputs(values: Mapping[Leaf, Any]) -> Any:
        arguments: dict[str, Any] = dict.fromkeys(counters, 0)
        variable: list[Any] = []
        for name in parameters:
            parts = {leaf.name: value for leaf, value in values.items() if leaf.argument == name}
            if not parts:
                continue
            kind = parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                arguments |= parts
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                variable += parts.values()
            elif name in readings:
                arguments[name] = _container(readings[name], parts)
            else:
                arguments[name] = parts[name]
        return (*arguments.values(), *variable) if by_position else arguments

    main = next((leaf for leaf in leaves if leaf.name not in LABELS | MASKS | EDGES), None)
    ordered = [] if main is None else [main, *(leaf for leaf in leaves if leaf is not main)]
    return CallForm(leaves=tuple(ordered), inputs=inputs)


def _named(keys: tuple[Key, ...]) -> list[Key]:
    """The keys; a part that the method ignores is a label."""
    return [Key("label", key.required) if key.name == _ANY_KEY else key for key in keys]


def _container(reading: Reading, parts: dict[str, Any]) -> Any:
    if reading.kind == "sequence":
        return tuple(parts.values())
    if reading.kind == "mapping":
        return parts
    return Record({key.name: parts.get(key.name) for key in reading.keys})  # optional fields are None
