"""Attributes, items, elements and command-line options of values: read and assigned."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.review.reading.data import element_values, is_index
from smp_advisor.review.reading.outside import ITERATORS, canonical
from smp_advisor.review.reading.trace import Store, Use
from smp_advisor.review.reading.values import (
    Argument,
    Choice,
    Class,
    Collection,
    Constant,
    Entry,
    External,
    Function,
    Instance,
    Item,
    LocalModule,
    Mapping,
    Member,
    Operation,
    Partial,
    Result,
    StepOutput,
    Unknown,
    Value,
    choice,
    options,
)

if TYPE_CHECKING:
    from smp_advisor.review.reading.run import Frame, Run
    from smp_advisor.review.reading.trace import Call


_PARSES = ("parse_args", "parse_known_args")
_INTO_DATACLASSES = (
    "parse_args_into_dataclasses", "parse_args_and_config", "parse_json_file", "parse_yaml_file", "parse_dict",
)  # fmt: skip


def declare(run: Run, event: Call) -> None:
    """Record an option of argparse under the name of its attribute."""
    flags = [value.value for value in event.arguments if isinstance(value, Constant) and isinstance(value.value, str)]
    destination = event.argument("dest")
    if isinstance(destination, Constant) and isinstance(destination.value, str):
        name = destination.value
    else:
        long = [flag for flag in flags if flag.startswith("--")] or flags
        if not long:
            return
        name = long[0].lstrip("-").replace("-", "_")
    run.trace.options.setdefault(name, event)


def option_of(run: Run, owner: Value, name: str) -> Value | None:
    """Return the command-line option `name`, if `owner` is the result of a parser."""
    position: object = None
    if isinstance(owner, Item):
        position = owner.key.value if isinstance(owner.key, Constant) else None
        owner = owner.owner
    if not isinstance(owner, Result):
        return None
    if owner.call.method in _INTO_DATACLASSES:
        return Argument(name, _field_of(owner.call, position, name))
    if owner.call.method not in _PARSES:
        return None
    declared = run.trace.options.get(name)
    default = declared.argument("default") if declared is not None else None
    if declared is not None and default is None and (action := declared.argument("action")) is not None:
        default = Constant(getattr(action, "value", None) == "store_false")
    if run.assumes and isinstance(default, Constant) and default.value is not None:
        return run.assume(f"The option --{name}", default)
    return Argument(name, default or Constant(None))


def _field_of(call: Call, position: object, name: str) -> Value:
    """Return the default of a field of the dataclass at `position` among those that the parser was made for."""
    parser = call.receiver.call if isinstance(call.receiver, Result) else None
    types = parser.argument("dataclass_types", 0) if parser is not None else None
    classes = types.items if isinstance(types, Collection) else [types]
    cls = classes[position] if isinstance(position, int) and position < len(classes) else None
    return (field_default(cls.find(name)) if isinstance(cls, Class) else None) or Unknown()


def field_default(member: Value | None) -> Value | None:
    """Return the value of a class attribute; that of ``dataclasses.field(default=...)`` is its default."""
    if isinstance(member, Result) and member.call.name in ("dataclasses.field", "pydantic.Field"):
        return member.call.argument("default") or Unknown("a factory makes its default")
    return member


def attribute(run: Run, frame: Frame, owner: Value, name: str, node: ast.expr) -> Value:
    """Return the attribute `name` of one possible owner, as `node` reads it."""
    if isinstance(owner, External):
        return External(canonical(f"{owner.path}.{name}"))
    if isinstance(owner, LocalModule):
        return owner.module.scope.find(name) or Unknown(f"{owner.module.source.path} does not set {name}")
    if isinstance(owner, (Instance, Class)):
        return _member(run, owner, name) or Member(owner, name)
    if isinstance(owner, StepOutput):
        run.trace.uses.append(Use(node, frame.module, owner, f".{name}"))
        return Member(owner, name)
    if isinstance(owner, Mapping) and name in owner.entries:
        return owner.entries[name].value
    if isinstance(owner, Result) and run.computes:
        assigned = owner.attributes.get(name) or owner.call.passed.get(name)
        if assigned is not None:
            return assigned
    if isinstance(owner, Constant) and name == "value":
        return owner  # a member of an enumeration
    parsed = _namespace(owner)
    if parsed is not None and name in parsed.attributes:
        return parsed.attributes[name]
    return option_of(run, owner, name) or Member(owner, name)


def _member(run: Run, owner: Instance | Class, name: str) -> Value | None:
    if isinstance(owner, Class):
        return field_default(owner.find(name))
    if name in owner.attributes:
        return owner.attributes[name]
    member = field_default(owner.cls.find(name))
    if not isinstance(member, Function) or member.static:
        return member
    method = Function(member.node, member.module, member.scope, owner, member.step, home=member.home)
    if not member.is_property:
        return method
    if not run.follows(method):
        return run.last_result(method)
    return run.enter(method, dict.fromkeys(member.positional[:1], owner))


def item(owner: Value, key: Value) -> Value:
    """Return the element of one possible owner under a key."""
    if isinstance(key, Constant):
        position = key.value
        if isinstance(owner, Mapping) and position in owner.entries:
            return owner.entries[position].value
        if isinstance(owner, Collection) and is_index(position, len(owner.items)) and (position >= 0 or not owner.open):
            return owner.items[position]
        if isinstance(owner, Constant) and isinstance(owner.value, str) and isinstance(position, int):
            inside = is_index(position, len(owner.value))
            return Constant(owner.value[position]) if inside else Unknown("there is no such letter")
        if isinstance(owner, Result) and f"[{position!r}]" in owner.attributes:
            return owner.attributes[f"[{position!r}]"]
    if isinstance(key, Operation) and key.operator == ":" and (part := _slice(owner, key.operands)) is not None:
        return part
    if isinstance(owner, StepOutput):
        return StepOutput(item(owner.of, key), owner.call)
    return _of_registry(owner, key) or Item(owner, key)


def _of_registry(owner: Value, key: Value) -> Value | None:
    """Return one of the functions in a dictionary, under a key that is not known: ``TASKS[args.task]``."""
    if not isinstance(owner, Mapping) or isinstance(key, Constant):
        return None
    values = list(owner.values().values())
    chosen = owner.get(key.default.value) if isinstance(key, Argument) and isinstance(key.default, Constant) else None
    if chosen is not None:
        values = [chosen, *(value for value in values if value is not chosen)]
    callables = values and all(isinstance(value, (Function, Class, External, Partial)) for value in values)
    return choice(*values, why="the key is not known") if callables else None


def _slice(owner: Value, bounds: tuple[Value, ...]) -> Value | None:
    """Return a slice; None if it is not known."""
    numbers: list[int | None] = [bound.value for bound in bounds if isinstance(bound, Constant)]
    if len(numbers) < 3 or numbers[2] == 0 or not all(number is None or isinstance(number, int) for number in numbers):
        return None
    if isinstance(owner, Collection) and not owner.open:
        return Collection(owner.items[slice(*numbers)])
    if isinstance(owner, Constant) and isinstance(owner.value, str):
        return Constant(owner.value[slice(*numbers)])
    return None


def element(value: Value) -> Value:
    """Return an element of an iteration over `value`."""
    if isinstance(value, Collection) and value.items:
        return choice(*value.items, *([Unknown(value.open)] if value.open else []))
    if isinstance(value, StepOutput):
        return StepOutput(element(value.of), value.call)
    if isinstance(value, Choice):
        return choice(*(element(option) for option in value.alternatives))
    if isinstance(value, Result) and value.call.arguments:
        first = value.call.arguments[0]
        if value.call.name == "enumerate":
            return Collection([Unknown("it counts the rounds of a loop"), element(first)])
        if value.call.name == "zip":
            return Collection([element(argument) for argument in value.call.arguments])
        if value.call.name in ITERATORS:
            return element(first)
    return Item(value, None)


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
    elif (parsed := _namespace(owner)) is not None:
        declared = name in run.trace.options or not run.trace.options  # a part of a script declares none
        if declared and name not in parsed.attributes:
            # Its value where no branch assigns another.
            parsed.attributes[name] = option_of(run, owner, name) or Unknown()
        run.write(parsed.attributes, name, value)


def _namespace(owner: Value) -> Result | None:
    """Return the parsed options that attributes are added to: ``args.rank = get_rank()``."""
    if isinstance(owner, Item):
        owner = owner.owner
    return owner if isinstance(owner, Result) and owner.call.method in _PARSES else None


def _set_item(run: Run, owner: Value, key: Value, entry: Entry) -> None:
    if isinstance(owner, Mapping) and isinstance(key, Constant):
        run.write(owner.entries, key.value, entry)
    elif isinstance(owner, Result) and isinstance(key, Constant) and not run.computes:  # ``data["train"] = ...``
        run.write(owner.attributes, f"[{key.value!r}]", entry.value)
    elif isinstance(owner, Collection) and isinstance(key, Constant) and isinstance(key.value, int):
        if is_index(key.value, len(owner.items)):
            items = list(owner.items)
            items[key.value] = entry.value
            run.write(owner, "items", items)
    elif isinstance(owner, (Mapping, Collection)):
        run.write(owner, "open", "a key is computed")


def _collected(targets: list[ast.expr], value: Value) -> Value:
    """Return the items of `value`, with those of a starred target together."""
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
