"""Choice between candidate inputs by trial: the first ones that the model's forward pass accepts on fake tensors."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import traceback
from typing import TYPE_CHECKING

import torch

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.assumptions import Assumptions, checks_of
from smp_advisor.profiling.fake import fake_copy, fake_inputs, fake_mode
from smp_advisor.profiling.gpu_kernels import gpu_kernels
from smp_advisor.profiling.known_values import TooManyOperators
from smp_advisor.profiling.module_attributes import possible_limits
from smp_advisor.profiling.patching import quiet
from smp_advisor.profiling.step import call_model
from smp_advisor.profiling.step_recorder import StepRecorder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from smp_advisor.profiling.example import ExampleInputs
    from smp_advisor.profiling.known_values import KnownValuesMode

__all__ = [
    "accepts",
    "idle_layers",
    "is_about_inputs",
    "is_about_types",
    "is_about_values",
    "source_frame",
    "working_inputs",
]

_BATCH = 7
"""No usual number of channels or columns, so that a batch is never mistaken for one sample."""
_TOKENS = 48
_LEAST_ROWS = 16
"""Smaller tables are of buckets, not of positions."""
_MOST_LIMITS = 4
_MOST_OPERATORS = 100_000
"""Operators of all trials, after which no further candidate is tried: 20 seconds of one core of 2020 if most of them
are new. Of 60 modules in users' styles none needs more than 3,200; one forward pass of Llama 8B has 4,300, one of Mamba
without its kernels 57,000."""
_MOST_OF_LIMITS = 30_000
"""Operators of trials of more tokens: ten seconds of a loop over them, whose every operator is new."""
_VALUES = (
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "_local_scalar_dense",
    "nonzero",
    ".numpy() is not supported",
    "is not supported for tensor subclasses",
)
"""Parts of the errors that a forward pass raises on fake tensors because it reads values."""
_SHAPES = re.compile(
    r"shape|size|dimension|dims|channels|indices|expected .*(tensor|input|scalar)|broadcast|dtype|divisible|reshape|"
    r"NoneType|argument|unpack|index|rank|einsum|D input|embedding|must have|padding|not None|specify",
    re.IGNORECASE,
)
"""Words of errors about a tensor of another form than the model expects."""

_TYPES = re.compile(r"scalar type|dtype|Input type|BFloat16|bfloat16|Half|weight type")
"""Words of errors about types, which autocast or 32-bit parameters avoid."""


def working_inputs(model: nn.Module, candidates: Sequence[ExampleInputs], supply: str) -> ExampleInputs:
    """The first candidate that the model accepts; if none, the first one with which the forward pass reads values.

    Parameters
    ----------
    candidates
        Inputs to try in order; the first is returned untried if it is the only one.
    supply
        What the user can pass instead, for the error's sentence.

    Raises
    ------
    ProfileError
        No candidate works. The sentence has the error of the first one, and requests inputs only if it is about them.
    """
    if len(candidates) == 1 or any(isinstance(p, torch.nn.UninitializedParameter) for p in model.parameters()):
        return candidates[0]
    mode = fake_mode()
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    failures: list[tuple[ExampleInputs, Exception]] = []
    reading: ExampleInputs | None = None
    with quiet():
        copy = fake_copy(model, mode, None).train()
        for candidate in candidates:
            try:
                _try(copy, candidate, mode, dtype)
            except (MemoryError, ImportError, OSError, RecursionError):
                raise
            except Exception as error:  # noqa: BLE001 - a model may raise anything
                failures.append((candidate, error))
                if reading is None and is_about_values(error) and _accepts_by_assumption(copy, candidate, mode, dtype):
                    reading = candidate
                if mode.operators > _MOST_OPERATORS:
                    break
            else:
                return _bounded(copy, candidate, mode, dtype)
    return reading or _decided(model, failures, supply)


def _bounded(model: nn.Module, example: ExampleInputs, mode: KnownValuesMode, dtype: torch.dtype) -> ExampleInputs:
    """The inputs with the rows of a table of positions or rotations as the most tokens, if the model refuses more."""
    rows = sorted({rows for rows in possible_limits(model) if rows >= _LEAST_ROWS}, reverse=True)[:_MOST_LIMITS]
    if not example.has_sequence or not rows or 0 < example.longest <= rows[-1]:
        return example
    # A model that loops over tokens exceeds the limit, and few tables limit it.
    with contextlib.suppress(TooManyOperators), mode.limited(_MOST_OF_LIMITS):
        for tokens in (2 * rows[0], *rows):
            if _works(model, example, mode, dtype, tokens):
                return example if tokens > rows[0] else dataclasses.replace(example, longest=tokens)
    return example


def _works(model: nn.Module, example: ExampleInputs, mode: KnownValuesMode, dtype: torch.dtype, tokens: int) -> bool:
    try:
        _try(model, example, mode, dtype, tokens)
    except TooManyOperators:
        raise
    except Exception:  # noqa: BLE001 - a model may raise anything
        return False
    return True


def _decided(model: nn.Module, failures: Sequence[tuple[ExampleInputs, Exception]], supply: str) -> ExampleInputs:
    """The first candidate that failed because the model reads values; otherwise the error of the first candidate."""
    for candidate, error in failures:
        if is_about_values(error):
            return candidate
    for _, error in failures:
        if is_about_types(error):  # right inputs in another precision
            raise error
    refused, cause = failures[0]
    if not is_about_inputs(cause):
        raise cause
    text = " ".join(str(cause).split())[:200]
    frame = source_frame(cause)
    raise ProfileError(
        f"{type(model).__name__} does not accept {refused.description}: {type(cause).__name__}: {text}"
        f"{f' ({frame})' if frame else ''}: {supply}."
    )


def accepts(model: nn.Module, example: ExampleInputs) -> bool:
    """Whether the model's forward pass accepts the inputs, or reads values, which decides nothing."""
    mode = fake_mode()
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    try:
        with quiet():
            _try(fake_copy(model, mode, None).train(), example, mode, dtype)
    except Exception as error:  # noqa: BLE001 - a model may raise anything
        return is_about_values(error)
    return True


def idle_layers(model: nn.Module, example: ExampleInputs) -> frozenset[str]:
    """Layers with parameters that a forward pass does not call; none if it fails."""
    mode = fake_mode()
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    called: set[str] = set()
    with quiet():
        copy = fake_copy(model, mode, None).train()
        layers = {name: part for name, part in copy.named_modules() if part._parameters and not part._modules}
        for name, part in layers.items():
            part.register_forward_pre_hook(lambda *_, name=name: called.add(name))
        try:
            _try(copy, example, mode, dtype)
        except Exception:  # noqa: BLE001 - a model may raise anything
            return frozenset()
    return frozenset(layers) - called


def _accepts_by_assumption(model: nn.Module, example: ExampleInputs, mode: KnownValuesMode, dtype: torch.dtype) -> bool:
    """Whether the model accepts the inputs if its checks pass and the other conditions that it reads are true."""

    def forward(assumptions: Assumptions) -> None:
        with StepRecorder({}, assumptions=assumptions):
            _try(model, example, mode, dtype)

    mode.knows_constructors = True
    try:
        forward(Assumptions(value=True, checks=checks_of(forward)))
    except Exception:  # noqa: BLE001 - a model may raise anything
        return False
    finally:
        mode.knows_constructors = False
    return True


def _try(model: nn.Module, example: ExampleInputs, mode: KnownValuesMode, dtype: torch.dtype, tokens: int = 0) -> None:
    """A forward pass of a fake model, by default on few tokens."""
    tokens = tokens or max(1, min(_TOKENS, example.longest * 3 // 4 or _TOKENS))
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(gpu_kernels("fused", lambda *_: None))
        inputs = fake_inputs(example.make(_BATCH, tokens), mode, dtype)
        stack.enter_context(mode)
        call_model(model, inputs)


def is_about_values(error: BaseException) -> bool:
    """Whether the forward pass failed because it reads values, which fake tensors do not have."""
    text = f"{type(error).__name__}: {error}"
    return any(part in text for part in _VALUES)


def is_about_types(error: BaseException) -> bool:
    """Whether the forward pass failed because it mixes types, or has no kernel for a 16-bit type."""
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if any("/quantized/" in path.replace("\\", "/") for path in frames):  # integer kernels cannot be trained
        return False
    text = str(error)
    is_about_indices = "Long" in text
    return isinstance(error, RuntimeError | ProfileError) and bool(_TYPES.search(text)) and not is_about_indices


def is_about_inputs(error: BaseException) -> bool:
    """Whether inputs of other shapes or types could avoid the error; the model's own exceptions are not about them."""
    if isinstance(error, MemoryError | ImportError | OSError | RecursionError | SystemExit):
        return False
    if "is not callable" in str(error):  # a missing activation or layer
        return False
    if isinstance(error, AssertionError | IndexError):
        return True
    if _library_frame(error) == "einops":  # a pattern of another number of dimensions
        return True
    builtin = isinstance(error, TypeError | ValueError | RuntimeError | AttributeError | KeyError)
    is_own = type(error).__module__.split(".", maxsplit=1)[0] not in {"builtins", "torch", "einops"}
    return builtin and not is_own and bool(_SHAPES.search(str(error)))


def _library_frame(error: BaseException) -> str:
    """``einops`` if the innermost frame is in that library."""
    frames = traceback.extract_tb(error.__traceback__)
    return "einops" if frames and "/einops/" in frames[-1].filename.replace("\\", "/") else ""


def source_frame(error: BaseException) -> str:
    """Innermost frame outside torch and this package: ``modeling.py:41``."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = frame.filename.replace("\\", "/")
        if "/torch/" in path or "/smp_advisor/profiling/" in path or path.startswith("<frozen"):
            continue
        return f"{path.rsplit('/', 1)[-1]}:{frame.lineno}"
    return ""
