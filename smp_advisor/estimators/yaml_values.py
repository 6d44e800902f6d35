"""YAML as values with places: plain data only, with references between entries."""

from __future__ import annotations

import re
from typing import Any

import yaml

from smp_advisor.errors import AdvisorError
from smp_advisor.reading.source import Span
from smp_advisor.reading.values import Collection, Constant, Entry, Mapping, Unknown, Value

_LARGEST = 200_000
_MOST_NODES = 10_000
"""Values and keys of a recipe; an alias counts with all of its values."""
_LONGEST_NUMBER = 40
_DEEPEST = 40
_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_WRAPPERS = ("recipes", "training_config", "recipe")


def yaml_table(text: str) -> Mapping:
    """Read YAML text as a table with places."""
    if len(text) > _LARGEST:
        raise AdvisorError(f"The text is longer than {_LARGEST:,} characters, too long for a recipe.")
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            loader.nodes = 0
            value = _value(node, loader, 0) if node is not None else None
        finally:
            loader.dispose()
    except AdvisorError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError) as error:
        # The last two: a value that is not of its tag, such as ``!!bool maybe`` or ``!!timestamp today``.
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise AdvisorError(f"The recipe is not valid YAML{where} ({problem}): paste the complete file.") from None
    if not isinstance(value, Mapping):
        raise AdvisorError("The text is not a recipe: a recipe is a mapping with trainer and model.")
    return value


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """Counts the nodes of a text while it is read, and again with its aliases followed."""

    nodes = 0
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.count()
        self.depth += 1
        if self.depth > _DEEPEST:
            raise AdvisorError(f"The recipe is nested more than {_DEEPEST} levels deep: paste only one recipe.")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def count(self) -> None:
        self.nodes += 1
        if self.nodes > _MOST_NODES:
            raise AdvisorError(
                f"The recipe has more than {_MOST_NODES:,} values, aliases included: paste only one recipe."
            )


def _value(node: yaml.Node, loader: _Loader, depth: int) -> Value:
    loader.count()
    if depth > _DEEPEST:
        raise yaml.YAMLError  # a cyclic alias, or a text that is slow on purpose
    if not str(node.tag).startswith("tag:yaml.org,2002:") or ":python" in str(node.tag):
        raise yaml.constructor.ConstructorError(None, None, f"the tag {node.tag} is not plain data", node.start_mark)
    span = Span(node.start_mark.index, node.end_mark.index)
    if isinstance(node, yaml.MappingNode):
        table = Mapping({}, span)
        for key, inner in node.value:
            value = _value(inner, loader, depth + 1)
            name = _scalar(key, loader) if isinstance(key, yaml.ScalarNode) else None
            value_span = Span(inner.start_mark.index, inner.end_mark.index)
            key_span = Span(key.start_mark.index, key.end_mark.index)
            table.entries[name] = Entry(value, Span(key_span.start, value_span.end), value_span, key_span)
        return table
    if isinstance(node, yaml.SequenceNode):
        return Collection([_value(inner, loader, depth + 1) for inner in node.value], span)
    return Constant(_scalar(node, loader), span)


def _scalar(node: yaml.ScalarNode, loader: _Loader) -> Any:
    if node.tag.endswith((":int", ":float")) and len(node.value) > _LONGEST_NUMBER:
        raise yaml.constructor.ConstructorError(None, None, "a number is too long", node.start_mark)
    return loader.construct_object(node)


def unwrapped(table: Mapping) -> Mapping:
    """The recipe in a file that wraps it: ``recipes: {...}``."""
    for name in _WRAPPERS:
        inner = table.get(name)
        if isinstance(inner, Mapping):
            return unwrapped(inner)
    return table


def resolve(recipe: Mapping) -> None:
    """Replace references such as ``${.sibling}`` and ``${recipes.trainer.precision}`` with their values."""

    def visit(table: Mapping, depth: int) -> None:
        for entry in table.entries.values():
            if isinstance(entry.value, Mapping) and depth < _DEEPEST:
                visit(entry.value, depth + 1)
            elif isinstance(entry.value, Constant) and isinstance(entry.value.value, str):
                entry.value = _referred(recipe, table, entry.value)

    visit(recipe, 0)


def _referred(recipe: Mapping, table: Mapping, value: Constant) -> Value:
    match = _REFERENCE.fullmatch(str(value.value).strip())
    if match is None:
        reference = _REFERENCE.search(str(value.value))
        return value if reference is None else Unknown(f"it refers to {reference.group(0)}")
    visited: set[str] = set()
    path, home = match.group(1), table
    while path not in visited:
        visited.add(path)
        owner: Value | None = home if path.startswith(".") else recipe
        parts = path.removeprefix(".").split(".")
        if not path.startswith(".") and parts[0] in _WRAPPERS:
            parts = parts[1:]
        for part in parts[:-1]:
            owner = owner.get(part) if isinstance(owner, Mapping) else None
        target = owner.get(parts[-1]) if isinstance(owner, Mapping) else None
        if not isinstance(target, Constant):
            break
        again = _REFERENCE.fullmatch(str(target.value).strip())
        if again is None:
            return Constant(target.value, value.span)
        path, home = again.group(1), owner if isinstance(owner, Mapping) else recipe
    return Unknown(f"it refers to {match.group(0)}")
