"""Causes of a failed forward pass, and assumed values of conditions that read tensors, which fake ones do not have."""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from smp_advisor.errors import ProfileError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


_MEANINGS = (
    ("DataDependentOutputException", "its forward pass depends on a tensor's values"),
    ("DynamicOutputShapeException", "its forward pass creates shapes that depend on values"),
    ("_local_scalar_dense", "its forward pass depends on a tensor's values"),
    ("nonzero", "its forward pass creates shapes that depend on values"),
    (".numpy() is not supported", "its forward pass converts tensors to NumPy"),
    ("is not supported for tensor subclasses", "its forward pass converts tensors to Python values"),
)
"""Parts of the errors that a forward pass raises on fake tensors because it reads values, and what they mean."""
_SHAPES = re.compile(
    r"shape|size|dimension|dims|channels|indices|expected .*(tensor|input|scalar)|broadcast|dtype|divisible|reshape|"
    r"NoneType|argument|unpack|index|rank|einsum|D input|embedding|must have|padding|not None|specify",
    re.IGNORECASE,
)
"""Words of errors about a tensor of another form than the model expects."""
_TYPES = re.compile(r"scalar type|dtype|Input type|BFloat16|bfloat16|Half|weight type")
"""Words of errors about types, which autocast or 32-bit parameters avoid."""


def is_about_values(error: BaseException) -> bool:
    """Return whether the forward pass failed because it reads values, which fake tensors do not have."""
    text = f"{type(error).__name__}: {error}"
    return any(part in text for part, _ in _MEANINGS)


def is_about_types(error: BaseException) -> bool:
    """Return whether the forward pass failed because it mixes types, or has no kernel for a 16-bit type."""
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
    is_of_einops = any("/einops/" in frame.filename for frame in traceback.extract_tb(error.__traceback__)[-1:])
    if isinstance(error, AssertionError | IndexError) or is_of_einops:
        return True
    builtin = isinstance(error, TypeError | ValueError | RuntimeError | AttributeError | KeyError)
    is_own = type(error).__module__.split(".", maxsplit=1)[0] not in {"builtins", "torch"}
    return builtin and not is_own and bool(_SHAPES.search(str(error)))


def source_frame(error: BaseException) -> str:
    """Innermost frame outside torch and this package: ``modeling.py:41``."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not _is_internal(frame.filename):
            return f"{frame.filename.replace(chr(92), '/').rsplit('/', 1)[-1]}:{frame.lineno}"
    return ""


def reason(error: BaseException) -> str:
    """Meaning of an error, with the line of the model's own code that raised it."""
    if isinstance(error, ProfileError):
        return error.sentence.rstrip(".")
    text = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160] if str(error).strip() else ''}"
    meaning = next((meaning for sign, meaning in _MEANINGS if sign in text), text.rstrip(": ."))
    frame = source_frame(error)
    return f"{meaning} ({frame})" if frame else meaning


_MOST_READS = 1_000
"""Times that one condition is read in a forward pass before it is the condition of a loop without an end."""


class EndlessLoopError(ProfileError):
    """A forward pass whose loop does not end by itself; the sentence names the line of the loop."""

    @classmethod
    def here(cls, count: str) -> EndlessLoopError:
        """Return the error of the user's code that runs now."""
        path, _, line = _site()
        place = f"{path.replace(chr(92), '/').rsplit('/', 1)[-1]}:{line}"
        return cls(
            f"the code at `{linecache.getline(path, line).strip()}` ({place}) did not end within {count}: bound it,"
            " such as with a largest number of passes",
            kind="error",
        )


_EQUAL = torch.ops.aten.equal.default
_MOST_SITES = 12
"""Checks of a model that are found, with a forward pass for each."""
_LINES = 6
"""A check raises at its condition's line or within this many lines after it."""

Site = tuple[str, str, int]
"""File, function and line of a condition."""


@dataclass(slots=True)
class Assumptions:
    """Values of data-dependent conditions, by their place in the model's source."""

    value: bool
    checks: dict[Site, bool] = field(default_factory=dict)
    sites: dict[Site, str] = field(default_factory=dict)
    reads: Counter[Site] = field(default_factory=Counter)
    """Reads of each condition in the current forward pass."""

    def assumed(self, operator: Any, tensor: Tensor) -> bool | int | float:
        """Return the value of a condition that the model reads now."""
        site = _site()
        self.reads[site] += 1
        if self.reads[site] > _MOST_READS:
            raise EndlessLoopError.here(f"{_MOST_READS:,} passes")
        self.sites.setdefault(site, f"{operator} of {tuple(tensor.shape)} {tensor.dtype}")
        value = self.checks.get(site, self.value)
        if operator is _EQUAL or tensor.dtype == torch.bool:
            return value
        return 1.0 if tensor.is_floating_point() else int(value)

    @property
    def branches(self) -> list[str]:
        """Texts of the conditions that are no known checks."""
        return [text for site, text in self.sites.items() if site not in self.checks]

    def raised(self, error: BaseException) -> Site | None:
        """Return the condition whose value made the model itself raise the error; None if it is no check's error."""
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_internal(frame.filename)]
        if not frames:
            return None
        last = frames[-1]
        sites = [
            (path, function, line)
            for path, function, line in self.sites
            if (path, function) == (last.filename, last.name) and line <= (last.lineno or 0) <= line + _LINES
        ]
        source = (last.line or "").lstrip()
        is_own = source.startswith(("raise", "assert")) or (sites and sites[-1][2] == last.lineno)
        return sites[-1] if sites and is_own else None


def checks_of(forward: Callable[[Assumptions], object]) -> dict[Site, bool]:
    """Return the values with which the checks of a model pass: the others than those that raise their errors."""
    checks: dict[Site, bool] = {}
    for value in (True, False):
        for _ in range(_MOST_SITES):
            assumptions, site = Assumptions(value=value, checks=checks), None
            try:
                forward(assumptions)
            except EndlessLoopError:
                raise
            except Exception as error:  # noqa: BLE001 - a model may raise anything
                site = assumptions.raised(error)
            if site is None or site in checks:
                break
            checks[site] = not value
    return checks


def _site() -> Site:
    """Place in the innermost frame outside torch and this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_internal(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno


def _is_internal(path: str) -> bool:
    path = path.replace("\\", "/")
    return "/torch/" in path or "/smp_advisor/profiling/" in path or path.startswith("<frozen")
