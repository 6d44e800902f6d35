"""Fake tensors that keep the values of small tensors that are known: lengths, edges, masks of ones, scalar buffers.

A forward pass may read such values (``lengths.max().item()``, ``edges[:, mask]``); their results are then exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, _BypassDispatchCache
from torch.utils._mode_utils import no_dispatch

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from smp_advisor.profiling.failures import Assumptions


MISSING = object()
"""No result is kept."""
_UNSAFE_VIEW = torch.ops.aten._unsafe_view.default
_PLAIN = frozenset({type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, str})
_NUMBERS = frozenset({bool, int, float})


@dataclass(frozen=True, slots=True)
class _NewTensor:
    """Description of a tensor that an operator returns."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    viewed: int | None
    """Position of the operand whose storage it has; None for a new storage."""
    attributes: Mapping[str, Any]
    """Attributes of the fake tensor that PyTorch created."""


_Part = _NewTensor | int | None
"""A new tensor; the position of the operand that is returned, changed in place; or None."""


class _NotKept(Exception):  # noqa: N818 (no error: the result is computed again)
    """Raised for a result that a description does not determine."""


class OperatorReplay:
    """Results by operator and description of its operands."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._results: dict[Hashable, tuple[_Part, ...] | _Part] = {}
        mode.cache_enabled = False

    def key(self, operator: Any, operands: Sequence[Any], keywords: Mapping[str, Any]) -> Hashable | None:
        """Description of a call; None if its result may depend on more than the form of the operands."""
        parts: list[Any] = [
            operator, torch.get_default_dtype(), torch._C._get_default_device(), torch.is_inference_mode_enabled(),
        ]  # fmt: skip
        if not self._describe(operands, parts):
            return None
        if keywords:
            parts.extend(keywords)
            if not self._describe(keywords.values(), parts):
                return None
        return tuple(parts)

    def _describe(self, values: Any, parts: list[Any]) -> bool:
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if value.fake_mode is not self._mode or not _is_plain(value):
                    return False
                parts += (
                    value.dtype, value.shape, value.stride(), value.storage_offset(),
                    value.untyped_storage().nbytes(), value.fake_device, value.requires_grad,
                )  # fmt: skip
            elif kind in _NUMBERS:  # 1 and 1.0 are equal, but lead to different types
                parts += (kind, value)
            elif kind in _PLAIN:
                parts.append(value)
            elif kind is list or kind is tuple or kind is torch.Size:
                parts += (kind, len(value))
                if not self._describe(value, parts):
                    return False
            else:
                return False
        return True

    def result(self, key: Hashable, operands: Sequence[Any]) -> Any:
        """Return a new result equal to the one that is kept; `MISSING` if none is."""
        parts: Any = self._results.get(key, MISSING)
        if parts is MISSING:
            return MISSING
        with torch._C._DisableTorchDispatch():
            if type(parts) is tuple:
                return tuple([self._made(part, operands) for part in parts])
            return self._made(parts, operands)

    def add(
        self, key: Hashable, operator: Any, operands: Sequence[Any], keywords: Mapping[str, Any], result: Any
    ) -> None:
        """Keep a computed result, unless PyTorch's cache would not keep it."""
        try:
            if operator is not _UNSAFE_VIEW:  # the storage is compared below
                self._mode._validate_cache_key(operator, operands, keywords)
            if isinstance(result, tuple):  # also the named ones of norms
                self._results[key] = tuple([self._described(part, operator, operands) for part in result])
            else:
                self._results[key] = self._described(result, operator, operands)
        except (_BypassDispatchCache, _NotKept):
            return

    def _described(self, part: Any, operator: Any, operands: Sequence[Any]) -> _Part:
        if part is None:
            return None
        if type(part) is not FakeTensor or not _is_plain(part):
            raise _NotKept
        for position, operand in enumerate(operands):
            if operand is part:
                return position
        storage = part.untyped_storage()._cdata
        viewed = None
        for position, operand in enumerate(operands):
            if isinstance(operand, Tensor) and operand.untyped_storage()._cdata == storage:
                viewed = position
                break
        if viewed is None and operator.is_view:
            raise _NotKept
        described = _NewTensor(
            tuple(part.shape), part.stride(), int(part.storage_offset()), part.dtype, part.fake_device,
            part.requires_grad, viewed, dict(vars(part)),
        )  # fmt: skip
        with torch._C._DisableTorchDispatch():
            created = self._made(described, operands)
        if torch._C._dispatch_key_set(created) != torch._C._dispatch_key_set(part):
            raise _NotKept
        return described

    def _made(self, part: _Part, operands: Sequence[Any]) -> Any:
        if part is None:
            return None
        if isinstance(part, int):
            return operands[part]
        empty = torch.empty_strided(
            part.shape, part.stride, dtype=part.dtype, device="meta", requires_grad=part.requires_grad
        )
        if part.viewed is not None:
            empty.set_(operands[part.viewed].untyped_storage(), part.offset, part.shape, part.stride)
        created = Tensor._make_subclass(
            FakeTensor, empty, part.requires_grad, dispatch_device=True, device_for_backend_keys=part.device
        )
        torch._C._set_throw_on_mutable_data_ptr(created)
        vars(created).update(part.attributes)
        return created


def _is_plain(tensor: FakeTensor) -> bool:
    """Return whether shape, strides and type describe a tensor completely."""
    return (
        tensor.constant is None
        and tensor.layout is torch.strided
        and not (tensor.dtype.is_complex or tensor.is_quantized or tensor.is_neg() or tensor.is_inference())
    )


_ATEN = torch.ops.aten
_CONSTRUCTORS = frozenset({
    _ATEN.ones.default, _ATEN.zeros.default, _ATEN.full.default, _ATEN.arange.default, _ATEN.arange.start,
    _ATEN.arange.start_step, _ATEN.eye.default, _ATEN.linspace.default,
})  # fmt: skip
_ASSIGNMENT = _ATEN.fill_.Scalar
_OF_THE_MODE = _CONSTRUCTORS | {_ASSIGNMENT}
"""Operators whose results have known values, and are computed each time."""
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
        self.replay = OperatorReplay(self)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether PyTorch wraps every call for its compiler, which takes longer than a call of a known operator."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        key = self.replay.key(func, args, kwargs)
        if key is not None:
            result = self.replay.result(key, args)
            if result is not MISSING:
                return result
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if key is not None and func not in _OF_THE_MODE:
            self.replay.add(key, func, args, kwargs, result)
        return result

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
