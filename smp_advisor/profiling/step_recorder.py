"""Records live storages, FLOPs and matrix products of a step, per block."""

from __future__ import annotations

import weakref
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from smp_advisor.profiling.failures import EndlessLoopError
from smp_advisor.profiling.flop_formulas import computes_products, flop_formula
from smp_advisor.profiling.operator_log import storage_key
from smp_advisor.profiling.parts import AttentionProfile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from smp_advisor.profiling.failures import Assumptions
    from smp_advisor.profiling.operator_log import OperatorLog


_ATEN = torch.ops.aten
_CONDITIONS = (_ATEN._local_scalar_dense.default, _ATEN.equal.default)
"""Operators that read a tensor's value."""
_OF_ONE_TYPE = frozenset({_ATEN.mm, _ATEN.addmm, _ATEN.bmm, _ATEN.baddbmm})
"""Products that refuse operands of different types on real tensors, but not on fake ones."""
_MOST_OPERATIONS = 100_000
"""Operators of one step, which end a loop without an end. Those of Mamba without its kernels have
7,000 at the sizes that are traced."""
_DEVICE = torch.ops.prim.device.default
"""Reads the device of a fake tensor; autograd calls it for every operand."""


@dataclass(slots=True)
class ProductMeasure:
    """Matrix product with one weight."""

    name: str
    inputs: int
    outputs: int
    experts: int
    flops: int


@dataclass(slots=True)
class BlockMeasure:
    """Measurements of one block in a step."""

    saved_bytes: int = 0
    input_bytes: int = 0
    forward_flops: int = 0
    backward_flops: int = 0
    calls: int = 0
    hidden: int = 0
    products: list[ProductMeasure] = field(default_factory=list)
    attentions: list[AttentionProfile] = field(default_factory=list)
    attention_flops: int = 0
    """Forward FLOPs of attention kernels and of products without a weight."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Live memory between two marks."""

    phase: str
    block: str
    """Path of the block, "" between blocks."""
    change_bytes: int
    rise_bytes: int


class StepRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that records a step operator by operator."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        *,
        assumptions: Assumptions | None = None,
        log: OperatorLog | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.log = log
        self.assumptions = assumptions
        self.phase = "forward"
        self.block = ""
        self.blocks: dict[str, BlockMeasure] = defaultdict(BlockMeasure)
        self.flops: dict[str, int] = defaultdict(int)
        self.operations = 0
        self.uncounted: dict[str, None] = {}
        """Operators that may multiply matrices and have no FLOP formula, in order."""
        self.live_bytes = 0
        self.peak_bytes = 0
        self.intervals: list[Interval] = []
        self._live: dict[int, int] = {}
        self._references: dict[int, weakref.ref[Any]] = {}
        self._start_bytes = 0
        self._stretch_peak = 0
        self._sizes = {name: tensor.numel() for name, tensor in parameters.items()}
        self._weights: dict[int, str] = {}
        for name, tensor in parameters.items():
            key = storage_key(tensor)
            if key is not None:
                self._weights[key] = name

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return whether PyTorch wraps every call for its compiler, which doubles the time of a call."""
        return False

    def track(self, tensors: Iterable[Any]) -> None:
        """Count tensors that exist before the step."""
        for tensor in tensors:
            self._add(tensor)

    def mark(self, phase: str, block: str = "") -> None:
        """End the current interval and begin the next one."""
        self.intervals.append(
            Interval(
                self.phase, self.block, self.live_bytes - self._start_bytes, self._stretch_peak - self._start_bytes
            )
        )
        self.phase, self.block = phase, block
        self._start_bytes = self._stretch_peak = self.live_bytes

    def restart(self, phase: str) -> None:
        """Begin a step: clear the intervals, the peak, and the figures of the step before."""
        self.intervals.clear()
        self.blocks.clear()
        self.flops.clear()
        if self.log is not None:
            self.log.clear()
        self.phase, self.block = phase, ""
        self._start_bytes = self._stretch_peak = self.peak_bytes = self.live_bytes

    def on_attention(self, query: Tensor, key: Tensor, value: Tensor, causal: bool, dropout: float) -> None:  # noqa: FBT001
        """Record the shape of an attention."""
        if query.ndim >= 3 and self.phase == "forward":
            sizes = {"heads": query.shape[-3], "kv_heads": key.shape[-3]}
            widths = {"head_dim": query.shape[-1], "value_dim": value.shape[-1]}
            shape = AttentionProfile(**sizes, **widths, causal=causal, dropout=dropout > 0)
            self.blocks[self.block].attentions.append(shape)

    def on_launches(self, launches: int) -> None:
        """Record launches of recurrent layers."""
        if self.log is not None:
            self.log.wait(self.phase, launches)

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
        self._references[key] = weakref.ref(storage, lambda _: self._remove(key))
        if self.log is not None and self.phase == "forward":
            self.log.make(key, size)
        self._stretch_peak = max(self._stretch_peak, self.live_bytes)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _remove(self, key: int) -> None:
        self.live_bytes -= self._live.pop(key, 0)
        self._references.pop(key, None)
        self._weights.pop(key, None)
        if self.log is not None:
            self.log.free(key)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE and isinstance(args[0], FakeTensor) and not args[0].fake_mode.in_kernel_invocation:
            return args[0].fake_device  # more than half of all calls
        kwargs = kwargs or {}
        if self.assumptions is not None and func in _CONDITIONS and getattr(args[0], "constant", None) is None:
            return self.assumptions.assumed(func, args[0])
        packet = func._overloadpacket
        if packet in _OF_ONE_TYPE and len({value.dtype for value in args if isinstance(value, Tensor)}) > 1:
            types_text = ", ".join(str(value.dtype) for value in args if isinstance(value, Tensor))
            raise RuntimeError(f"expected operands of {packet} with the same dtype, not {types_text}")
        result = func(*args, **kwargs)
        self._count_operation()
        if packet is _ATEN._to_copy:
            self._record_cast(args[0], result)
        formula = flop_formula(packet)
        flops = 0 if formula is None else formula(*args, **kwargs, out_val=result)
        if self.log is not None and self.phase != "optimizer":
            self.log.add(self.phase, func, args, result, flops)
        if formula is not None:
            self._count(packet, args, flops)
        elif (
            self.phase != "optimizer"
            and computes_products(func, has_weight=True)
            and computes_products(func, has_weight=self._has_weight(args))
        ):
            self.uncounted[str(packet)] = None
        if isinstance(result, Tensor):
            self._add(result)
        else:
            for leaf in tree_leaves(result):
                self._add(leaf)
        return result

    def _count_operation(self) -> None:
        self.operations += 1
        if self.operations > _MOST_OPERATIONS:
            raise EndlessLoopError.here(f"{_MOST_OPERATIONS:,} operators")

    def _has_weight(self, args: tuple[Any, ...]) -> bool:
        return any(
            isinstance(value, Tensor) and value.ndim >= 2 and (storage_key(value) or -1) in self._weights
            for value in args
        )

    def _record_cast(self, source: Tensor, copy: Tensor) -> None:
        """Treat a 16-bit copy of a weight as the weight itself."""
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
        """Product with a weight; None if no operand is one."""
        operands = [value for value in args if isinstance(value, Tensor) and value.ndim >= 2]
        for operand in reversed(operands):
            name = self._weights.get(storage_key(operand) or -1)
            if name is None:
                continue
            shape = operand.shape
            if "conv" in str(packet):  # [outputs, inputs / groups, kernel...]
                return ProductMeasure(name, operand.numel() // shape[0], shape[0], 1, flops)
            inputs, outputs = shape[-2], shape[-1]
            if operand is operands[0] and len(operands) > 1:  # the weight is the left operand: transposed
                inputs, outputs = outputs, inputs
            return ProductMeasure(name, inputs, outputs, max(1, self._sizes[name] // (inputs * outputs)), flops)
        return None
