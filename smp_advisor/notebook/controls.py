"""The controls and the positions that each may take, the others held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from smp_advisor.libraries.positions import Situation, positions
from smp_advisor.libraries.registry import get_library
from smp_advisor.libraries.schema import schema
from smp_advisor.notebook.settings import label_of, plan_fields_of
from smp_advisor.notebook.words import value_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smp_advisor.advice import Advice
    from smp_advisor.libraries.control_codec import Setting, Settings

__all__ = ["Control", "Kind", "controls"]

Kind = Literal["slider", "select", "checkbox"]

_KINDS: dict[str, Kind] = {
    "sharding": "select",
    "activation_checkpointing": "select",
    "offload_activations": "checkbox",
    "pipeline": "select",
    "sharding_strategy": "select",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Control:
    """One control and where it can stand."""

    name: str
    label: str
    kind: Kind
    values: tuple[Setting, ...]
    """Positions in the order of the slider; the current value is one of them."""
    texts: tuple[str, ...]
    help: str
    """What it does and costs, from the library's schema."""


def controls(advice: Advice, settings: Settings) -> list[Control]:
    """Every control with its positions, while the others stay."""
    situation = Situation(
        plan=advice.plan,
        fields=plan_fields_of(advice, settings),
        model=advice.model,
        cluster=advice.cluster,
        job=advice.job,
    )
    return [
        _control(advice.plan.library, name, values, settings[name]) for name, values in positions(situation).items()
    ]


def _control(library: str, name: str, values: Iterable[Setting], current: Setting) -> Control:
    listed = list(values)
    if current not in listed:
        # What is set has a position even where it is no round number.
        listed = sorted([*listed, current], key=_order) if name not in _KINDS else [*listed, current]
    described = schema(library).described(get_library(library).control_codec.described_by(name))
    return Control(
        name=name,
        label=label_of(library, name),
        kind=_KINDS.get(name, "slider"),
        values=tuple(listed),
        texts=tuple(value_text(name, value) for value in listed),
        help=described.doc if described else "",
    )


def _order(value: Setting) -> int:
    return cast("int", value)
