"""Assign to names, attributes, subscripts and tuples of them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.reading.data import element_values
from smp_advisor.reading.operators import is_index
from smp_advisor.reading.trace import Store
from smp_advisor.reading.values import (
    Collection,
    Constant,
    Entry,
    Instance,
    Item,
    Mapping,
    Result,
    StepOutput,
    Value,
    choice,
    options,
)

if TYPE_CHECKING:
    from smp_advisor.reading.run import Frame, Run

__all__ = ["bind_target", "set_attribute"]


def bind_target(run: Run, frame: Frame, target: ast.expr, value: Value, node: ast.expr | None = None) -> None:
    """Assign `value`, which `node` makes, to a name, attribute, subscript or a tuple of them."""
    if isinstance(target, ast.Name):
        run.bind(frame, target.id, value)
    elif isinstance(target, (ast.Tuple, ast.List)):
        value = _collected(target.elts, value)
        for position, inner in enumerate(target.elts):
            part = _part(value, position, len(target.elts))
            bind_target(run, frame, inner.value if isinstance(inner, ast.Starred) else inner, part)
    elif isinstance(target, ast.Attribute):
        for option in options(run.evaluate(frame, target.value)):
            run.order += 1
            run.trace.stores.append(Store(target, frame.module, option, value, tuple(run.contexts), run.order))
            set_attribute(run, option, target.attr, value)
    elif isinstance(target, ast.Subscript):
        owner = run.evaluate(frame, target.value)
        key = run.evaluate(frame, target.slice)
        span = run.span(frame, node) if node is not None else None
        entry = Entry(value, span or run.span(frame, target), span)
        for option in options(owner):
            _set_item(run, option, key, entry)


def set_attribute(run: Run, owner: Value, name: str, value: Value) -> None:
    """Assign to an attribute of one possible owner."""
    if isinstance(owner, Instance) or (isinstance(owner, Result) and run.computes):
        run.write(owner.attributes, name, value)
    elif isinstance(owner, Mapping):
        run.write(owner.entries, name, Entry(value))


def _set_item(run: Run, owner: Value, key: Value, entry: Entry) -> None:
    if isinstance(owner, Mapping) and isinstance(key, Constant):
        run.write(owner.entries, key.value, entry)
    elif isinstance(owner, Collection) and isinstance(key, Constant) and isinstance(key.value, int):
        if is_index(key.value, len(owner.items)):
            items = list(owner.items)
            items[key.value] = entry.value
            run.write(owner, "items", items)
    elif isinstance(owner, (Mapping, Collection)):
        run.write(owner, "open", "a key is computed")


def _collected(targets: list[ast.expr], value: Value) -> Value:
    """The items of `value`, with those of a starred target together."""
    star = next((position for position, target in enumerate(targets) if isinstance(target, ast.Starred)), None)
    items = element_values(value)
    if star is None or items is None or len(items) < len(targets) - 1:
        return value
    last = len(items) - (len(targets) - star - 1)
    return Collection([*items[:star], Collection(items[star:last]), *items[last:]])


def _part(value: Value, position: int, count: int) -> Value:
    parts: list[Value] = []
    for option in options(value):
        if isinstance(option, Collection) and len(option.items) == count:
            parts.append(option.items[position])
        elif isinstance(option, StepOutput):
            parts.append(StepOutput(_part(option.of, position, count), option.call))
        else:
            parts.append(Item(option, Constant(position)))
    return choice(*parts)
