"""The plan on screen and the named snapshots of an advice as plain data, next to the recommendation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.storage.plain import plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.advice import Advice
    from smp_advisor.live.control_state import ControlState
    from smp_advisor.live.history import Entry

__all__ = ["screen_of"]


def screen_of(recommended: Advice, state: ControlState, snapshots: Mapping[str, Entry]) -> dict[str, Any]:
    """The plan on screen with its job, and the snapshots."""
    entries = [
        {
            "name": name,
            "recommended": None if entry.recommended is recommended else plain(entry.recommended),
            **_plain(entry.state),
        }
        for name, entry in snapshots.items()
    ]
    return {"screen": _plain(state), "snapshots": entries}


def _plain(state: ControlState) -> dict[str, Any]:
    return {"plan": plain(state.plan), "job": plain(state.advice.job)}
