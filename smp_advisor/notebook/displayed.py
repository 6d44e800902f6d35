"""The advisor that a notebook displayed last, which the magics export, check and profile."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from smp_advisor.notebook.advisor import Advisor

__all__ = ["displayed_last", "set_displayed_last"]

_last: WeakKeyDictionary[InteractiveShell, Advisor] = WeakKeyDictionary()


def displayed_last(shell: InteractiveShell | None) -> Advisor | None:
    """The advisor that was displayed last in a notebook; None before the first."""
    return None if shell is None else _last.get(shell)


def set_displayed_last(shell: InteractiveShell | None, advisor: Advisor) -> None:
    """Make an advisor that of the magics."""
    if shell is not None:
        _last[shell] = advisor
