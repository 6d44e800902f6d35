"""What passes by during a step: live storages, FLOPs and products, each with the block it belongs to."""

from __future__ import annotations

import weakref
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from smp_advisor.profiling.flop_formulas import flop_formula

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["BlockMeasure", "ProductMeasure", "Stretch", "Watch", "storage_key"]

_ATEN = torch.ops.aten
_TESTS = (_ATEN._local_scalar_dense.default, _ATEN.equal.default)
"""Operators that ask for a value."""


def storage_key(tensor: Tensor) -> int | None:
    """What identifies a tensor's memory; None where it has none (sparse, quantized by a wrapper)."""
    try:
        key: int = tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None
    return key


@dataclass(slots=True)
class ProductMeasure:
    """One use of a weight."""

    name: str
    inputs: int
    outputs: int
    experts: int
    flops: int


@dataclass(slots=True)
class BlockMeasure:
    """One block's share of a step."""

    saved_bytes: int = 0
    input_bytes: int = 0
    forward_flops: int = 0
    backward_flops: int = 0
    calls: int = 0
    hidden: int = 0
    products: list[ProductMeasure] = field(default_factory=list)
    attentions: list[tuple[int, int, int, int, bool, float]] = field(default_factory=list)
    """Heads, key-value heads, head width, value width, causal, dropout."""
    attention_flops: int = 0
    """Of products without a weight and of attention kernels, forward."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Live memory between two marks."""

    phase: str
    block: str
    """Path of the block, "" between blocks."""
    change_bytes: int
    rise_bytes: int


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows a step operator by operator.

    Parameters
    ----------
    parameters
        Weights by name, to recognise products with them.
    answer
        What data-dependent tests are answered with; None lets them fail on fake tensors.
    """

    def __init__(self, parameters: Mapping[str, Tensor], *, answer: bool | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.answer = answer
        self.assumed: list[str] = []
        self.phase = "forward"
        self.block = ""
        self.blocks: dict[str, BlockMeasure] = defaultdict(BlockMeasure)
        self.flops: dict[str, int] = defaultdict(int)
        self.operations = 0
        self.live_bytes = 0
        self.peak_bytes = 0
        self.stretches: list[Stretch] = []
        self._live: dict[int, int] = {}
        self._start_bytes = 0
        self._stretch_peak = 0
        self._sizes = {name: tensor.numel() for name, tensor in parameters.items()}
        self._weights: dict[int, str] = {}
        for name, tensor in parameters.items():
            key = storage_key(tensor)
            if key is not None:
                self._weights[key] = name

    def hold(self, tensors: Iterable[Any]) -> None:
        """Count tensors that exist before the step."""
        for tensor in tensors:
            self._add(tensor)

    def mark(self, phase: str, block: str = "") -> None:
        """A stretch ends here and the next one begins."""
        self.stretches.append(
            Stretch(self.phase, self.block, self.live_bytes - self._start_bytes, self._stretch_peak - self._start_bytes)
        )
        self.phase, self.block = phase, block
        self._start_bytes = self._stretch_peak = self.live_bytes

    def restart(self, phase: str) -> None:
        """Forget the stretches and the peak: a step begins."""
        self.stretches.clear()
        self.phase, self.block = phase, ""
        self._start_bytes = self._stretch_peak = self.peak_bytes = self.live_bytes

    def on_attention(self, query: Tensor, key: Tensor, value: Tensor, causal: bool, dropout: float) -> None:  # noqa: FBT001
        """An attention begins."""
        if query.ndim >= 3 and self.phase == "forward":
            self.blocks[self.block].attentions.append(
                (query.shape[-3], key.shape[-3], query.shape[-1], value.shape[-1], causal, dropout)
            )

    def _add(self, tensor: Any) -> None:
        if not isinstance(tensor, Tensor):
            return
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return
        key = storage._cdata
        if key in self._live:
            return
        size = storage.nbytes()
        self._live[key] = size
        self.live_bytes += size
        weakref.finalize(storage, self._remove, key)
        self._stretch_peak = max(self._stretch_peak, self.live_bytes)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _remove(self, key: int) -> None:
        self.live_bytes -= self._live.pop(key, 0)
        self._weights.pop(key, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.answer is not None and func in _TESTS:
            return self._assume(func, args[0])
        result = func(*args, **kwargs)
        self.operations += 1
        packet = func._overloadpacket
        if packet is _ATEN._to_copy:
            self._follow_cast(args[0], result)
        formula = flop_formula(packet)
        if formula is not None:
            self._count(packet, args, formula(*args, **kwargs, out_val=result))
        for leaf in tree_leaves(result):
            self._add(leaf)
        return result

    def _assume(self, func: Any, tensor: Tensor) -> Any:
        self.assumed.append(f"{func} of {tuple(tensor.shape)} {tensor.dtype}")
        if func is _TESTS[1] or tensor.dtype == torch.bool:
            return bool(self.answer)
        return 1.0 if tensor.is_floating_point() else int(bool(self.answer))

    def _follow_cast(self, source: Tensor, copy: Tensor) -> None:
        """A 16-bit copy of a weight is that weight to the products it enters."""
        key, new = storage_key(source), storage_key(copy)
        if key in self._weights and new is not None and key is not None:
            self._weights[new] = self._weights[key]

    def _count(self, packet: Any, args: tuple[Any, ...], flops: int) -> None:
        self.flops[self.phase] += flops
        measure = self.blocks[self.block]
        if self.phase != "forward":
            measure.backward_flops += flops
            return
        measure.forward_flops += flops
        product = self._product(packet, args, flops)
        if product is None:
            measure.attention_flops += flops
        else:
            measure.products.append(product)

    def _product(self, packet: Any, args: tuple[Any, ...], flops: int) -> ProductMeasure | None:
        """The weight among the operands, if there is one."""
        operands = [value for value in args if isinstance(value, Tensor) and value.ndim >= 2]
        for operand in reversed(operands):
            name = self._weights.get(storage_key(operand) or -1)
            if name is None:
                continue
            shape = operand.shape
            if "conv" in str(packet):  # [outputs, inputs / groups, kernel...]
                return ProductMeasure(name, operand.numel() // shape[0], shape[0], 1, flops)
            inputs, outputs = shape[-2], shape[-1]
            if operand is operands[0] and len(operands) > 1:  # the weight stands on the left: transposed
                inputs, outputs = outputs, inputs
            return ProductMeasure(name, inputs, outputs, max(1, self._sizes[name] // (inputs * outputs)), flops)
        return None
