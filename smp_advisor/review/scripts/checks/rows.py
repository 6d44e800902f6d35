"""Checks that are rows of a table: calls that do not go together, in one order, of one object or in one release."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import table
from smp_advisor.review.reading.values import (
    Argument,
    Constant,
    External,
    Function,
    Instance,
    Mapping,
    Result,
    options,
)
from smp_advisor.review.scripts.checks.data import comes_from, iterations_over
from smp_advisor.review.scripts.checks.loops import updated_models
from smp_advisor.review.scripts.checks.parallel import (
    by_framework,
    handed_on,
    parallel_wraps,
    reached_accelerators,
    unread,
)
from smp_advisor.review.scripts.checks.ranks import is_sharded_model
from smp_advisor.review.scripts.checks.sharding import inside
from smp_advisor.review.scripts.checks.updates import is_one_of
from smp_advisor.review.scripts.conditions import Conditions
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.processes import PROCESSES, elements_of
from smp_advisor.review.scripts.queries import (
    argument_node,
    constant,
    derivation,
    environment_variable,
    is_known,
    makers,
    origins,
    ranks,
)
from smp_advisor.review.scripts.releases import release, span_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smp_advisor.review.reading.module import Module
    from smp_advisor.review.reading.trace import Call
    from smp_advisor.review.reading.values import Class, Value


@dataclass(frozen=True, slots=True)
class _Place:
    """A call, a class or a line that meets one need of a rule."""

    module: Module
    node: ast.expr | ast.stmt
    call: Call | None = None
    cls: Class | None = None
    name: str = ""
    """The part of the text in the first group of a pattern."""


_Rule = dict[str, Any]


def _hits(rules: list[_Rule], context: Context) -> Iterator[Hit]:
    text = context.text
    for rule in rules:
        excused = any(name in rule and re.search(rule[name], text) for name in ("unless", "without"))
        applies = not excused and _in_setting(context, rule.get("when"))
        applies = applies and not ("absence" in rule and context.is_part)
        severity = _severity(context, rule) if applies else ""
        for places in _met(context, rule, ()) if applies and severity != "never" else ():
            if "unless" in rule and _out_of_sight(context, places, absence="absence" in rule):
                continue  # code that is not read may do what the files lack
            place = places[rule.get("at", -1)]
            node, need = place.node, rule["needs"][rule.get("at", -1)]
            if place.call is not None and "argument" in need:
                node = argument_node(place.call, need["argument"], need.get("position")) or node
            source = place.module.text(place.call.node.func if place.call else place.node)
            argument = place.call.argument(need["argument"]) if place.call and "argument" in need else None
            values: dict[str, object] = {
                "call": source if place.call else source.partition("(")[0],
                "text": place.module.text(place.node).partition("\n")[0][:80],
                "name": next((earlier.name for earlier in reversed(places) if earlier.name), ""),
                "argument": need.get("argument", ""),
                "value": Conditions(context.settings, defaults=True).known(argument) if argument else None,
                "wrapper": getattr(places[0].call, "called", ""),
            }
            yield Hit(place.module, node, values, severity=severity or None, variant=rule.get("name", ""))  # type: ignore[arg-type]


def _out_of_sight(context: Context, places: tuple[_Place, ...], *, absence: bool) -> bool:
    """Return whether code that is not read makes an object of the places, gets one, or runs in their loop or method."""
    calls = [place.call for place in places if place.call]
    values = [value for call in calls for value in (call.receiver, *call.arguments, *call.keywords.values())]
    parts = {part.call for value in values for part in derivation(value) if isinstance(part, Result)}
    loops = {call.loops[-1] for call in calls if call.loops}
    foreign = unread(context)
    classes = [place.cls for place in places if place.cls and absence]
    handed = [value for call in foreign for value in (*call.arguments, *call.keywords.values())]
    methods = [
        (place.module, *range(place.node.lineno, (place.node.end_lineno or 0) + 1)) for place in places if place.cls
    ]
    return (
        not parts.isdisjoint(foreign)
        or any(getattr(origin, "cls", None) in classes for value in handed for origin in origins(value))
        or any(call.loops and call.loops[-1] in loops for call in foreign)
        or any(call.module is lines[0] and call.node.lineno in lines[1:] for call in foreign for lines in methods)
        or handed_on(context, *calls)
    )


def _in_setting(context: Context, when: str | None) -> bool:
    """Return whether the script trains as a rule requires: on replicas, on shards, or on several processes."""
    wraps = bool(parallel_wraps(context)) if when in ("replicated", "several") else False
    several = wraps or bool(when == "several" and reached_accelerators(context))
    several |= bool(getattr(context.settings, when or "", False)) or (
        when == "split" and context.settings.microbatches != 1
    )
    several |= when == "plain" and not by_framework(context)
    return not when or several or (when == "sharded" and is_sharded_model(context))


def _severity(context: Context, rule: _Rule) -> str:
    """Return "never" where no release of the job has the defect, and a warning where only some may have it."""
    package, first, end = rule.get("releases", ("", "", ""))
    span = span_of(context, package)
    if (first and span.last < release(first)) or (end and span.first >= release(end)):
        return "never"
    certain = (not first or span.first >= release(first)) and (not end or span.last < release(end))
    return str(rule.get("severity", "") if certain else rule.get("unsure", "warning"))


def _met(context: Context, rule: _Rule, earlier: tuple[_Place, ...]) -> Iterator[tuple[_Place, ...]]:
    """Yield the places that together meet all needs of a rule, which may refer to earlier ones by number."""
    if len(earlier) == len(rule["needs"]):
        yield earlier
        return
    need = rule["needs"][len(earlier)]
    for place in _places(context, need):
        together = not rule.get("in_one_call") or not earlier or place.call is earlier[0].call
        if together and (place.call is None or _fits(context, place.call, need, earlier)):
            yield from _met(context, rule, (*earlier, place))


def _places(context: Context, need: _Rule) -> Iterator[_Place]:
    """Yield the candidates for a need by their names, or by what their text has."""
    exact = {*need.get("methods", ()), *need.get("calls", ())}
    classes = tuple(name for name in need.get("calls", ()) if not name[:1].islower())  # also SFTTrainer for Trainer
    for called, calls in _by_name(context).items() if exact else ():
        if called in exact or called.endswith(classes):
            prefixes, names = tuple(need.get("of", ("",))), need.get("names", "")
            anywhere, drops = "anywhere" in need, "drops" in need
            candidates = [call for call in calls if call.name.startswith(prefixes) and (call.reached or anywhere)]
            for call in [call for call in candidates if not drops or _drops(call)]:
                if not names or re.search(names, call.name):
                    yield _Place(call.module, call.node, call)
    models = updated_models(context) if need.get("trained") else []
    for wrap in parallel_wraps(context) if need.get("trained") else ():
        models += inside(wrap.argument("module", 0))
    own = {id(model.cls) for model in models if isinstance(model, Instance)}
    for cls in context.trace.classes if "base" in need else ():
        members = cls.members.items()
        methods = [(n, m) for n, m in members if isinstance(m, Function) and re.fullmatch(need["method"], n)]
        for name, method in methods if id(cls) in own or not need.get("trained") else ():
            derived = any(re.search(need["base"], path) for path in cls.ancestors())
            lines = context.code(method.module).split("\n")
            body = "\n".join(lines[method.node.lineno - 1 : method.node.end_lineno])
            if derived and re.search(need.get("matches", ""), body) and not re.search(need.get("lacks", r"(?!)"), body):
                yield _Place(method.module, method.node, cls=cls, name=name)
    for module in context.trace.modules if "text" in need else ():
        yield from _lines(module, context.code(module), need)


def _lines(module: Module, code: str, need: _Rule) -> Iterator[_Place]:
    """Yield the statements that a pattern finds; its group is a name, and "@" in `lacks` stands for it."""
    for match in re.finditer(need["text"], code, re.MULTILINE):
        line = code.count("\n", 0, match.start()) + 1
        nodes = [node for kind in _STATEMENTS for node in module.all(kind) if node.lineno == line]
        name = match[1] if match.re.groups else ""
        inside = nodes and not {"trained", "in_class"}.isdisjoint(need)
        around = [*module.around(nodes[0])] if inside else []  # a loop that trains, with gradients
        bases = [ast.unparse(base) for node in around if isinstance(node, ast.ClassDef) for base in node.bases]
        if "in_class" in need and not any(re.search(need["in_class"], base) for base in bases):
            continue
        texts = [ast.unparse(node) for node in around[1:] if isinstance(node, (ast.For, ast.With))]
        trains = (
            "trained" not in need
            or not around
            or any("backward(" in text and "no_grad" not in text for text in texts[:1])
        )
        read = "unread" in need and any(
            isinstance(node.ctx, ast.Load) and node.id == name for node in module.all(ast.Name)
        )
        lacks = "lacks" in need and re.search(need["lacks"].replace("@", re.escape(name)), code)
        if nodes and trains and not lacks and not read:
            yield _Place(module, nodes[0], name=name)


def _by_name(context: Context) -> dict[str, list[Call]]:
    """Return the calls by the last part of what is called."""
    if "called" not in context.memo:
        calls = [*context.trace.calls, *(instance.call for instance in context.trace.instances)]
        by_name: dict[str, list[Call]] = context.memo.setdefault("called", {})
        for call in calls:
            by_name.setdefault(call.called, []).append(call)
    return context.memo["called"]  # type: ignore[no-any-return]


_IMPORTS = (ast.Import, ast.ImportFrom)
_STATEMENTS: tuple[type[ast.stmt], ...] = (ast.Assign, ast.AugAssign, ast.Expr, ast.For, ast.If, ast.Return, *_IMPORTS)


def _fits(context: Context, call: Call, need: _Rule, earlier: tuple[_Place, ...]) -> bool:
    """Return whether a call certainly meets a need."""
    within = {maker for context_value in call.contexts for maker in makers(context_value)}
    facts: dict[str, Callable[[], bool]] = {
        "bare": lambda: isinstance(call.module.parent(call.node), ast.Expr),
        "trained": lambda: any(
            back.reached and not {*back.loops}.isdisjoint(call.loops) for back in context.trace.methods("backward")
        ),
        "before_all": lambda: all(call.order < peer.order for peer in context.trace.methods(need["before_all"])),
        "unconditional": lambda: not call.guards,
        "outside": lambda: (
            {maker.called for maker in within} <= {"no_grad", "inference_mode"} and len(within) == len(call.contexts)
        ),
        "untrained": lambda: bool(call.loops) and not facts["trained"](),
        "updated": lambda: any(step.loops[-1:] == call.loops[-1:] for step in context.trace.methods("step")),
        "unordered": lambda: not _in_order(context, call),
        "on_all": lambda: all(process.runs(call) for process in PROCESSES),
    }
    if not all(holds() for name, holds in facts.items() if name in need):
        return False
    for name, sign in (("before", 1), ("after", -1)):
        peer = earlier[need[name]].call if name in need else None
        if peer is not None and (peer.order - call.order) * sign <= 0:
            return False
    if "feeds" in need:
        loops = getattr(earlier[need["feeds"]].call, "loops", ())
        handed = [value for setup in context.trace.methods("setup_dataloaders") for value in setup.arguments]
        is_handed = any(comes_from(part, call) for value in handed for part in derivation(value))
        if is_handed or not any(loop.node in loops for loop in iterations_over(context, call)):
            return False
    if "within" in need and earlier[need["within"]].call not in within:
        return False
    passed = {maker for value in (*call.arguments, *call.keywords.values()) for maker in makers(value)}
    if "takes" in need and earlier[need["takes"]].call not in passed:
        return False
    absent = [name.partition(":") for name in need.get("absent", ())]
    if any(call.gives(name, int(position) if position else None) for name, _, position in absent):
        return False
    if "receiver" in need and not _is(context, call.receiver, need["receiver"], earlier, call):
        return False
    conditions = ([need] if "argument" in need else []) + need.get("also", [])
    arguments = [(call.argument(wish["argument"], wish.get("position")), wish) for wish in conditions]
    return all(_is(context, value, wish, earlier, call) for value, wish in arguments)


def _is(context: Context, value: Value | None, need: _Rule, earlier: tuple[_Place, ...], call: Call) -> bool:
    """Return whether a value certainly is what a condition of a rule describes."""
    if value is None:
        return False
    # A condition may be about one entry of a mapping, also an inner one.
    for key in filter(None, need.get("entry", "").split(".")):
        entries = (option.get(key) for option in options(value) if isinstance(option, Mapping))
        value = next(entries, None)
        if value is None:
            return False
    # All forms in which the conditions below read the value.
    literals = [Conditions(context.settings, defaults=True).known(option) for option in options(value)]
    items = [Conditions(context.settings).known(item) for o in options(value) for item in getattr(o, "items", ())]
    parted = ("from", "not_from", "undivided", "derives", "streams", "output_of", "parameters_of", "module")
    derives = any(name in need for name in parted)
    parts = [part.call for part in derivation(value) if isinstance(part, Result)] if derives else []
    sources = {*makers(value), *elements_of(value)}
    direct = [getattr(option, "call", None) for option in options(value) if isinstance(option, Result)]
    paths = [option.path if isinstance(option, External) else None for option in options(value)]
    texts = [*zip(paths, literals, strict=True)]
    classes = [origin.cls for origin in origins(value) if isinstance(origin, Instance)]
    peer = {name: earlier[need[name]] for name in _PEERS if name in need}
    numbers = [number for number in literals if isinstance(number, (int, float)) and not isinstance(number, bool)]
    # Each holds only if it holds for every value that may arrive: what is unknown matches nothing.
    checks: dict[str, Callable[[Any], bool]] = {
        "made_by": lambda _: peer["made_by"].call in sources or peer["made_by"].cls in classes,
        "derives": lambda _: peer["derives"].call in parts,
        "output_of": lambda number: any(_is_output(part, earlier[number]) for part in parts),
        "not_from": lambda expected: not any(part.called in expected for part in parts),
        "undivided": lambda _: all(part.called != "shard" or not ranks(part.argument("index", 1)) for part in parts),
        "result_of": lambda _: direct == [peer["result_of"].call] * len(options(value)),
        "same_as": lambda _: is_one_of(value, _models_of(peer["same_as"].call)),
        "parameters_of": lambda _: any(
            part.called == "parameters"
            and is_one_of(part.receiver, inside(getattr(peer["parameters_of"].call, "arguments", (None,))[0]))
            for part in parts
        ),
        "from": lambda expected: any(_is_named(part, name) for part in parts for name in expected),
        "is": lambda expected: literals == [expected],
        "not": lambda expected: expected not in literals,
        "has": lambda expected: not {*items}.isdisjoint([expected] if isinstance(expected, str) else expected),
        "above": lambda expected: len(numbers) == len(literals) and all(number > expected for number in numbers),
        "matches": lambda expected: all(
            any(isinstance(text, str) and re.search(expected, text) for text in forms) for forms in texts
        ),
        "no_multiple_of": lambda expected: _no_multiple(literals, call.argument(expected)),
        "without_parameter": lambda expected: any(
            isinstance(o, Function) and o.node.args.kwarg is None and expected not in o.positional
            for o in (*options(value), *(i for o in options(value) for i in getattr(o, "items", ())))
        ),
        "spelled": lambda expected: re.search(expected, ast.unparse(call.node)) is not None,
        "rank": lambda _: bool(ranks(value)) or "rank" in ast.unparse(call.node),
        "fixed": lambda _: is_known(value) and not ranks(value),
        "streams": lambda _: any(constant(part.argument("streaming")) is True for part in parts),
        "object": lambda _: all(isinstance(origin, Instance) or (isinstance(origin, Result)
                                and origin.call.called[:1].isupper()) for origin in origins(value)),
        "environment": lambda _: all(environment_variable(option) for option in options(value)),
        "ranks": lambda expected: bool(ranks(value)) and ranks(value).issubset(expected),
        "other_rank": lambda expected: bool(ranks(value) - {expected}),
        "module": lambda expected: any(part.name.startswith(expected) for part in parts),
        "variable": lambda expected: any(environment_variable(option) == expected for option in options(value)),
        "gpu": lambda expected: any(
            constant(part) in (expected, f"cuda:{expected}") and constant(part) is not False
            for option in options(value)
            for part in (option, *(option.call.arguments[:1] if isinstance(option, Result) else ()))
        ),
        "passed": lambda _: all(not isinstance(o, Argument) and k not in _OFF and not _all_none(o) for o, k in
                                zip(options(value), literals, strict=True)),
    }  # fmt: skip
    return all(holds(need[name]) for name, holds in checks.items() if name in need)


_OFF = (None, False, "", 0)
_PEERS = ("made_by", "derives", "result_of", "same_as", "parameters_of")
"""Conditions that name an earlier need by its number."""


def _all_none(collection: Value) -> bool:
    items = getattr(collection, "items", ())
    return bool(items) and all(isinstance(item, Constant) and item.value is None for item in items)


def _is_named(call: Call, name: str) -> bool:
    """Return whether a name is the dotted name of a call, its last part, or the end of that of a class or schedule."""
    if "." in name:
        return call.name == name
    return call.called == name or (not name[:1].islower() and call.called.endswith(name))


def _in_order(context: Context, listing: Call) -> bool:
    """Return whether a listing is sorted, or its order has no effect: it is counted, searched or compared."""
    around = [node for node in listing.module.around(listing.node) if isinstance(node, ast.expr)]
    if any(isinstance(node, ast.Compare) or getattr(getattr(node, "func", 0), "id", 0) in _GATHERED for node in around):
        return True
    lists = [part for sort in context.trace.methods("sort") for part in derivation(sort.receiver)]
    return any(isinstance(part, Result) and part.call is listing for part in lists)


_GATHERED = ("sorted", "natsorted", "len", "any", "all", "set", "max", "min", "sum")


def _drops(call: Call) -> bool:
    """Return whether the code keeps one of several results: ``model(x)[0]``, ``loss, _ = model(x)``."""
    outer = None if call.method else call.module.parent(call.node)
    if isinstance(outer, ast.Subscript):
        return isinstance(outer.slice, ast.Constant) and outer.slice.value == 0
    targets = outer.targets[0] if isinstance(outer, ast.Assign) else None
    return any(getattr(name, "id", "").startswith("_") for name in getattr(targets, "elts", ()))


def _models_of(call: Call | None) -> list[Value]:
    """Return the object of a method, or the first argument of a function."""
    return inside(call.receiver or call.argument("module", 0)) if call is not None else []


def _is_output(call: Call, model: _Place) -> bool:
    """Return whether a call is in the method of a model, or calls what wraps the model."""
    wrapped = [origin for maker in makers(call.receiver) for origin in origins(maker.argument("module", 0))]
    return call.node in ast.walk(model.node) or any(getattr(o, "cls", None) is model.cls for o in wrapped)


def _no_multiple(literals: list[Any], other: Value | None) -> bool:
    numbers = [*literals, other.value if isinstance(other, Constant) else None]
    return all(type(number) is int and number > 0 for number in numbers) and numbers[0] % numbers[1] != 0


_RULES: list[_Rule] = table("smp_advisor.review.scripts", "data/combinations.toml")["row"]
for _named in dict.fromkeys((rule.get("check", "TRN736"), rule.get("library")) for rule in _RULES):
    check(*_named)(partial(_hits, [rule for rule in _RULES if rule.get("check", "TRN736") == _named[0]]))
