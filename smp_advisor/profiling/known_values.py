"""Fake tensors that keep the values of small tensors that are known: lengths, edges, masks of ones, scalar buffers.

A forward pass may read such values (``lengths.max().item()``, ``edges[:, mask]``); their results are then exact.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._mode_utils import no_dispatch

from smp_advisor.profiling.operator_replay import MISSING, OperatorReplay

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from smp_advisor.profiling.assumptions import Assumptions

__all__ = ["KnownValuesMode", "TooManyOperators"]

_ATEN = torch.ops.aten
_CONSTRUCTORS = frozenset({
    _ATEN.ones.default, _ATEN.zeros.default, _ATEN.full.default, _ATEN.arange.default, _ATEN.arange.start,
    _ATEN.arange.start_step, _ATEN.eye.default, _ATEN.linspace.default,
})  # fmt: skip
_ASSIGNMENT = _ATEN.fill_.Scalar
_OF_THE_MODE = _CONSTRUCTORS | {_ASSIGNMENT}
"""Operators whose results have values that are known in one state of the mode and not in the other."""
_DRAWS = frozenset({_ATEN.rand.default, _ATEN.rand_like.default, _ATEN.uniform.default})
_TYPICAL_DRAW = 0.5
"""Value of a random scalar: a layer that is dropped with a small probability runs."""
_MOST_NUMBERS = 2**19
"""Numbers of a tensor whose values are kept: 8 edges per node for 8,192 nodes, or the corners of 120,000 anchors."""


class TooManyOperators(Exception):  # noqa: N818 (ends a trial, which is no error)
    """Raised by the operator that exceeds the limit of the mode: a loop over tokens has many."""


class KnownValuesMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Fake tensor mode that computes with the values of small tensors that are known."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.knows_constructors = False
        """Whether the results of ``ones``, ``arange`` and similar are known, too, which takes more time."""
        self.assumptions: Assumptions | None = None
        """Values of conditions, which select all or none of the elements of masks; None raises on unknown masks."""
        self.operators = 0
        """Operators of all forward passes so far: a measure of their cost that is the same on every machine."""
        self._limit: int | None = None
        self._depth = 0
        self.has_drawn = False
        """Whether a random scalar was replaced by a typical one."""
        self.replay = OperatorReplay(self)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether PyTorch wraps every call for its compiler, which takes longer than a call of a known operator."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> Any:
        # Operators that the result of another one is derived from depend on PyTorch's caches, so they do not count.
        if not self._depth:
            self.operators += 1
            if self._limit is not None and self.operators > self._limit:
                raise TooManyOperators
        self._depth += 1
        try:
            return self._result(func, types, args, kwargs or {})
        finally:
            self._depth -= 1

    def _result(self, func: Any, types: Sequence[type], args: Sequence[object], kwargs: Mapping[str, object]) -> Any:
        key = self.replay.key(func, args, kwargs)
        if key is not None:
            result = self.replay.result(key, args)
            if result is not MISSING:
                return result
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if key is not None and func not in _OF_THE_MODE:
            self.replay.add(key, func, args, kwargs, result)
        return result

    @contextlib.contextmanager
    def limited(self, most_operators: int) -> Iterator[None]:
        """Raise `TooManyOperators` at the first operator of the block after so many."""
        self._limit = self.operators + most_operators
        try:
            yield
        finally:
            self._limit = None

    def with_values(self, tensor: Tensor) -> Tensor:
        """Fake tensor with the values of a real one."""
        return self.fake_tensor_converter.from_real_tensor(self, tensor, make_constant=True)

    def keeps(self, tensor: Tensor) -> bool:
        """Whether the values of a real tensor are kept."""
        return (
            tensor.numel() <= _MOST_NUMBERS
            and tensor.layout == torch.strided
            and tensor.device.type == "cpu"
            and type(tensor) is Tensor
        )

    def may_turn_const(self, t: Tensor) -> bool:
        """Whether the result of known values is known, too (an interface of PyTorch)."""
        return not self.is_our_fake(t) and self.keeps(t)

    def dispatch(
        self, func: Any, types: Sequence[type], args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> Any:
        """Result of an operator (an interface of PyTorch)."""
        if func is _ATEN.nonzero.default and self.assumptions is not None and getattr(args[0], "constant", 0) is None:
            mask: Any = args[0]
            rows = mask.numel() if self.assumptions.assumed(func, mask) else 0
            with self:
                return torch.empty(rows, mask.ndim, dtype=torch.int64)
        result: Any = super().dispatch(func, types, args, kwargs or {})
        if func in _DRAWS and result.numel() == 1:
            self.has_drawn = True
            with no_dispatch():
                value = torch.full(tuple(result.shape), _TYPICAL_DRAW, dtype=result.dtype)
            return self.with_values(value)
        if func is _ATEN.uniform_.default and result.numel() == 1:
            self.has_drawn = True
            self._know(result, _TYPICAL_DRAW)
        elif func is _ASSIGNMENT and self.knows_constructors and result.constant is None:
            self._know(result, args[1])
        if self.knows_constructors and func in _CONSTRUCTORS and result.numel() <= 2 * _MOST_NUMBERS:
            with no_dispatch():
                value = func(*args, **{**(kwargs or {}), "device": "cpu"})
            return self.with_values(value)
        return result

    def _know(self, tensor: Any, value: Any) -> None:
        """Keep the values of a tensor that an operator set to one number in place, unless it is a part of another."""
        if tensor.numel() <= _MOST_NUMBERS and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize:
            with no_dispatch():
                tensor.constant = torch.full(tuple(tensor.shape), value, dtype=tensor.dtype)
            self.fake_tensor_converter.add_constant_storage_mapping(tensor)
