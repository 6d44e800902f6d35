"""Results of fake operators that were computed before: a training step repeats most of its operators.

PyTorch's own cache of such results takes most of the time of an operator to describe its operands. This one keeps the
results that PyTorch's would keep, of dense tensors without known values, and describes only what these depend on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, _BypassDispatchCache

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

__all__ = ["MISSING", "OperatorReplay"]

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
    """Results by operator and description of its operands.

    Parameters
    ----------
    mode
        The fake tensor mode whose operators are replayed.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._results: dict[Hashable, tuple[_Part, ...] | _Part] = {}
        mode.cache_enabled = False
        self._is_active = True

    def stop(self) -> None:
        """Leave all results to PyTorch's cache, for code that compares addresses of tensors (FSDP1)."""
        self._is_active = False
        self._mode.cache_enabled = True

    def key(self, operator: Any, operands: Sequence[Any], keywords: Mapping[str, Any]) -> Hashable | None:
        """Description of a call; None if its result may depend on more than the form of the operands."""
        if not self._is_active:
            return None
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

    def replayed(self, operator: Any, operands: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """A new result of a call that was computed before; `MISSING` if it was not."""
        key = self.key(operator, operands, keywords)
        return MISSING if key is None else self.result(key, operands)

    def result(self, key: Hashable, operands: Sequence[Any]) -> Any:
        """A new result equal to the one that is kept; `MISSING` if none is."""
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
            if type(result) is tuple:
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
    """Whether shape, strides and type describe a tensor completely."""
    return (
        tensor.constant is None
        and tensor.layout is torch.strided
        and not (tensor.dtype.is_complex or tensor.is_quantized or tensor.is_neg() or tensor.is_inference())
    )
