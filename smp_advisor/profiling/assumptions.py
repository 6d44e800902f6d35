"""Assumed values of conditions that a forward pass reads from tensors, which fake tensors do not have.

Most such conditions are checks: ``assert x.isfinite().all()``, or ``if labels.max() >= classes: raise``. A trace that
assumes the value with which a check passes is exact. Others are branches: a trace with one of their values may skip a
part of the model.
"""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["Assumptions", "Site", "checks_of"]

_EQUAL = torch.ops.aten.equal.default
_MOST_SITES = 12
"""Conditions in the source that are examined, one or two forward passes each."""
_LINES = 6
"""A check raises at its condition's line or within this many lines after it."""

Site = tuple[str, str, int]
"""File, function and line of a condition."""


@dataclass(slots=True)
class Assumptions:
    """Values of data-dependent conditions, by their place in the model's source.

    Attributes
    ----------
    value
        Value of the conditions that are no known checks.
    checks
        Values with which known checks pass.
    sites
        Conditions that were read, with a text for the user, in order.
    """

    value: bool
    checks: dict[Site, bool] = field(default_factory=dict)
    sites: dict[Site, str] = field(default_factory=dict)

    def assumed(self, operator: Any, tensor: Tensor) -> bool | int | float:
        """Value of a condition that the model reads now."""
        site = _site()
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
        """The condition whose value made the model itself raise the error; None if it is no check's error."""
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


def checks_of(forward: Callable[[Assumptions], None]) -> dict[Site, bool]:
    """Values with which the checks of a model pass.

    Parameters
    ----------
    forward
        A forward pass with assumed values; it raises what the model raises.
    """
    checks: dict[Site, bool] = {}
    passed = Assumptions(value=True)
    for _ in range(_MOST_SITES):
        passed = Assumptions(value=True, checks=checks)
        site = _failing(forward, passed)
        if site is None or site in checks:
            break
        checks[site] = False
    for site in [site for site in passed.sites if site not in checks][:_MOST_SITES]:
        if _failing(forward, Assumptions(value=True, checks={**checks, site: False})) == site:
            checks[site] = True
    return checks


def _failing(forward: Callable[[Assumptions], None], assumptions: Assumptions) -> Site | None:
    """The check that does not pass, if the forward pass raises its error."""
    try:
        forward(assumptions)
    except Exception as error:  # noqa: BLE001 - a model may raise anything
        return assumptions.raised(error)
    return None


def _site() -> Site:
    """Place in the innermost frame outside torch and this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_internal(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno


def _is_internal(path: str) -> bool:
    path = path.replace("\\", "/")
    return "/torch/" in path or "/smp_advisor/profiling/" in path or path.startswith("<frozen")
