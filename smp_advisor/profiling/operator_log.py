"""Log of the operators of a step: count, FLOPs and memory traffic by module and pass."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from smp_advisor.profiling.flop_formulas import flop_formula

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


OperatorKind = Literal["product", "attention", "memory"]
"""``product``: matrix products and convolutions; ``attention``: one kernel from the scores to their product with the
values; ``memory``: all others, whose time is that of their memory traffic."""


class OperatorKey(NamedTuple):
    """Place of operators in a step."""

    phase: str
    """``forward`` or ``backward``."""
    module: str
    """Path of the innermost module whose forward pass runs them, or whose gradients they compute."""
    operator: str
    """Name in PyTorch's dispatcher: ``aten.mm``."""
    kind: OperatorKind


@dataclass(slots=True)
class OperatorMeasure:
    """Sums over the equal operators of a module in one pass."""

    count: int = 0
    flops: int = 0
    """FLOPs of products; 0 for other operators."""
    bytes: int = 0
    """Memory traffic: operands read and results written, each once."""


class OperatorLog:
    """Operators of one step that run a kernel, of the backward pass by the module that created their graph node."""

    def __init__(self, model: nn.Module) -> None:
        self.measures: dict[OperatorKey, OperatorMeasure] = {}
        self._names = {module: path for path, module in model.named_modules()}
        self._path = ""
        self._open: list[str] = []
        self._starts: list[int] = [0]
        """First sequence number of each stretch of the forward pass."""
        self._places: list[str] = [""]
        """Module of each stretch."""
        self._backward_path = ""
        self.entered: set[str] = set()
        """Modules whose forward pass ran."""
        self.saved_bytes: Counter[str] = Counter()
        """Bytes that autograd saved while the module ran."""
        self._last: dict[str, int] = {}
        """Last stretch in which a module ran an operator, in the order of the first one."""
        self._made: dict[int, tuple[int, int, int]] = {}
        """First and last stretch, and bytes, of the live activations by storage."""
        self._spans: list[tuple[int, int, int]] = []
        """The same of those that were freed."""

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Follow the modules that run inside the block."""
        handles = [
            hooks.register_module_forward_pre_hook(lambda module, _: self._enter(module)),
            hooks.register_module_forward_hook(lambda module, *_: self._leave(module), always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module) -> None:
        if module in self._names:
            self.entered.add(self._names[module])
            self._open.append(self._path)
            self._move(self._names[module])

    def _leave(self, module: nn.Module) -> None:
        if module in self._names and self._open:
            self._move(self._open.pop())

    def _move(self, path: str) -> None:
        self._path = path
        self._starts.append(sequence_number())
        self._places.append(path)

    def clear(self) -> None:
        """Begin a step."""
        self.measures.clear()
        self._path, self._backward_path = "", ""
        self._open.clear()
        self._starts, self._places = [0], [""]
        for record in (self.entered, self.saved_bytes, self._last, self._made, self._spans):
            record.clear()

    def save(self, size: int) -> None:
        """Count bytes that autograd saves now."""
        self.saved_bytes[self._path] += size

    def make(self, key: int, size: int) -> None:
        """Note a new activation of the forward pass."""
        place = len(self._places) - 1
        self._made[key] = (place, place, size)

    def free(self, key: int) -> None:
        """Note that an activation is freed, so that its address may be used again."""
        span = self._made.pop(key, None)
        if span is not None and span[1] > span[0]:
            self._spans.append(span)

    def crossing_bytes(self) -> dict[str, int]:
        """Bytes that exist after a module's last operator and that later ones read, by module in order of execution."""
        changes = [0] * (len(self._places) + 1)
        for start, end, size in (*self._spans, *self._made.values()):
            if end > start:
                changes[start] += size
                changes[end] -= size
        live = list(accumulate(changes))
        return {path: live[place] for path, place in self._last.items()}

    def add(self, phase: str, operator: Any, operands: Sequence[Any], result: Any, flops: int) -> None:
        """Count one operator."""
        kind = _kind(operator)
        if kind is None:
            return
        path = self._path if phase == "forward" else self._of_node()
        if phase == "forward":
            self._last[path] = place = len(self._places) - 1
            for tensor in _tensors(operands):
                maker = self._made.get(storage_key(tensor) or -1)
                if maker is not None:
                    self._made[storage_key(tensor) or -1] = (maker[0], place, maker[2])
        key = OperatorKey(phase, path, str(operator._overloadpacket), kind)
        measure = self.measures.get(key)
        if measure is None:
            measure = self.measures[key] = OperatorMeasure()
        measure.count += 1
        measure.flops += flops
        measure.bytes += _traffic(operator, operands, result)

    def wait(self, phase: str, launches: int) -> None:
        """Count launches of recurrent layers, whose tokens wait for each other."""
        path = self._path if phase == "forward" else self._of_node()
        measure = self.measures.setdefault(OperatorKey(phase, path, "recurrent launches", "memory"), OperatorMeasure())
        measure.count += launches

    def _of_node(self) -> str:
        """Module of the current node; sums of gradients between nodes belong to the node before them."""
        node: Any = torch._C._current_autograd_node()
        number = node._sequence_nr() if node is not None else _NO_NUMBER
        if number < _NO_NUMBER:
            self._backward_path = self._places[bisect_right(self._starts, number) - 1]
        return self._backward_path


_NO_NUMBER = 2**63
"""Nodes that accumulate gradients have a larger number."""


def sequence_number() -> int:
    """Return the number of the next node of the autograd graph; 0 in releases of PyTorch that do not expose it."""
    read = getattr(torch.autograd, "_get_sequence_nr", None)
    return int(read()) if read is not None else 0


_NO_KERNEL = frozenset((
    "_unsafe_view", "_reshape_alias", "lift_fresh", "set_", "resize_", "empty", "empty_like", "empty_strided",
    "empty_permuted", "new_empty", "new_empty_strided", "_local_scalar_dense", "is_same_size",
))  # fmt: skip
"""Operators that change only the shape, or that allocate memory without writing it."""
_OVERWRITING = frozenset(
    ("copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_", "masked_fill_")
)
"""Operators in place that do not read their first operand, or only a part of it."""
_GATHERING = frozenset(("embedding", "index_select", "gather", "index", "take", "nll_loss_forward"))
"""Operators that read as many elements of their first operand as they write."""
_SCATTERING = frozenset(("index_put_", "index_add_", "scatter_", "scatter_add_", "index_copy_"))
"""Operators in place that write as many elements of their first operand as their last one has."""


def storage_key(tensor: Tensor) -> int | None:
    """Identifier of a tensor's storage; None for tensors without one (sparse, or quantized by a wrapper)."""
    try:
        key: int = tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None
    return key


@cache
def _kind(operator: Any) -> OperatorKind | None:
    """Return the kind of an operator; None if it runs no kernel."""
    name = _name(operator)
    if operator.namespace in {"prim", "prims", "profiler", "c10d", "_c10d_functional"} or name in _NO_KERNEL:
        return None
    returns = operator._schema.returns
    if not returns or all(r.alias_info is not None and not r.alias_info.is_write for r in returns):
        return None
    if flop_formula(operator._overloadpacket) is None:
        return "memory"
    return "attention" if "attention" in name or "attn" in name else "product"


@cache
def _name(operator: Any) -> str:
    return str(operator._schema.name.rsplit("::", 1)[-1])


def _traffic(operator: Any, operands: Sequence[Any], result: Any) -> int:
    """Return the bytes that a kernel reads and writes if it touches every operand and result once."""
    name = _name(operator)
    read = [_bytes(tensor) for tensor in _tensors(operands)]
    written = sum(_bytes(tensor) for tensor in _tensors((result,)))
    if not read or name == "nll_loss_backward" or name.endswith("_like") or name.startswith("new_"):
        return written  # operands only give the shape
    if name in _OVERWRITING:
        return sum(read[1:]) + written
    if name in _GATHERING:
        return sum(read[1:]) + 2 * written
    if name in _SCATTERING:
        return sum(read[1:]) + 2 * read[-1]
    return sum(read) + written


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements; an expanded tensor has those of its storage."""
    size = tensor.numel() * tensor.element_size()
    try:
        return min(size, tensor.untyped_storage().nbytes())
    except (NotImplementedError, RuntimeError):  # sparse, or quantized by a wrapper
        return size
