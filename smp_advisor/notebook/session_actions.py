"""Actions of a view on the history, the snapshots and the alternatives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from smp_advisor.errors import AdvisorError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smp_advisor.live import LiveAdvice

__all__ = ["Steps", "perform", "session_steps"]


class Steps(TypedDict):
    """Summaries of the changes that undo reverts and redo makes again."""

    undo: str
    """Empty if there is nothing to undo."""
    redo: str
    """Empty if there is nothing to redo."""
    version: int
    """Another number after every change of the history or the snapshots."""


def session_steps(advice: LiveAdvice) -> Steps:
    """The next steps of undo and redo, and the version of both."""
    history, position = advice.history, len(advice.history) - 1 - advice.undone
    problem = "the last setting, which cannot be combined with the others" if advice.controls.problem else ""
    return {
        "undo": problem or (history[position].summary if position else ""),
        "redo": history[position + 1].summary if advice.undone else "",
        "version": advice.version,
    }


def perform(advice: LiveAdvice, content: Mapping[str, Any]) -> None:
    """Perform an action: ``{"action": "undo"}``, ``{"action": "keep", "value": "name"}``.

    Raises
    ------
    AdvisorError
        There is no such action, or it is not possible.
    """
    action, value = str(content.get("action")), content.get("value")
    by_name: dict[str, Callable[[str], object]] = {
        "keep": advice.keep,
        "load": advice.load,
        "forget": advice.forget,
        "pin": lambda name: advice.unpin(name) if name in advice.pins else advice.pin(name),
    }
    by_number: dict[str, Callable[[int], object]] = {"undo": advice.undo, "redo": advice.redo, "adopt": advice.adopt}
    if action == "reset":
        advice.reset()
    elif action in by_name and isinstance(value, str):
        by_name[action](value)
    elif action in by_number and (value is None or type(value) is int):
        if value is None and action == "adopt":
            raise AdvisorError("Adopting an alternative requires its row.")
        by_number[action](1 if value is None else value)
    else:
        raise AdvisorError(f"The advisor has no action {action!r} with the value {value!r}.")
