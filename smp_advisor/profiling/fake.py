"""Models with fake tensors as parameters, built on the meta device or copied from a live model."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.gpu_kernels import without_initialization
from smp_advisor.profiling.structure import ties
from smp_advisor.sandbox.limits import default_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smp_advisor.profiling.known_values import KnownValuesMode
    from smp_advisor.profiling.profiled_model import ProfiledModel


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set the default floating-point dtype inside the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def build_fake(build: Callable[[], nn.Module], mode: KnownValuesMode, dtype: torch.dtype) -> nn.Module:
    """Build a model on the meta device, and copy it with fake tensors.

    Building under the fake mode itself breaks dtype conversions and constructors that read values.
    """
    with default_dtype(dtype), torch.device("meta"), without_initialization():
        model = build()
    return fake_copy(model, mode, None)


def fake_copy(model: nn.Module, mode: KnownValuesMode, dtype: torch.dtype | None) -> nn.Module:
    """Copy a live model with fake tensors; the model itself is unchanged and no memory is allocated."""
    return copy_with(model, lambda tensor: _fake(tensor, mode, dtype))


def copy_with(model: nn.Module, convert: Callable[[Tensor], Tensor]) -> nn.Module:
    """Copy a model, with other tensors than those of its modules: `convert` makes each once."""
    copies: dict[int, Any] = {}
    for module in model.modules():
        for tensor in [*module._parameters.values(), *module._buffers.values(), *vars(module).values()]:
            if isinstance(tensor, Tensor) and id(tensor) not in copies:
                copies[id(tensor)] = convert(tensor)
    return copy.deepcopy(model, copies)


def real_copy(profiled: ProfiledModel, dtype: torch.dtype, attention: str) -> nn.Module:
    """Copy of a live module, or a new model of a configuration, with real tensors, to run real steps of it."""
    model = profiled.module
    if model is None:
        with torch.device("meta"), without_initialization():
            model = profiled.build(attention=attention)
    needed = 3 * dtype.itemsize * sum(p.numel() for p in model.parameters())  # copy, gradients, activations
    available = default_memory_bytes()
    if needed > available:
        raise ProfileError(
            f"a real step of the full model needs {needed / 2**30:.3g} GiB, over the available "
            f"{available / 2**30:.3g} GiB",
            kind="error",
        )
    if profiled.module is None:
        torch.manual_seed(0)
        with default_dtype(dtype):
            return profiled.build(attention=attention)
    return materialized(copy.deepcopy(model)).to(device="cpu", dtype=dtype)


def materialized(model: nn.Module) -> nn.Module:
    """Return the model itself; if it is on the meta device, with random weights, and its ties preserved."""
    if any(p.is_meta for p in model.parameters()):
        groups = ties(model)
        model.to_empty(device="cpu")
        for first, *copies in groups:  # which to_empty separates
            for name in copies:
                path, _, leaf = name.rpartition(".")
                model.get_submodule(path).register_parameter(leaf, model.get_parameter(first))
        torch.manual_seed(0)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.02) if parameter.ndim > 1 else nn.init.ones_(parameter)
        for buffer in model.buffers():  # frequencies and statistics, or positions and counters
            buffer.fill_(float(buffer.is_floating_point()))
    return model


_INTEGERS = (torch.int64, torch.int32, torch.bool)
_MOST_INTEGERS = 1024
_MOST_NUMBERS = 64
"""Floating-point numbers of an input whose values are kept: boxes and keypoints of an image."""
_TRAINING_TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def _fake(tensor: Tensor, mode: KnownValuesMode, dtype: torch.dtype | None) -> Tensor:
    kind = dtype if dtype is not None and tensor.dtype in _TRAINING_TYPES else tensor.dtype
    if tensor.numel() <= (_MOST_INTEGERS if tensor.dtype in _INTEGERS else 1) and mode.keeps(tensor):
        return mode.with_values(tensor.detach().to(dtype=kind, copy=True))  # a counter, a temperature, a list of sizes
    with mode:
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind, device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(fake, requires_grad=tensor.requires_grad)
    return fake


def fake_inputs(inputs: Any, mode: KnownValuesMode, dtype: torch.dtype) -> Any:
    """Fake tensors with the shapes of the inputs; floating-point tensors get the training dtype.

    Integers and a few numbers that are not on the meta device, such as lengths, edges and boxes, keep their values.
    """
    from torch.utils._pytree import tree_map

    def convert(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        kind = dtype if value.is_floating_point() else value.dtype
        is_small = value.dtype in _INTEGERS or (value.numel() <= _MOST_NUMBERS and not value.is_meta)
        if is_small and mode.keeps(value):
            return mode.with_values(value.detach().to(dtype=kind, copy=True))
        with mode:
            return torch.empty(value.shape, dtype=kind, device="cpu")

    return tree_map(convert, inputs)
