"""The controls of the advisor, with the values that each can take while the others are fixed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

from smp_advisor.libraries.controls import Situation, positions
from smp_advisor.libraries.library import get_library
from smp_advisor.libraries.schema import schema
from smp_advisor.live.batch_reach import largest_that_fits, sizes_beyond
from smp_advisor.live.fixed_controls import BATCH, why_fixed
from smp_advisor.live.job_controls import (
    PRECISION,
    STACK,
    job_labels,
    precisions_for,
    stack_help,
    stack_text,
    stacks_for,
)
from smp_advisor.live.labels import value_text
from smp_advisor.live.settings import label_of, plan_fields_of
from smp_advisor.workload.training_settings import training_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from smp_advisor.advice import Advice
    from smp_advisor.libraries.library import Setting, Settings

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
    """One control with its values."""

    name: str
    label: str
    kind: Kind
    values: tuple[Setting, ...]
    """In the order of the slider. The current value is one of them."""
    texts: tuple[str, ...]
    help: str
    """Tooltip: purpose and cost from the library's schema, then the parameters that it sets."""
    fixed_because: str = ""
    """Reason for a single value, as a sentence; empty if there are several."""


def controls(advice: Advice, settings: Settings) -> list[Control]:
    """Every control with its values, while the others are fixed."""
    situation = Situation(
        plan=advice.plan,
        fields=plan_fields_of(advice, settings),
        model=advice.model,
        cluster=advice.cluster,
        job=advice.job,
    )
    library = advice.plan.library
    of_plan = [_of_plan(advice, settings, name, values) for name, values in positions(situation).items()]
    of_job = [_setting(name) for name in job_labels(library) if name not in {STACK, PRECISION}]
    in_precision = [_precision(advice, str(settings[PRECISION]))] if PRECISION in settings else []
    return [*of_plan, _code(advice, str(settings[STACK])), *in_precision, *of_job]


def _of_plan(advice: Advice, settings: Settings, name: str, values: Sequence[Setting]) -> Control:
    """A control of the plan. The batch also has sizes that do not fit; a single value has its reason."""
    if name == BATCH:
        sizes = cast("Sequence[int]", values)
        sizes = [*sizes, *sizes_beyond(advice, settings, sizes)]
        values = sorted([*sizes, *largest_that_fits(advice, settings, sizes)])
    control = _control(advice.plan.library, name, values, settings[name])
    if len(control.values) > 1:
        return control
    return replace(control, fixed_because=why_fixed(advice, settings, name))


def _precision(advice: Advice, current: str) -> Control:
    """The precision of the training step, a setting of the job and of the plan."""
    choices = tuple(dict.fromkeys([*precisions_for(advice), current]))
    return Control(
        name=PRECISION,
        label=job_labels(advice.plan.library)[PRECISION],
        kind="select",
        values=choices,
        texts=choices,
        help="Precision of the training step. bf16 has the range of fp32; fp16 needs loss scaling; fp32 is slower and"
        " needs more memory. Setting of the job: precision.",
        fixed_because=f"The library trains in {current} only on this instance." if len(choices) == 1 else "",
    )


def _code(advice: Advice, current: str) -> Control:
    """The kind of training code, a setting of the job."""
    library = advice.plan.library
    names = list(dict.fromkeys([*stacks_for(advice), current]))
    return Control(
        name=STACK,
        label=job_labels(library)[STACK],
        kind="select",
        values=tuple(names),
        texts=tuple(stack_text(name, library) for name in names),
        help=stack_help(current, library),
    )


def _setting(name: str) -> Control:
    """A setting of the training script."""
    setting = training_settings()[name]
    values: tuple[Setting, ...] = tuple(setting.values) or (False, True)
    return Control(
        name=name,
        label=setting.title,
        kind="select" if setting.values else "checkbox",
        values=values,
        texts=tuple(value_text(name, value) for value in values),
        help=f"{setting.help} Setting of the job: {name}.",
    )


def _control(library: str, name: str, values: Iterable[Setting], current: Setting) -> Control:
    listed = list(values)
    if current not in listed:
        # The current value has a position even if it is not one of the regular values.
        listed = sorted([*listed, current], key=_order) if name not in _KINDS else [*listed, current]
    parameters = list(get_library(library).control_codec.fields({name: current}))
    return Control(
        name=name,
        label=label_of(library, name),
        kind=_KINDS.get(name, "slider"),
        values=tuple(listed),
        texts=tuple(value_text(name, value) for value in listed),
        help=_help(library, parameters),
    )


def _help(library: str, parameters: list[str]) -> str:
    described = [schema(library).described(name) for name in parameters]
    names = f"Parameter{'s' if len(parameters) > 1 else ''}: {', '.join(parameters)}."
    return " ".join([*(parameter.doc for parameter in described if parameter), names])


def _order(value: Setting) -> int:
    return cast("int", value)
