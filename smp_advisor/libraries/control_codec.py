"""Conversion between the fields of a plan and the values of its controls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from smp_advisor.libraries.positions import Situation

__all__ = ["ControlCodec", "Setting", "Settings"]

Setting = int | str | bool
Settings = dict[str, Setting]
"""One value for each of a library's controls."""

_CHECKPOINTING = "activation_checkpointing"


class ControlCodec:
    """Controls with the names of their fields. Without checkpointing, its control has the value ``none``."""

    def settings(self, names: tuple[str, ...], fields: Mapping[str, Any]) -> Settings:
        """Values of the controls for fields of a plan."""
        return {name: fields[name] or "none" if name == _CHECKPOINTING else fields[name] for name in names}

    def fields(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of a plan for values of controls."""
        return {
            name: False if name == _CHECKPOINTING and value == "none" else value for name, value in settings.items()
        }

    def positions(self, name: str, situation: Situation) -> Iterable[Setting] | None:
        """Values of a control that is not a field of the plan; None for the values of the field."""
        del name, situation
        return None

    def label(self, name: str) -> str:
        """Label of a control that is not a field; empty to use the title in the schema."""
        del name
        return ""

    def described_by(self, name: str) -> str:
        """Field whose description in the schema applies to the control."""
        return name
