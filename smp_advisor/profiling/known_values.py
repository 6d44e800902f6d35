"""Fake tensors that keep the values of small tensors that are known: lengths, edges, masks of ones, scalar buffers.

A forward pass may read such values (``lengths.max().item()``, ``edges[:, mask]``); their results are then exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._mode_utils import no_dispatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smp_advisor.profiling.failures import Assumptions


_ATEN = torch.ops.aten
_CONSTRUCTORS = frozenset({
    _ATEN.ones.default, _ATEN.zeros.default, _ATEN.full.default, _ATEN.arange.default, _ATEN.arange.start,
    _ATEN.arange.start_step, _ATEN.eye.default, _ATEN.linspace.default,
})  # fmt: skip
_ASSIGNMENT = _ATEN.fill_.Scalar
_DRAWS = frozenset({_ATEN.rand.default, _ATEN.rand_like.default, _ATEN.uniform.default})
_TYPICAL_DRAW = 0.5
"""Value of a random scalar: a layer that is dropped with a small probability runs."""
_MOST_NUMBERS = 2**19
"""Numbers of a tensor whose values are kept: 8 edges per node for 8,192 nodes, or the corners of 120,000 anchors."""


class KnownValuesMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Fake tensor mode that computes with the values of small tensors that are known."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.assumptions: Assumptions | None = None
        """Values of conditions, which select all or none of the elements of masks; None raises on unknown masks."""
        self.has_drawn = False
        """Whether a random scalar was replaced by a typical one."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether PyTorch wraps every call for its compiler, which takes longer than a call of a known operator."""
        return False

    def with_values(self, tensor: Tensor) -> Tensor:
        """Fake tensor with the values of a real one."""
        return self.fake_tensor_converter.from_real_tensor(self, tensor, make_constant=True)

    def keeps(self, tensor: Tensor) -> bool:
        """Return whether the values of a real tensor are kept."""
        return (
            tensor.numel() <= _MOST_NUMBERS
            and tensor.layout == torch.strided
            and tensor.device.type == "cpu"
            and type(tensor) is Tensor
        )

    def may_turn_const(self, t: Tensor) -> bool:
        """Return whether the result of known values is known, too (an interface of PyTorch)."""
        return not self.is_our_fake(t) and self.keeps(t)

    def dispatch(
        self, func: Any, types: Sequence[type], args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> Any:
        """Return the result of an operator (an interface of PyTorch)."""
        if func is _ATEN.nonzero.default and self.assumptions is not None and getattr(args[0], "constant", 0) is None:
            mask: Any = args[0]
            rows = mask.numel() if self.assumptions.assumed(func, mask) else 0
            with self:
                return torch.empty(rows, mask.ndim, dtype=torch.int64)
        result: Any = super().dispatch(func, types, args, kwargs or {})
        # One drawn number decides branches, as of layer drop: the typical draw stands for it.
        if func in _DRAWS and result.numel() == 1:
            self.has_drawn = True
            with no_dispatch():
                value = torch.full(tuple(result.shape), _TYPICAL_DRAW, dtype=result.dtype)
            return self.with_values(value)
        if func is _ATEN.uniform_.default and result.numel() == 1:
            self.has_drawn = True
            self._know(result, _TYPICAL_DRAW)
        elif func is _ASSIGNMENT and result.constant is None:
            self._know(result, args[1])
        if func in _CONSTRUCTORS and result.numel() <= 2 * _MOST_NUMBERS:
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
