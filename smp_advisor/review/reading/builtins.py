"""Python's own functions and methods on known values within bounds, and functions that hand functions on."""

from __future__ import annotations

import ast
import json
import math
import posixpath
from collections.abc import Callable
from dataclasses import replace
from string import Formatter
from typing import TYPE_CHECKING, Any

from smp_advisor.review.reading.data import (
    LONGEST_TEXT,
    MAX_ITEMS,
    distinct,
    element_values,
    from_plain,
    plain,
    truth,
    unpack,
)
from smp_advisor.review.reading.outside import COMMAND_LINES, NAMESPACES, TRANSPARENT, launch, load_module
from smp_advisor.review.reading.places import attribute
from smp_advisor.review.reading.run import ABSENT, settled
from smp_advisor.review.reading.values import (
    Argument,
    Class,
    Collection,
    Constant,
    Entry,
    External,
    Function,
    Instance,
    Mapping,
    Partial,
    Result,
    StepMark,
    Unknown,
    Value,
    choice,
    options,
)

if TYPE_CHECKING:
    from smp_advisor.review.reading.run import Frame, Run
    from smp_advisor.review.reading.trace import Call


Known = Callable[[tuple[Value, ...], dict[str, Value]], Value | None]

_FAILURES = (TypeError, ValueError, ArithmeticError, LookupError, RecursionError, SyntaxError, MemoryError)
_TEXT_METHODS = frozenset(
    {
        *("lower", "upper", "title", "capitalize", "strip", "lstrip", "rstrip", "removeprefix", "removesuffix"),
        *("replace", "split", "rsplit", "splitlines", "partition", "rpartition", "join", "format", "startswith"),
        *("endswith", "count", "find", "isdigit"),
    }
)
_CHANGING = frozenset(
    {
        *("pop", "popitem", "setdefault", "clear", "insert", "remove", "sort", "reverse", "append", "extend"),
        *("add", "update", "discard"),
    }
)


def _of_data(function: Callable[..., Any]) -> Known:

    def apply(positional: tuple[Value, ...], passed: dict[str, Value]) -> Value | None:
        try:
            arguments = [plain(value) for value in positional]
            return from_plain(function(*arguments, **{key: plain(value) for key, value in passed.items()}))
        except _FAILURES:
            return None

    return apply


def _of_items(function: Callable[..., Value | None]) -> Known:
    """Return a function of the items of each argument."""

    def apply(positional: tuple[Value, ...], passed: dict[str, Value]) -> Value | None:
        columns = [element_values(value) for value in positional]
        return None if None in columns or passed else function(*columns)

    return apply


def _of_value(function: Callable[[Value], Value | None]) -> Known:
    return lambda positional, passed: function(positional[0]) if len(positional) == 1 and not passed else None


def _some(items: list[Value], decisive: bool) -> Value | None:  # noqa: FBT001 - what any() and all() look for
    truths = [truth(item) for item in items]
    if decisive in truths:
        return Constant(decisive)
    return None if None in truths else Constant(not decisive)


def _numbered(positional: tuple[Value, ...], passed: dict[str, Value]) -> Value | None:
    """``enumerate``."""
    items = element_values(positional[0]) if positional else None
    start = passed.get("start", positional[1] if len(positional) > 1 else Constant(0))
    if items is None or not isinstance(start, Constant) or not isinstance(start.value, int):
        return None
    return Collection([Collection([Constant(number), item]) for number, item in enumerate(items, start.value)])


def _mapped(positional: tuple[Value, ...], _named: dict[str, Value]) -> Value | None:
    """``map`` of a function that is known here."""
    function = FUNCTIONS.get(getattr(positional[0], "path", "")) if len(positional) == 2 else None
    items = element_values(positional[1]) if function is not None else None
    results = [function((item,), {}) for item in items] if function is not None and items is not None else [None]
    return None if None in results else Collection([result for result in results if result is not None])


def _shallow(value: Value) -> Value | None:
    if isinstance(value, Mapping):
        return Mapping({key: replace(entry) for key, entry in value.entries.items()}, value.span, value.open)
    return Collection(list(value.items), value.span, value.open) if isinstance(value, Collection) else None


def _range(*bounds: int) -> list[int]:
    numbers = range(*bounds)
    if len(numbers) > MAX_ITEMS:
        raise ValueError
    return list(numbers)


_DATA = (Mapping, Collection, Constant)
FUNCTIONS: dict[str, Known] = {
    **{kind.__name__: _of_data(kind) for kind in (int, float, str, bool, abs, round, sum, sorted, min, max)},
    **{f"math.{name}": _of_data(getattr(math, name)) for name in ("prod", "ceil", "floor", "gcd", "log2", "sqrt")},
    "range": _of_data(_range),
    "os.path.join": _of_data(posixpath.join),
    "json.dumps": _of_data(json.dumps),
    "json.loads": _of_data(json.loads),
    "ast.literal_eval": _of_data(ast.literal_eval),
    "len": _of_items(lambda items: Constant(len(items))),
    "next": _of_items(lambda items: items[0] if items else None),
    "any": _of_items(lambda items: _some(items, decisive=True)),
    "all": _of_items(lambda items: _some(items, decisive=False)),
    "reversed": _of_items(lambda items: Collection(items[::-1])),
    "set": _of_items(lambda items=(): distinct([*items])),
    **dict.fromkeys(("list", "tuple", "iter"), _of_items(lambda items=(): Collection([*items]))),
    "enumerate": _numbered,
    "zip": _of_items(lambda *columns: Collection([Collection([*row]) for row in zip(*columns, strict=False)])),
    "map": _mapped,
    "copy.copy": _of_value(_shallow),
    "copy.deepcopy": _of_value(lambda data: settled(data) if isinstance(data, _DATA) else None),
}
"""Functions by their dotted names; None is a result that is not known."""


def dictionary(event: Call) -> Value | None:
    """``dict(...)`` and namespaces made of keywords."""
    mapping = Mapping({}, event.passed.span, event.passed.open)
    if event.arguments:
        first = event.arguments[0]
        if isinstance(first, Collection) and not first.open:
            pairs = [pair.items for pair in first.items if isinstance(pair, Collection) and len(pair.items) == 2]
            entries = {key.value: Entry(value) for key, value in pairs if isinstance(key, Constant)}
            first = Mapping(entries) if len(pairs) == len(first.items) else Unknown("its keys are computed")
        unpack(mapping, first)
        mapping.span = None if mapping.entries and not event.passed.entries else mapping.span
    mapping.entries |= event.passed.entries
    return mapping


def call_method(run: Run, event: Call) -> Value | None:
    """Call a method of data. If its result is not known (None), the changed object is not known either."""
    owner, name = event.receiver, event.method
    result: Value | None = None
    if isinstance(owner, Mapping):
        result = _method_of_mapping(run, owner, name, event)
    elif isinstance(owner, Collection):
        result = _method_of_list(run, owner, name, event)
    elif isinstance(owner, Constant) and isinstance(owner.value, str) and name in _TEXT_METHODS and not event.unpacks:
        return _method_of_text(owner.value, name, event)
    if result is None and isinstance(owner, (Mapping, Collection)) and name in _CHANGING:
        run.write(owner, "open", owner.open or f"it is changed by {name}()")
        if isinstance(owner, Collection):
            run.write(owner, "items", [])
    return result


def _method_of_mapping(run: Run, owner: Mapping, name: str, event: Call) -> Value | None:
    if name == "update":
        changes = Mapping({}, None, event.passed.open)
        for value in event.arguments:
            unpack(changes, value)
        for key, entry in (changes.entries | event.passed.entries).items():
            run.write(owner.entries, key, entry)
        run.write(owner, "open", owner.open or changes.open)
        return Constant(None)
    if name in ("get", "pop", "setdefault") and event.arguments and isinstance(event.arguments[0], Constant):
        default = event.arguments[1] if len(event.arguments) > 1 else Constant(None)
        return _looked_up(run, owner, name, event.arguments[0].value, default)
    if name == "copy":
        return _shallow(owner)
    if name in ("items", "keys", "values") and owner.complete:
        views: dict[str, list[Value]] = {
            "items": [Collection([Constant(key), value]) for key, value in owner.values().items()],
            "keys": [Constant(key) for key in owner.entries],
            "values": list(owner.values().values()),
        }
        return Collection(views[name])
    return None


def _looked_up(run: Run, owner: Mapping, name: str, key: object, default: Value) -> Value:
    entry = owner.entries.get(key)
    if entry is None:
        value: Value = choice(default, Unknown(owner.open)) if owner.open else default
        if name == "setdefault":
            run.write(owner.entries, key, Entry(value))
        return value
    if name == "pop":
        run.write(owner.entries, key, ABSENT)
    return entry.value


def _method_of_list(run: Run, owner: Collection, name: str, event: Call) -> Value | None:
    only = event.arguments[0] if len(event.arguments) == 1 else None
    added: list[Value] | None = None
    if name in ("append", "add") and only is not None:
        added = [only]
    elif name == "extend" and only is not None:
        added = element_values(only)
    elif name == "copy":
        return _shallow(owner)
    if added is None or max(len(owner.items), len(added)) > MAX_ITEMS:
        return None
    run.write(owner, "items", [*owner.items, *added])
    if run.repeats:
        run.write(owner, "open", owner.open or "it grows in a loop")
    return Constant(None)


def _is_plain_field(field: tuple[str, str | None, str | None, str | None]) -> bool:
    """Return whether a part of a format names a value and neither an attribute nor a large width."""
    _, name, spec, _ = field
    plain_name = not name or name.isidentifier() or name.isdecimal()
    return plain_name and not (spec and (len(spec) > 3 or "{" in spec))


def _method_of_text(text: str, name: str, event: Call) -> Value | None:
    try:
        if name == "format" and not all(map(_is_plain_field, Formatter().parse(text))):
            return None
        arguments = [plain(value) for value in event.arguments]
        result = getattr(text, name)(*arguments, **{key: plain(value) for key, value in event.keywords.items()})
    except _FAILURES:
        return None
    return from_plain(result) if not isinstance(result, str) or len(result) <= LONGEST_TEXT else None


_OF_CLASSES = {"torch.optim": "SelectedOptimizer", "torch.optim.lr_scheduler": "SelectedScheduler"}
"""Modules of classes that scripts choose by name, with a name for the chosen class."""


def known_result(run: Run, frame: Frame, event: Call, target: Value) -> Value:
    """Return the result of a call of something external."""
    first = event.arguments[0] if event.arguments else None
    if (launched := launch(run, event)) is not None:
        return launched if event.name in COMMAND_LINES else Result(event)
    mark = step_mark(External(event.name), event.node.func) if event.name else step_mark(target, event.node.func)
    if mark is not None and isinstance(first, Function):
        return replace(first, step=mark)
    if event.name in TRANSPARENT and isinstance(first, Function):
        return first
    if event.name == "functools.partial" and first is not None:
        return _partial(event, first)
    if event.name in ("getattr", "hasattr") and len(event.arguments) > 1:
        return _attribute(run, frame, event)
    if event.name in ("importlib.import_module", "__import__"):
        return _module(run, frame, event)
    if event.name == "hydra.utils.instantiate":
        return _configured(run, event)
    if event.name in ("globals", "locals") and not run.computes:
        # The functions and classes in `globals()`. Other names can change in functions.
        names = frame.module.scope.names.items()
        return Mapping(
            {name: Entry(value) for name, value in names if isinstance(value, (Function, Class))}, None, "other names"
        )
    if event.name == "setattr" and len(event.arguments) == 3:
        _set_attribute(run, event)
    return (_environment(run, event) if run.assumes else None) or _data(run, event, first) or Result(event)


def _holds_a_module(value: Value, name: Value) -> bool:
    """``hasattr(model, "module")`` of a model that DDP certainly wraps."""
    wraps = [
        isinstance(option, Result) and option.call.called == "DistributedDataParallel" for option in options(value)
    ]
    return bool(wraps) and all(wraps) and isinstance(name, Constant) and name.value == "module"


def _environment(run: Run, event: Call) -> Value | None:
    """Return the default of a variable of the environment, or the folder of the text, as an assumption."""
    if event.name in ("os.getcwd", "pathlib.Path.cwd"):
        return run.assume("The working folder", Constant("."))
    if event.name not in ("os.environ.get", "os.getenv") or len(event.arguments) < 2:
        return None
    name, default = event.arguments[:2]
    if not isinstance(name, Constant) or not isinstance(default, Constant) or default.value is None:
        return None
    return run.assume(f"The environment variable {name.value}", default)


def _data(run: Run, event: Call, first: Value | None) -> Value | None:
    if event.name == "dict" or (event.name in NAMESPACES and not event.arguments):
        return dictionary(event)
    if event.name == "vars" and isinstance(first, Mapping):
        return first
    if event.name in FUNCTIONS and not event.unpacks and (run.computes or event.name != "range"):
        return FUNCTIONS[event.name](event.arguments, event.keywords)
    return call_method(run, event) if event.receiver is not None else None


def step_mark(value: Value, decorator: ast.expr) -> StepMark | None:
    """Return how ``smp.step`` marks a function, if `value` is that decorator or its call."""
    for option in options(value):
        if isinstance(option, External) and option.path in ("smp.step", "smptf.step"):
            return StepMark(decorator, (), option.path == "smptf.step")
        if isinstance(option, Result) and option.call.name in ("smp.step", "smptf.step"):
            names = option.call.argument("non_split_inputs", 0)
            return StepMark(decorator, _texts(names), option.call.name == "smptf.step")
        if isinstance(option, Partial):
            inner = step_mark(option.of, decorator)
            if inner is not None:
                return StepMark(decorator, _texts(option.keywords.get("non_split_inputs")), inner.tensorflow)
    return None


def _texts(value: Value | None) -> tuple[str, ...] | None:
    if value is None or (isinstance(value, Constant) and value.value is None):
        return ()
    if isinstance(value, Constant) and isinstance(value.value, str):
        return (value.value,)
    if isinstance(value, Collection) and all(isinstance(item, Constant) for item in value.items):
        return tuple(str(item.value) for item in value.items if isinstance(item, Constant))
    return None


def _partial(event: Call, first: Value) -> Value:
    called: list[Value] = []
    for option in options(first):
        callable_here = isinstance(option, (Function, Class, External, Partial))
        passed = Mapping(dict(event.passed.entries), None, event.passed.open)
        called.append(Partial(option, event.arguments[1:], passed) if callable_here else Result(event))
    return choice(*called)


def _attribute(run: Run, frame: Frame, event: Call) -> Value:
    """``getattr(object, "name")``, or the default in the third argument; ``hasattr``, where it is certain."""
    if event.name == "hasattr":
        return Constant(value=True) if _holds_a_module(*event.arguments[:2]) else Result(event)
    names = [option.value for option in options(event.arguments[1]) if isinstance(option, Constant)]
    if not names or not all(isinstance(name, str) for name in names):
        return _chosen(event) or Result(event)
    values = [attribute(run, frame, owner, name, event.node) for name in names for owner in options(event.arguments[0])]
    data = all(isinstance(value, (Constant, Mapping, Collection)) for value in values)
    return choice(*values, *([] if data else event.arguments[2:3]))


def _chosen(event: Call) -> Value | None:
    """``getattr(torch.optim, name)`` with a name that is not known: an optimizer by the default of its option."""
    owner, name = event.arguments[:2]
    if not isinstance(owner, External) or owner.path not in _OF_CLASSES:
        return None
    default = name.default.value if isinstance(name, Argument) and isinstance(name.default, Constant) else None
    return External(f"{owner.path}.{default if isinstance(default, str) else _OF_CLASSES[owner.path]}")


def _configured(run: Run, event: Call) -> Value:
    """``hydra.utils.instantiate(config, model.parameters())`` is an optimizer; other objects are not known."""
    parts = [*event.arguments[1:], *event.keywords.values()]
    if any(isinstance(part, Result) and part.call.method == "parameters" for part in parts):
        event.name = f"torch.optim.{_OF_CLASSES['torch.optim']}"
        return Result(event)
    what = "A configuration file names the class of this object, which is not followed."
    run.unresolved.append(event.module.source.unresolved(event.node.lineno, what))
    return Result(event)


def _module(run: Run, frame: Frame, event: Call) -> Value:
    """Return the module that ``importlib.import_module`` or ``__import__`` imports."""
    name = event.arguments[0] if event.arguments else None
    if isinstance(name, Constant) and isinstance(name.value, str) and name.value.replace(".", "").isidentifier():
        return load_module(run, frame, name.value, event.node)
    what = "The name of this module is computed, and the module is not followed."
    run.unresolved.append(event.module.source.unresolved(event.node.lineno, what))
    return Result(event)


def _set_attribute(run: Run, event: Call) -> None:
    name = event.arguments[1]
    for owner in options(event.arguments[0]):
        if isinstance(owner, Instance) and isinstance(name, Constant):
            run.write(owner.attributes, str(name.value), event.arguments[2])
