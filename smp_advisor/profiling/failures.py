"""Causes of a failed forward pass: the input, the module, types of 16 bits, or values that fake tensors do not have."""

from __future__ import annotations

import re
import traceback

from smp_advisor.errors import ProfileError

__all__ = ["is_about_inputs", "is_about_types", "is_about_values", "reason", "source_frame"]

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
    if isinstance(error, AssertionError | IndexError) or type(error).__module__.startswith("einops"):
        return True
    builtin = isinstance(error, TypeError | ValueError | RuntimeError | AttributeError | KeyError)
    is_own = type(error).__module__.split(".", maxsplit=1)[0] not in {"builtins", "torch"}
    return builtin and not is_own and bool(_SHAPES.search(str(error)))


def source_frame(error: BaseException) -> str:
    """Innermost frame outside torch and this package: ``modeling.py:41``."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = frame.filename.replace("\\", "/")
        if "/torch/" in path or "/smp_advisor/profiling/" in path or path.startswith("<frozen"):
            continue
        return f"{path.rsplit('/', 1)[-1]}:{frame.lineno}"
    return ""


_MEANINGS = (
    ("DataDependentOutputException", "its forward pass depends on a tensor's values"),
    ("DynamicOutputShapeException", "its forward pass creates shapes that depend on values"),
    ("_local_scalar_dense", "its forward pass depends on a tensor's values"),
    ("nonzero", "its forward pass creates shapes that depend on values"),
    (".numpy() is not supported", "its forward pass converts tensors to NumPy"),
    ("is not supported for tensor subclasses", "its forward pass converts tensors to Python values"),
)


def reason(error: BaseException) -> str:
    """Meaning of an error, with the line of the model's own code that raised it."""
    if isinstance(error, ProfileError):
        return error.sentence.rstrip(".")
    text = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160] if str(error).strip() else ''}"
    meaning = next((meaning for sign, meaning in _MEANINGS if sign in text), text.rstrip(": ."))
    frame = source_frame(error)
    return f"{meaning} ({frame})" if frame else meaning
