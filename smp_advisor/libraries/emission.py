"""Plans as the library's dictionary and the script's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.libraries.schema import schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smp_advisor.libraries.plan import Plan

__all__ = ["changed", "hyperparameters", "parameters"]


def parameters(plan: Plan) -> dict[str, Any]:
    """Parameters of a plan in the schema's order: those that are always written, and those that differ from default.

    A parameter that the version lacks is written if it is set, so that validation refuses it by name.
    """
    from smp_advisor.libraries.plan_fields import plan_defaults

    defaults = plan_defaults(type(plan))
    written: dict[str, Any] = {}
    for parameter in schema(plan.library).parameters:
        if parameter.key not in defaults:
            continue
        value, default = getattr(plan, parameter.key), defaults[parameter.key]
        always = parameter.emit == "always" and parameter.exists_in(plan.version) and value is not None
        if always or _differs(value, default):
            written[parameter.key] = value
    return written


def changed(plan: Plan, names: Iterable[str]) -> dict[str, Any]:
    """Values of some fields that differ from their default."""
    from smp_advisor.libraries.plan_fields import plan_defaults

    defaults = plan_defaults(type(plan))
    return {name: getattr(plan, name) for name in names if _differs(getattr(plan, name), defaults[name])}


def hyperparameters(plan: Plan) -> dict[str, Any]:
    """Script settings of a plan. Flags are 1 and 0, because a script's ``type=bool`` reads the text "False" as true."""
    return {name: _as_argument(getattr(plan, name)) for name in plan.SCRIPT_SETTINGS} | (
        {"activation_checkpointing": plan.activation_checkpointing or "none"}
        if "activation_checkpointing" in plan.SCRIPT_SETTINGS
        else {}
    )


def _as_argument(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


def _differs(value: Any, default: Any) -> bool:
    # By type as well: 1 equals True, but the library distinguishes them.
    return value != default or type(value) is not type(default)
