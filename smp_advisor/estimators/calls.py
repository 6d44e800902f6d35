"""The calls of a followed script that run with the options of its job, and the values that arrive in them."""

from __future__ import annotations

from math import floor
from operator import add, floordiv, mul, sub, truediv
from typing import TYPE_CHECKING, Any

from smp_advisor.estimators.configuration import plain_of
from smp_advisor.review.reading.values import Choice, Constant, Item, Mapping, Member, Operation, Result
from smp_advisor.review.scripts.checks.planned import trainer_arguments
from smp_advisor.review.scripts.checks.sharding import running
from smp_advisor.review.scripts.conditions import Conditions
from smp_advisor.review.scripts.queries import environment_variable, makers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from smp_advisor.review.reading.trace import Call
    from smp_advisor.review.reading.values import Value
    from smp_advisor.review.scripts.context import Context

_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "FloorDiv": floordiv, "Div": truediv, "Mult": mul, "Add": add, "Sub": sub,
}  # fmt: skip
_ROUNDS: dict[str, Callable[[Iterable[float]], float]] = {
    "int": lambda numbers: floor(min(numbers)),
    "max": max,
    "min": min,
}
_IN_JOB = ("get_world_size", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_IN_NODE = ("device_count", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SM_NUM_GPUS")
"""Functions and variables with the processes of a job and of a node, one for each GPU."""


_LOADS = ("json.load", "json.loads", "yaml.safe_load", "yaml.load", "yaml.full_load", "omegaconf.OmegaConf.load")


class Calls:
    """Calls of one script by their names; `gpus` are those of the job, and of an instance, if they are known."""

    def __init__(
        self, context: Context, gpus: int | None, per_node: int | None, files: dict[str, dict[str, Any]]
    ) -> None:
        self.context, self.files = context, files
        self.opened: set[str] = set()
        """Configurations that the script loads, by their paths."""
        self.conditions = Conditions(context.settings, defaults=True, tests=context.trace.tests)
        self._counts: dict[str, int | None] = {**dict.fromkeys(_IN_JOB, gpus), **dict.fromkeys(_IN_NODE, per_node)}
        runs = running(context)
        self.by_name: dict[str, list[Call]] = {}
        for call in context.trace.calls:
            if runs(call) and not self.conditions.off(call):
                name = call.called or getattr(call.node.func, "id", "")
                self.by_name.setdefault("Fast" * call.name.startswith("unsloth.") + name, []).append(call)
        self.makers = list(trainer_arguments(context))

    def named(self, *names: str) -> list[Call]:
        return [call for name in names for call in self.by_name.get(name, ())]

    def ending(self, *ends: str) -> list[Call]:
        return [call for name, several in self.by_name.items() if name.endswith(ends) for call in several]

    def known(self, value: Value | None) -> Any:
        """The value that arrives: a constant, what the job passes, the default of an option; None if not known."""
        constant_value = self.conditions.known(value) if value is not None else None
        if isinstance(value, Item | Member | Result) and (key := self._entry(value)):
            constant_value = self.files.get(key[0], {}).get(key[1])
        return constant_value if isinstance(constant_value, (str, int, float, bool)) else None

    def _entry(self, value: Value | None) -> tuple[str, str] | None:
        """Return the file and the key of an entry in a configuration that the script loads; None for other values."""
        key = ""
        while not (isinstance(value, Result) and value.call.name in _LOADS):
            name: Any = None
            if isinstance(value, Item) and isinstance(value.key, Constant):
                name, value = value.key.value, value.owner
            elif isinstance(value, Member):
                name, value = value.name, value.owner
            elif isinstance(value, Result) and value.call.method == "get" and value.call.arguments:
                name, value = getattr(value.call.arguments[0], "value", None), value.call.receiver
            if not isinstance(name, str):
                return None
            key = key or name
        file = value.call.argument("stream", 0)
        while isinstance(file, Result):  # open(path), and what read() returns
            file = file.call.receiver or file.call.argument("file", 0)
        path = self.known(file)
        if not key or not isinstance(path, str):
            return None
        self.opened.add(path)
        return path, key

    def plugins(self) -> list[Call]:
        """Return DeepSpeed's plugins, but those that no Accelerator gets."""
        takers = self.named("Accelerator")
        values = [taker.argument("deepspeed_plugin") for taker in takers if taker.gives("deepspeed_plugin")]
        used = [maker for value in values for maker in makers(value)]
        return [call for call in self.named("DeepSpeedPlugin") if call in used or not takers or (values and not used)]

    def certain(self, call: Call) -> bool:
        """Return whether the options of the job decide every condition around a call."""
        return all(self.conditions.truth_of(guard) is guard.holds for guard in call.guards)

    def number(self, value: Value) -> float | None:
        """Return a number that the script computes from its options, its processes and its GPUs; None if not known."""
        value = self.conditions.chosen(value) or value
        if isinstance(value, Choice):
            numbers = set(map(self.number, value.alternatives))
            return numbers.pop() if len(numbers) == 1 else None
        if isinstance(value, Operation) and value.operator in _ARITHMETIC and len(value.operands) == 2:
            first, second = map(self.number, value.operands)
            return None if first is None or not second else _ARITHMETIC[value.operator](first, second)
        if isinstance(value, Result):
            name, several = value.call.name.rpartition(".")[2], [self.number(part) for part in value.call.arguments]
            if name in _ROUNDS and several and None not in several:
                return float(_ROUNDS[name](number for number in several if number is not None))
        name = environment_variable(value) or (value.call.name.rpartition(".")[2] if isinstance(value, Result) else "")
        number: Any = self._counts.get(name) if name in self._counts else self.known(value)
        return float(number) if type(number) in (int, float) else None

    def plain(self, table: Mapping) -> dict[str, Any]:
        """Return a table with the values that arrive."""
        data = plain_of(table)
        for key, entry in table.entries.items():
            value = self.plain(entry.value) if isinstance(entry.value, Mapping) else self.known(entry.value)
            if value is not None or key not in data:
                data[str(key)] = "not known" if value is None else value
        return data
