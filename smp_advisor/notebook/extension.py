"""``%load_ext smp_advisor`` and ``%unload_ext smp_advisor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from smp_advisor.notebook.completion import complete_options
from smp_advisor.notebook.magics import AdvisorMagics
from smp_advisor.notebook.reload_hint import reload_hint

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["MAGICS", "load", "unload"]

MAGICS = ("smp_advise", "smp_export", "smp_check")

_loaded: WeakKeyDictionary[Any, Callable[[], None]] = WeakKeyDictionary()


def load(shell: InteractiveShell) -> None:
    """Register the magics and their completion; a second time does nothing."""
    if shell in _loaded:
        return
    magics = AdvisorMagics(shell)
    shell.register_magics(magics)
    _loaded[shell] = complete_options(shell, {name: getattr(magics, name) for name in MAGICS})
    hint = reload_hint()
    if hint:
        print(hint)  # noqa: T201


def unload(shell: InteractiveShell) -> None:
    """Take the magics away again."""
    undo = _loaded.pop(shell, None)
    if undo is None:
        return
    undo()
    for name in MAGICS:
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop(name, None)
    shell.magics_manager.registry.pop("AdvisorMagics", None)
