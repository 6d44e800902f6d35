"""``%load_ext smp_advisor`` and ``%unload_ext smp_advisor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from smp_advisor.notebook.calibration_magics import CalibrationMagics
from smp_advisor.notebook.cluster_magics import ClusterMagics
from smp_advisor.notebook.completion import complete_options
from smp_advisor.notebook.magics import AdvisorMagics
from smp_advisor.notebook.profile_magics import ProfileMagics
from smp_advisor.notebook.reload_hint import reload_hint

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["MAGICS", "load", "unload"]

MAGICS = ("smp_advise", "smp_export", "smp_check", "smp_profile", "smp_local", "smp_calibrate", "smp_clusters")
_CLASSES = (AdvisorMagics, ProfileMagics, CalibrationMagics, ClusterMagics)

_loaded: WeakKeyDictionary[Any, Callable[[], None]] = WeakKeyDictionary()


def load(shell: InteractiveShell) -> None:
    """Register the magics and their completion. A second call does nothing."""
    if shell in _loaded:
        return
    groups = [group(shell) for group in _CLASSES]
    shell.register_magics(*groups)
    magics = {name: getattr(group, name) for name in MAGICS for group in groups if hasattr(group, name)}
    _loaded[shell] = complete_options(shell, magics)
    hint = reload_hint()
    if hint:
        print(hint)  # noqa: T201


def unload(shell: InteractiveShell) -> None:
    """Remove the magics and their completion."""
    undo = _loaded.pop(shell, None)
    if undo is None:
        return
    undo()
    for name in MAGICS:
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop(name, None)
    for group in _CLASSES:
        shell.magics_manager.registry.pop(group.__name__, None)
