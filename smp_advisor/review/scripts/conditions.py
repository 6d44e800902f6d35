"""Conditions: their truth in a job, the back end that they choose, and whether a job reaches a place."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import table
from smp_advisor.review.reading.values import (
    Argument,
    Choice,
    Constant,
    External,
    Item,
    Member,
    Operation,
    Result,
    Value,
    is_none,
    options,
)
from smp_advisor.review.scripts.processes import COMPARISONS, PROCESSES
from smp_advisor.review.scripts.queries import environment_variable, mentions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Mapping as MappingABC

    from smp_advisor.review.reading.module import Module
    from smp_advisor.review.reading.trace import Call, Guard
    from smp_advisor.review.scripts.context import Context, Hit
    from smp_advisor.review.scripts.settings import Settings


_NAMES: dict[str, Any] = table("smp_advisor.review.scripts", "data/names.toml")
_STATES = ("smp.state.", "tsm.state.")
_UNSEEN = object()


@dataclass(slots=True)
class Conditions:
    """Assumptions for the truth of conditions."""

    settings: Settings
    defaults: bool = False
    """Whether an option without another value has its default."""
    granted: dict[str, bool] = field(default_factory=dict)
    """Conditions that training requires, by the text of their tests."""
    tests: MappingABC[ast.expr, Value] = field(default_factory=dict)
    """Values of the conditions that choose between values, of a script in a job on GPUs."""

    def off(self, call: Call) -> list[Guard]:
        """Return the conditions around `call` that certainly prevent it from running."""
        return [guard for guard in call.guards if self.truth_of(guard) is (not guard.holds)]

    def truth_of(self, guard: Guard) -> bool | None:
        """Return whether the test of `guard` is true; None if unknown."""
        granted = self.granted.get(ast.dump(guard.test)) if self.granted else None
        return granted if granted is not None else self.truth(guard.value)

    def truth(self, value: Value) -> bool | None:
        """Return whether `value` is true; None if unknown."""
        if isinstance(value, Choice):
            if (side := self.side(value)) is not None:
                return self.truth(side)
            truths = {self.truth(option) for option in value.alternatives}
            return truths.pop() if len(truths) == 1 else None
        if isinstance(value, Operation):
            if value.operator == "Not":
                inner = self.truth(value.operands[0])
                return None if inner is None else not inner
            if value.operator in ("And", "Or"):
                truths, both = {self.truth(operand) for operand in value.operands}, value.operator == "And"
                return (not both) if (not both) in truths else None if None in truths else both
            compare = COMPARISONS.get(value.operator)
            if compare is None or len(value.operands) != 2:
                return None
            first, second = value.operands
            if is_none(second) and isinstance(first, Item) and environment_variable(first):
                return value.operator in ("IsNot", "NotEq")
            return self._compared(compare, first, second)
        constant = self.known(value)
        return None if constant is _UNSEEN else bool(constant)

    def _compared(self, compare: Callable[[Any, Any], bool], left: Value, right: Value) -> bool | None:
        first, second = self.known(left), self.known(right)
        if first is _UNSEEN or second is _UNSEEN:
            return None
        try:
            return bool(compare(first, second))
        except TypeError:
            return None

    def side(self, value: Choice) -> Value | None:
        """Return the value that the options of the job choose; None if they do not decide."""
        test = self.tests.get(value.why) if value.sides and isinstance(value.why, ast.expr) else None
        holds = None if test is None else self.truth(test)
        return None if holds is None else value.sides[0 if holds else 1]

    def chosen(self, value: Value | None) -> Value | None:
        """Return the value that the options of the job choose; the choice itself if they do not decide."""
        while isinstance(value, Choice) and (side := self.side(value)) is not None:
            value = side
        return value

    def known(self, value: Value) -> Any:
        """Return the number or text in `value`; `_UNSEEN` if unknown."""
        if isinstance(value, Constant):
            return value.value
        if isinstance(value, Choice):
            side = self.side(value)
            return _UNSEEN if side is None else self.known(side)
        if isinstance(value, Argument):
            return self._option(value)
        if isinstance(value, Result):
            return self._returned(value.call)
        if isinstance(value, External) and value.path.startswith(_STATES):
            return self._setting(value.path.rpartition(".")[2])
        if isinstance(value, Member) and isinstance(value.owner, External) and value.owner.path.startswith(_STATES):
            return self._setting(value.name)
        if isinstance(value, Member) and isinstance(value.owner, Result) and value.name == "type" and self.tests:
            return str(self._returned(value.owner.call)).partition(":")[0]
        return _UNSEEN

    def _returned(self, call: Call) -> Any:
        """Return what a call returns; devices as their names, in a job on GPUs."""
        if self.tests and call.name in _NAMES["on_gpus"]:
            return _NAMES["on_gpus"][call.name]
        if call.name in _NAMES["sizes"]:
            return self._setting(_NAMES["sizes"][call.name])
        converts = call.name in ("int", "bool", "float") and len(call.arguments) == 1
        if converts or (self.tests and call.name == "torch.device" and call.arguments):
            return self.known(call.arguments[0])
        return _UNSEEN

    def _setting(self, name: str) -> Any:
        value = getattr(self.settings, name, None)
        return _UNSEEN if value is None else value

    def _option(self, option: Argument) -> Any:
        """Return the value of the option: that of the job, of the plan's parameter with this name, or the default."""
        if option.name in self.settings.hyperparameters:
            value = self.settings.hyperparameters[option.name]
            try:  # as the parser of the script reads it, because jobs pass text
                return ast.literal_eval(value) if isinstance(value, str) else value
            except (ValueError, SyntaxError):
                return {"true": True, "false": False}.get(value.lower(), value)
        planned = self._setting(option.name)
        if planned is not _UNSEEN or not self.defaults:
            return planned
        return option.default.value if isinstance(option.default, Constant) else _UNSEEN


_COUNT = re.compile(r"accum|grad_acc|acc_steps|update_freq")
"""Options for the number of batches per step: ``gradient_accumulation_steps``, ``accum_iter``."""


def option_of_batches(context: Context) -> tuple[bool, str]:
    """Return whether the job's options make a step of one batch, and the option that does so by default."""
    planned, default = Conditions(context.settings), Conditions(context.settings, defaults=True)
    for name, declared in context.trace.options.items():
        if not _COUNT.search(name):
            continue
        option = Argument(name, declared.argument("default") or Constant(None))
        if is_one(planned.known(option)):
            return True, ""
        if is_one(default.known(option)):
            return False, name
    return False, ""


def is_one(number: object) -> bool:
    """Return whether a number of batches is one."""
    return isinstance(number, int) and not isinstance(number, bool) and number <= 1


def arguments_of(value: Value, depth: int = 0) -> set[str]:
    """Return the names of the command-line options in a condition."""
    if depth > 5 or not isinstance(value, (Operation, Choice)):
        return {value.name} if isinstance(value, Argument) else set()
    parts = value.operands if isinstance(value, Operation) else options(value)
    return {name for part in parts for name in arguments_of(part, depth + 1)}


_EQUAL = (ast.Eq, ast.Is, ast.NotEq, ast.IsNot)


@dataclass(frozen=True, kw_only=True, slots=True)
class BackEnd:
    """How scripts name one library: its packages, its calls, and words in conditions on it."""

    title: str
    packages: tuple[str, ...]
    namespaces: tuple[str, ...]
    words: re.Pattern[str]
    excluding: re.Pattern[str]
    """Words in conditions that hold only without it."""

    @property
    def aliases(self) -> frozenset[str]:
        """Local names that scripts import the library as."""
        return frozenset(name.partition(".")[0].removesuffix("tf") for name in self.namespaces)

    def runs(self, call: Call) -> bool:
        """Return whether the call certainly runs with the library: it is the library's, or a condition requires it."""
        if call.name.startswith(self.namespaces) or call.step is not None:
            return True
        return any(
            (holds and mentions(part, self.words)) or _calls(part, self.aliases) for part, holds in _conditions(call)
        )

    def excludes(self, call: Call) -> bool:
        """Return whether a condition around the call excludes the library: ``else`` of ``if is_smp_enabled()``."""
        for part, holds in _conditions(call):
            if _calls(part, self.aliases):
                continue
            if _calls(part, _ALIASES):
                return True
            if mentions(part, self.words):
                if not holds:
                    return True
            elif holds and mentions(part, self.excluding):
                return True
        return False


BACK_ENDS = {
    name: BackEnd(
        title=entry["title"],
        packages=tuple(entry["packages"]),
        namespaces=tuple(entry["namespaces"]),
        words=re.compile(entry["words"]),
        excluding=re.compile(entry["excluding"]),
    )
    for name, entry in _NAMES["back_ends"].items()
}
"""Back ends by their names in `Libraries`."""
_ALIASES = frozenset(alias for back_end in BACK_ENDS.values() for alias in back_end.aliases)


def _conditions(call: Call) -> Iterator[tuple[ast.expr, bool]]:
    for guard in call.guards:
        yield from _implied(guard.test, holds=guard.holds)


def _implied(test: ast.expr, *, holds: bool) -> Iterator[tuple[ast.expr, bool]]:
    """Parts of a condition whose truth is certain, each with its truth: both sides of an ``and`` that holds."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _implied(test.operand, holds=not holds)
    elif isinstance(test, ast.BoolOp):
        if isinstance(test.op, ast.And) == holds:
            for part in test.values:
                yield from _implied(part, holds=holds)
    elif isinstance(test, ast.Compare):
        right = test.comparators[0]
        holds = holds != isinstance(test.ops[0], (ast.NotEq, ast.IsNot))
        if len(test.ops) > 1 or not isinstance(test.ops[0], _EQUAL) or not isinstance(right, ast.Constant):
            return
        if isinstance(right.value, str) and right.value:
            yield right, holds
        elif not right.value or right.value is True:
            yield test.left, holds == bool(right.value)
    else:
        yield test, holds


def _calls(part: ast.expr, aliases: frozenset[str]) -> bool:
    """Return whether the condition calls a library, which then is there: ``smp.rank() == 0``."""
    return any(
        isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases
        for node in ast.walk(part)
    )


_SMP_V1 = ("smp_torch", "smp_tensorflow")


class Reaching:
    """Reachable places of one script."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._calls: dict[ast.AST, list[Call]] = {}
        for call in context.trace.calls:
            self._calls.setdefault(call.node, []).append(call)
        self._planned = Conditions(context.settings)
        self._default = Conditions(context.settings, defaults=True, granted=_granted(context))

    def never(self, hit: Hit) -> bool:
        """Return whether the plan or the number of processes prevents it: ``if args.tensor_parallel_degree == 1``."""
        calls = self._around(hit.module, hit.node)
        off = (self._planned.off(call) or not any(process.runs(call) for process in PROCESSES) for call in calls)
        return bool(calls) and all(off)

    def needed(self, hit: Hit) -> str:
        """Return the options that the job must pass to reach the place: "with --fp16"; empty if it always does."""
        calls = self._around(hit.module, hit.node)
        if not calls or not all(self._default.off(call) for call in calls):
            return ""
        return " and ".join(dict.fromkeys(_phrase(guard) for guard in self._default.off(calls[0])))

    def back_end(self, library: str, hit: Hit) -> str | None:
        """The condition for a rule of `library` to apply at the place; None if the script runs it without the library.

        Empty if the library is always there.
        """
        titles = []
        for name in _SMP_V1 if library == "smp_v1" else (library,):
            if name not in BACK_ENDS or not getattr(self._context.libraries, name):
                continue
            back_end = BACK_ENDS[name]
            calls = self._around(hit.module, hit.node)
            if calls and all(back_end.excludes(call) for call in calls):
                continue
            if name not in self._context.libraries.optional or any(back_end.runs(call) for call in calls):
                return ""
            titles += [back_end.title] if name != "xla" else []  # on a GPU, the script is right
        if library not in (*BACK_ENDS, "smp_v1"):
            return ""
        return f"where {titles[0]} is used" if titles and self._context.trains else None

    def _around(self, module: Module, node: ast.AST) -> list[Call]:
        """Return the recorded calls at the place: of the node itself, or of the innermost call that contains it."""
        place = module.statement(node)
        for outer in module.around(node):
            if outer in self._calls:
                return self._calls[outer]
            if outer is place:
                break
        if isinstance(place, (ast.Expr, ast.Assign, ast.Return, ast.AugAssign)):
            return next((self._calls[inner] for inner in ast.walk(place) if inner in self._calls), [])
        return []


def _phrase(guard: Guard) -> str:
    names = [f"--{name}" for name in sorted(arguments_of(guard.value))]
    if not names:
        return f"{'where' if guard.holds else 'unless'} {ast.unparse(guard.test)}"
    if not isinstance(guard.value, Argument):
        return f"by the value of {', '.join(names)}"
    return f"{'with' if guard.holds else 'without'} {names[0]}"


def _granted(context: Context) -> dict[str, bool]:
    """Return the conditions that are true wherever the script trains: every job that trains sets their options."""
    trains = [call for call in context.trace.methods("backward") if call.reached]
    trains = trains or [call for call in context.trace.methods("train") if call.reached and call.loops == ()]
    if not trains:
        return {}
    shared: dict[str, bool] | None = None
    for call in trains:
        here = {ast.dump(guard.test): guard.holds for guard in call.guards}
        shared = here if shared is None else {test: holds for test, holds in shared.items() if here.get(test) is holds}
    return shared or {}
