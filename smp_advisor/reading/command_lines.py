"""Options of the command line, of argparse and of Hugging Face's dataclass parser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.reading.values import Argument, Class, Collection, Constant, Item, Result, Unknown, Value

if TYPE_CHECKING:
    from smp_advisor.reading.run import Run
    from smp_advisor.reading.trace import Call

__all__ = ["declare", "field_default", "option_of"]

_INTO_DATACLASSES = ("parse_args_into_dataclasses", "parse_json_file", "parse_yaml_file", "parse_dict")


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
    """The command-line option `name`, if `owner` is the result of a parser."""
    position: object = None
    if isinstance(owner, Item):
        position = owner.key.value if isinstance(owner.key, Constant) else None
        owner = owner.owner
    if not isinstance(owner, Result):
        return None
    if owner.call.method in _INTO_DATACLASSES:
        return Argument(name, _field_of(owner.call, position, name))
    if owner.call.method not in ("parse_args", "parse_known_args"):
        return None
    declared = run.trace.options.get(name)
    default = declared.argument("default") if declared is not None else None
    if declared is not None and default is None and (action := declared.argument("action")) is not None:
        default = Constant(getattr(action, "value", None) == "store_false")
    return Argument(name, default or Constant(None))


def _field_of(call: Call, position: object, name: str) -> Value:
    """The default of a field of the dataclass at `position` among those that the parser was made for."""
    parser = call.receiver.call if isinstance(call.receiver, Result) else None
    types = parser.argument("dataclass_types", 0) if parser is not None else None
    classes = types.items if isinstance(types, Collection) else [types]
    cls = classes[position] if isinstance(position, int) and position < len(classes) else None
    return (field_default(cls.find(name)) if isinstance(cls, Class) else None) or Unknown()


def field_default(member: Value | None) -> Value | None:
    """The value of a class attribute; that of ``dataclasses.field(default=...)`` is its default."""
    if isinstance(member, Result) and member.call.name in ("dataclasses.field", "pydantic.Field"):
        return member.call.argument("default") or Unknown("a factory makes its default")
    return member
