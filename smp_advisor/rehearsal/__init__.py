"""Rehearsals: a training script runs here, small and unchanged, before it runs on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smp_advisor.rehearsal.report import KINDS, Observed, Rehearsal
    from smp_advisor.rehearsal.run import rehearse

__all__ = ["KINDS", "Observed", "Rehearsal", "rehearse"]


def __getattr__(name: str) -> Any:
    # The child, which may be of another environment, needs its own modules only.
    if name not in __all__:
        raise AttributeError(name)
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{'run' if name == 'rehearse' else 'report'}"), name)
