"""Two processes of one job: which conditions hold on each, and what each calls together with the others.

The trace of a script is projected on rank 0 and on another rank. Conditions that do not depend on the rank are the
same on both, whatever they are.
"""

from __future__ import annotations

import ast
import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import table
from smp_advisor.review.reading.values import (
    Argument,
    Choice,
    Class,
    Collection,
    Constant,
    External,
    Function,
    Instance,
    Item,
    Member,
    Operation,
    Result,
    Unknown,
    Value,
    options,
)
from smp_advisor.review.scripts.queries import constant, derivation, known_names, makers, mentions, ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smp_advisor.review.reading.trace import Call, Guard
    from smp_advisor.review.scripts.context import Context


_NAMES: dict[str, Any] = table("smp_advisor.review.scripts", "data/processes.toml")
_MAIN, _FIRST, _NUMBER = (frozenset(_NAMES["conditions"][kind]) for kind in ("main", "local_main", "number"))
_LOCAL_NUMBER, _SEVERAL = (frozenset(_NAMES["conditions"][kind]) for kind in ("local_number", "several"))
_ALWAYS = frozenset(_NAMES["conditions"]["always"])
_SIZES = frozenset(_NAMES["conditions"]["sizes"])
_ONE_RANK_DECORATORS = tuple(_NAMES["conditions"]["decorators"])
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "Eq": operator.eq, "NotEq": operator.ne, "Is": operator.eq, "IsNot": operator.ne,
    "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge,
    "In": lambda item, items: item in items, "NotIn": lambda item, items: item not in items,
}  # fmt: skip
_DEEPEST = 12
_OFF = Constant(value=False)


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a job of several."""

    rank: int
    local_rank: int
    size: int = 16

    def runs(self, call: Call) -> bool:
        """Return whether the call may run here. A condition that does not depend on the process may hold."""
        if self.rank and any(_for_one_rank(function.node) for function in call.functions):
            return False
        return all(self.holds(guard) for guard in call.guards)

    def holds(self, guard: Guard) -> bool:
        """Return whether the condition may hold here."""
        truth = self.truth(guard.value)
        return truth is None or truth is guard.holds

    def truth(self, value: Value, depth: int = 0) -> bool | None:
        """Truth of a condition here; None if it does not depend on the process, or is not known."""
        if depth > _DEEPEST:
            return None
        if isinstance(value, Choice):
            own = [option for option in value.alternatives if depends_on_rank(option)]
            truths = {self.truth(option, depth + 1) for option in own}
            return truths.pop() if len(truths) == 1 else None
        if isinstance(value, Operation):
            if value.operator == "Not":
                inner = self.truth(value.operands[0], depth + 1)
                return None if inner is None else not inner
            if value.operator in ("And", "Or"):
                truths, decides = {self.truth(part, depth + 1) for part in value.operands}, value.operator == "Or"
                # A setting that is not known may decide: ``all_ranks or rank == 0``.
                return decides if decides in truths else None if None in truths else not decides
            compare = COMPARISONS.get(value.operator)
            numbers = [self._number(operand, depth + 1) for operand in value.operands]
            if compare is None or len(numbers) != 2 or None in numbers:
                return None
            if {type(number) for number in numbers} == {int, str}:  # a variable of the environment
                numbers = [str(number) for number in numbers]
            try:
                return bool(compare(*numbers))
            except TypeError:
                return None
        if isinstance(value, (Constant, Function, Class)):  # ``not evaluate``, where a function has this name
            return bool(getattr(value, "value", True))
        return _as_truth(self._named(value, depth + 1))

    def _number(self, value: Value, depth: int) -> Any:
        if isinstance(value, Constant):
            return value.value
        if isinstance(value, Choice):
            own = [option for option in value.alternatives if depends_on_rank(option)]
            numbers = [self._number(option, depth + 1) for option in own[:1]]
            return numbers[0] if numbers and depth <= _DEEPEST else None
        if isinstance(value, Collection) and not value.open:
            items = [self._number(item, depth + 1) for item in value.items]
            return None if None in items else items
        if isinstance(value, Operation) and value.operator == "Add" and any(map(depends_on_rank, value.operands)):
            of_instance = any(isinstance(part, Operation) and part.operator == "Mult" for part in value.operands)
            return self.rank if of_instance else None  # node * gpus + local_rank
        if isinstance(value, Operation) and value.operator in ("Mod", "FloorDiv") and depth <= _DEEPEST:
            left, right = (self._number(operand, depth + 1) for operand in value.operands)
            if right is None and ranks(value.operands[0]):  # by the GPUs of an instance
                return self.local_rank if value.operator == "Mod" else self.rank // 8
            if isinstance(left, int) and isinstance(right, int) and right > 0:
                return left % right if value.operator == "Mod" else left // right
            return None
        meaning = self._named(value, depth + 1)
        return self.truth(value, depth + 1) if meaning is None and isinstance(value, Operation) else meaning

    def _named(self, value: Value, depth: int) -> Any:
        """Return the value of a name or call of a launcher, framework or PyTorch here; None without a meaning."""
        if depth > _DEEPEST or isinstance(value, (Operation, Choice, Collection)):
            return None
        if variables := ranks(value):
            return self.local_rank if all("local" in name.lower() for name in variables) else self.rank
        if isinstance(value, Result):
            call = value.call
            if call.name in ("int", "bool", "str") and call.arguments:
                return self._number(call.arguments[0], depth + 1)
            if call.function is not None:
                return None
            if call.name in _ALWAYS or call.name in _SIZES:
                return self.size if call.name in _SIZES else True
            return self._meant(call.called)
        if isinstance(value, (External, Argument)):
            return self._meant(value.name if isinstance(value, Argument) else value.path.rpartition(".")[2])
        if isinstance(value, Member) and value.name == "n":  # a bar that is switched off does not count
            bars = [maker for maker in makers(value.owner) if maker.called == "tqdm"]
            return 0 if {self.truth(bar.argument("disable") or _OFF, depth + 1) for bar in bars} == {True} else None
        if not isinstance(value, (Member, Unknown)):
            return None
        name = value.name if isinstance(value, Member) else value.parameter
        number = self.rank if name in _NUMBER else self.local_rank if name in _LOCAL_NUMBER else None
        return self._meant(name) if number is None else number

    def _meant(self, name: str) -> bool | None:
        """Return the truth of a condition that frameworks have under this name."""
        if name in _MAIN:
            return self.rank == 0
        return self.local_rank == 0 if name in _FIRST else name in _SEVERAL or None


PROCESSES = Process(0, 0), Process(1, 1), Process(15, 7)
"""Ranks of a job on two instances: the first, its neighbor, and the last."""


def _as_truth(value: Any) -> bool | None:
    return None if value is None else bool(value)


def depends_on_rank(value: Value, depth: int = 0) -> bool:
    """Return whether a value certainly differs between two processes of a job."""
    first, last = PROCESSES[0], PROCESSES[-1]
    if isinstance(value, Choice):
        return depth < _DEEPEST and any(depends_on_rank(option, depth + 1) for option in value.alternatives)
    if isinstance(value, Constant):
        return False
    if isinstance(value, Operation):
        return first.truth(value) is not last.truth(value) or any(
            depth < _DEEPEST and depends_on_rank(operand, depth + 1) for operand in value.operands
        )
    return bool(first._named(value, 0) != last._named(value, 0))  # noqa: SLF001 - its own class


def _for_one_rank(node: ast.AST) -> bool:
    """Return whether a decorator lets only one rank enter the function: ``@rank_zero_only``."""
    return any(
        str(getattr(part, "attr", None) or getattr(part, "id", "")).endswith(_ONE_RANK_DECORATORS)
        for decorator in getattr(node, "decorator_list", ())
        for part in ast.walk(decorator)
    )


@dataclass(frozen=True, slots=True, eq=False)
class Meeting:
    """A call in which the ranks wait for each other."""

    call: Call
    kind: str
    """Ranks that call the same kind meet."""
    why: str
    """Variant of the message: ``collective``, ``state``, ``forward``, ``backward`` or ``framework``."""
    on: tuple[bool, ...]
    """Whether each process of the comparison runs it."""

    @property
    def one_sided(self) -> bool:
        """Whether only some of the ranks run it."""
        return len(set(self.on)) > 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """Calls of two ranks together, in the order of the program."""

    processes: tuple[Process, ...]
    meetings: tuple[Meeting, ...]
    pairs: tuple[tuple[Meeting, Meeting], ...]
    """Calls of the same kind that one rank makes before the other, in the order of the program."""
    alone: tuple[Meeting, ...]
    """Calls that one rank makes and no other."""


def compare(calls: list[tuple[Call, str, str]]) -> Comparison:
    """Compare the order of the calls in `calls` (call, kind, variant) on the first ranks and the last one."""
    meetings = [
        Meeting(call, kind, why, on)
        for call, kind, why in calls
        if any(on := tuple(process.runs(call) for process in PROCESSES))
    ]
    orders = [[meeting.kind for meeting in meetings if meeting.on[side]] for side in range(len(PROCESSES))]
    differ = any(order != orders[0] for order in orders)
    pairs: list[tuple[Meeting, Meeting]] = []
    alone: list[Meeting] = []
    waiting: list[Meeting] = []
    for meeting in meetings:
        if not meeting.one_sided:
            if differ:
                alone += waiting
                waiting = []
            continue
        peer = next((peer for peer in waiting if peer.kind == meeting.kind and peer.on != meeting.on), None)
        if peer is None:
            waiting.append(meeting)
        else:
            waiting.remove(peer)
            pairs.append((peer, meeting))
    return Comparison(PROCESSES, tuple(meetings), tuple(pairs), (*alone, *waiting))


def of_counted_processes(call: Call) -> bool:
    """Return whether a condition on the number of processes or GPUs is around a call."""
    return any(_COUNT.search(ast.unparse(guard.test)) for guard in call.guards)


_COUNT = re.compile(r"size|world|count|gpus|n_?gpu|nproc|num_proc", re.IGNORECASE)
_CLOCKS = frozenset(_NAMES["local"]["clocks"])
_FILES = frozenset(["os.path.exists", "os.path.isfile"])
_REDUCED = tuple(_NAMES["local"]["reduced"])
_TESTS = ("isnan", "isinf", "isfinite")


def of_clock(value: Value) -> bool:
    """Return whether a condition depends on the clock of the machine."""
    if isinstance(value, (Operation, Choice)):
        return any(of_clock(part) for part in getattr(value, "operands", options(value)))
    numeric = isinstance(value, Result) and value.call.name in _ARITHMETIC
    clock = isinstance(value, Result) and value.call.name in _CLOCKS
    return clock or (numeric and any(map(of_clock, value.call.arguments)))  # type: ignore[attr-defined]


def of_file(value: Value) -> bool:
    """Return whether a condition depends on a file, which appears at another moment on each rank."""
    parts = (part.call for part in derivation(value) if isinstance(part, Result))
    return any(call.name in _FILES or (call.method in ("exists", "is_file") and not call.name) for call in parts)


def of_own_batches(context: Context, value: Value | None, divided: Callable[[Call], bool]) -> bool:
    """Return whether a number certainly comes from the batches of this rank alone: its loss before any reduction."""
    parts = [part for number in _numbers_in(context, value) for part in derivation(number)]
    calls = [part.call for part in parts if isinstance(part, Result)]
    if any(call.called.endswith(_REDUCED) for call in calls):
        return False
    inside = {id(part) for part in parts if not isinstance(part, Constant)} | {id(call) for call in calls}
    for call in context.trace.calls:
        if call.called.endswith(_REDUCED) and any(
            id(part) in inside or (isinstance(part, Result) and id(part.call) in inside)
            for argument in (*call.arguments, *call.keywords.values(), *_tensor_of(call))
            for part in _numbers_of(argument)
        ):
            return False
    return any(divided(call) for call in calls)


def _tensor_of(call: Call) -> tuple[Value, ...]:
    """Return the tensor of ``loss.reduce()``: no object of a framework."""
    return () if owner_kind(call.receiver) else options(call.receiver)


def _numbers_of(value: Value, depth: int = 0) -> Iterator[Value]:
    """Yield a tensor and what it is computed from, without the model, the loader and the batch."""
    if not isinstance(value, (Item, Instance)):  # a batch, which the loss is made of
        yield value
    of_tensor = isinstance(value, Result) and (value.call.method in _KEEPING or value.call.name in _MADE_OF)
    inner = list[Value](options(value)) if isinstance(value, Choice) else []
    if isinstance(value, (Operation, Collection)):
        inner = [*(value.operands if isinstance(value, Operation) else value.items)]
    elif isinstance(value, Result) and of_tensor:
        inner = [*value.call.arguments[:1], *options(value.call.receiver)]
    for part in inner if depth < _DEEPEST else ():
        yield from _numbers_of(part, depth + 1)


_KEEPING = frozenset(["detach", "clone", "item", "mean", "sum", "float", "to", "cuda", "unsqueeze", "reshape"])
_MADE_OF = frozenset(["torch.tensor", "torch.stack", "torch.as_tensor", "torch.cat", "torch.mean", "float"])


_ARITHMETIC = frozenset(["int", "abs", "min", "max", "round", "sum", "all", "any"])


def _numbers_in(context: Context, value: Value | None) -> list[Value]:
    """Tensors that became numbers in a condition, also where they decide between its values: a counter of patience."""
    numbers, visited, pending = list[Value](), set[int](), [] if value is None else [value]
    while pending:
        part = pending.pop()
        if id(part) in visited:
            continue
        visited.add(id(part))
        if isinstance(part, Choice):
            test = context.trace.tests.get(part.why) if isinstance(part.why, ast.expr) else None
            pending += [*part.alternatives, *([] if test is None else [test])]
        elif isinstance(part, (Operation, Collection)):
            pending += part.operands if isinstance(part, Operation) else part.items
        elif isinstance(part, Result):
            if part.call.method == "item" or part.call.name == "float" or part.call.called in _TESTS:
                numbers.append(part)
            elif part.call.name in _ARITHMETIC:
                pending += part.call.arguments
    return numbers


_COLLECTIVES = frozenset(f"torch.distributed.{name}" for name in known_names("collectives"))
_TOGETHER: dict[str, str] = _NAMES["together"]
_METHODS: dict[str, list[str]] = _NAMES["methods"]
_OF_LIGHTNING: dict[str, str] = _NAMES["of_lightning"]
_OUTSIDE_OF_TORCH = ("lightning", "pytorch_lightning")


def owner_kind(value: Value | None) -> str:
    """Return which framework's object a method belongs to: "accelerate", "fabric", "lightning", "trainer", or empty."""
    for option in options(value):
        source = option
        if isinstance(option, Unknown) and option.parameter in _NAMES["parameters"]:
            return str(_NAMES["parameters"][option.parameter])
        for _ in range(3):  # self.trainer.strategy, self.accelerator
            if isinstance(source, Member) and source.name in _NAMES["members"]:
                return str(_NAMES["members"][source.name])
            if isinstance(source, Member) and source.name in _OF_LIGHTNING and _home(source).startswith("Lightning"):
                return _OF_LIGHTNING[source.name]
            source = source.owner if isinstance(source, Member) else source
        names = [maker.name for maker in makers(option)]
        names += list(option.cls.ancestors()) if isinstance(option, Instance) else []
        if any(maker.name == "deepspeed.initialize" for maker in elements_of(option)):
            return "deepspeed"
        kind = next(filter(None, map(_kind_of_class, names)), "")
        if kind:
            return kind
    return ""


def _kind_of_class(name: str) -> str:
    last = name.rpartition(".")[2]
    if name.startswith(("torchmetrics.", "pytorch_lightning.metrics.")):
        return "metric"
    if last.endswith("Trainer"):
        return "lightning" if name.startswith(_OUTSIDE_OF_TORCH) else "trainer"
    return str(_NAMES["classes"].get(last, ""))


def _home(member: Member) -> str:
    """Last name of the class outside of the script that the owner derives from."""
    owner = member.owner
    paths = list(owner.cls.ancestors()) if isinstance(owner, Instance) else [call.name for call in makers(owner)]
    return paths[0].rpartition(".")[2] if paths else ""


def framework_runs(call: Call) -> bool:
    """Whether a framework calls the method that the call is in: a hook of a Trainer, LightningModule or callback."""
    homes = [function.home for function in call.functions if function.home is not None]
    return any(
        path.endswith(("LightningModule", "LightningDataModule", "Callback", "Trainer"))
        for home in homes
        for path in home.ancestors()
    )


def in_several_processes(call: Call) -> bool:
    """Return whether a Trainer of Lightning certainly starts more than one process."""
    devices = constant(call.argument("devices") or call.argument("gpus"))
    nodes = call.gives("num_nodes") and constant(call.argument("num_nodes")) != 1
    older = constant(call.argument("accelerator"))  # before version 1.5
    strategy = call.argument("strategy") or (Constant(older) if str(older).startswith("ddp") else None)
    if constant(strategy) in (None, "auto", "single_device"):  # auto: one process on one device
        return nodes or (isinstance(devices, int) and devices > 1)
    return nodes or devices not in (1, "1")


_INTERRUPTED = ("on_keyboard_interrupt", "on_exception")
_OF_CALLBACKS = re.compile(r"(?:lightning|pytorch_lightning)\.(?:.*\.)?\w*Callback$")
_METRICS = re.compile(r"torchmetrics|\b(?:pl|pytorch_lightning)\.metrics")


def met_by_name(call: Call, *, sharded: bool) -> tuple[str, str] | None:
    """Return the kind and variant of a call that waits for all ranks by its name; None for others."""
    of_group = call.gives("group") or any(mentions(node, "group") for node in call.node.args)
    if call.name in _COLLECTIVES or call.name in _NAMES["collectives"]:
        return None if of_group else (call.called, "collective")
    if call.name in _TOGETHER:
        return (_TOGETHER[call.name], "state") if sharded or "new_group" in call.name else None
    kind = owner_kind(call.receiver) if call.method else ""
    hooks = [path for function in call.functions if function.home and not function.name.startswith(_INTERRUPTED)
             for path in function.home.ancestors()]  # fmt: skip
    if getattr(call.receiver, "parameter", "") == "trainer" and any(map(_OF_CALLBACKS.match, hooks)):
        kind = "lightning"
    methods = [*_METHODS.get(kind, ()), *(_METHODS.get(f"{kind}_sharded", ()) if sharded else ())]
    if call.method not in methods:
        return None
    if kind == "module" and call.method in ("log", "log_dict") and constant(call.argument("sync_dist")) is not True:
        return None
    if kind == "metric":
        source = call.module.source.text
        of_package = (
            _METRICS.search(source) or f"{call.module.text(call.node.func).removesuffix('compute')}update(" in source
        )
        if call.arguments or call.keywords or not of_package or "sync_on_compute=False" in source:
            return None
    return f"{kind}.{call.method}", "framework"


def elements_of(value: Value | None) -> Iterator[Call]:
    """Yield the calls whose result the value is, or is an element of: the model of ``model, loader = prepare(...)``."""
    for option in options(value):
        owner = option.owner if isinstance(option, Item) else option
        yield from makers(owner)
