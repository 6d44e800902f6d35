"""Live advice from its plain data in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.advice import Advice
from smp_advisor.errors import AdvisorError, StorageError
from smp_advisor.libraries.plan import Plan
from smp_advisor.live import control_state
from smp_advisor.live.history import Entry
from smp_advisor.live.live_advice import SNAPSHOTS, LiveAdvice
from smp_advisor.live.settings import settings_of
from smp_advisor.storage.plain import from_plain
from smp_advisor.workload.job import Job

if TYPE_CHECKING:
    from smp_advisor.live.control_state import ControlState

__all__ = ["live_advice"]

_SCREEN = {"plan", "job"}
_SNAPSHOT = {"name", "recommended", *_SCREEN}


def live_advice(value: Advice, screen: Any, snapshots: Any) -> LiveAdvice:
    """The advice with what was on screen.

    Raises
    ------
    StorageError
        The plan on screen or a snapshot is not valid.
    """
    if not isinstance(snapshots, list) or len(snapshots) > SNAPSHOTS:
        raise StorageError(f"The stored snapshots must be a list of at most {SNAPSHOTS}.")
    state = None if screen is None else _state(value, screen, _SCREEN)
    return LiveAdvice(value, state, dict(_snapshot(value, data) for data in snapshots))


def _snapshot(value: Advice, data: Any) -> tuple[str, Entry]:
    name = data.get("name") if isinstance(data, dict) else None
    if not isinstance(name, str):
        raise StorageError("A stored snapshot lacks its name.")
    recommended = value if data.get("recommended") is None else from_plain(data["recommended"], Advice, "snapshots")
    return name, Entry(recommended=recommended, state=_state(recommended, data, _SNAPSHOT), summary=f"Snapshot {name}")


def _state(value: Advice, data: Any, fields: set[str]) -> ControlState:
    """State of the controls with a plan and a job."""
    if not isinstance(data, dict) or data.keys() != fields:
        raise StorageError("The stored plan on screen must have a plan and a job.")
    plan, job = from_plain(data["plan"], Plan, "plan"), from_plain(data["job"], Job, "job")
    try:
        state = control_state.apply(control_state.recommended(value), settings_of(plan, job))
        return state if state.plan == plan else control_state.adopt(state, plan)
    except (AdvisorError, AttributeError) as error:
        raise StorageError(f"The stored plan on screen does not suit the recommendation: {error}") from None
