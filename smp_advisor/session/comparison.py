"""Two plans next to each other: settings, figures, and the price of the difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.advice.reference import shown
from smp_advisor.core.tables import Shown, Table, number
from smp_advisor.core.words import escape
from smp_advisor.costs.wording import (
    SAME,
    adapter_text,
    fit,
    gib,
    percent,
    probability,
    rate,
    run_cost,
    run_time,
    step_time,
)
from smp_advisor.libraries import get_library, schema
from smp_advisor.libraries.controls import fields_of
from smp_advisor.session.control_state import ControlState, summarized
from smp_advisor.session.settings import configuration, dollars, settings_of, sign

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smp_advisor.advice.recommendation import Recommendation
    from smp_advisor.costs.estimate import Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One setting or figure of both plans."""

    label: str
    first: str
    second: str
    change: str = ""
    """Change of a figure from the first plan to the second; empty if it is too small to be shown."""

    @property
    def differs(self) -> bool:
        """Whether the plans differ visibly."""
        return self.first != self.second


@dataclass(frozen=True, kw_only=True)
class Comparison(Shown):
    """Two plans next to each other. `str` and a notebook show it as a table."""

    names: tuple[str, str]
    settings: tuple[Row, ...]
    """Settings in which the plans differ, the workload's first."""
    figures: tuple[Row, ...]
    """Fit, memory, speed, time and money."""
    summary: str
    """The difference in one sentence: changed settings, memory, throughput, days and dollars."""

    def __str__(self) -> str:
        return "\n".join([self.summary, "", *self.table().lines()])

    def table(self) -> Table:
        """Return the settings that differ, and the figures."""
        rows = [(row.label, row.first, row.second, row.change) for row in (*self.settings, *self.figures)]
        return Table(columns=("", *self.names, "change"), rows=rows)

    def _repr_html_(self) -> str:
        return f"<div><p>{escape(self.summary)}</p>{self.table().html()}</div>"


def compare(first: ControlState, second: ControlState, names: tuple[str, str]) -> Comparison:
    """Compare two plans, which may be of different workloads, clusters or libraries."""
    before, after = first.estimate, second.estimate
    both = before.fits and after.fits  # a plan that cannot run has no speed and no price
    workload, settings = list(_workload(first.advice, second.advice)), list(_settings(first, second))
    speed = _relative(before.tokens_per_second, after.tokens_per_second)
    # The request, then settings, memory and throughput as in the summary of a move, then days and dollars.
    left, right = (f"{of.advice.cluster.nodes} x {of.advice.cluster.instance.name}" for of in (first, second))
    changes = [f"{left} → {right}"] if left != right else []
    changes += [f"{row.label} {row.first} → {row.second}" for row in workload if row.differs and row.label != "Cluster"]
    if first.plan.library == second.plan.library:
        text = summarized(first, second).summary.removesuffix(".")
    else:
        text = f"memory per GPU {_memory(before, after) or 'no change'}"
        text += f", throughput {speed or 'no change'}" if both else ""
    price = ", ".join(filter(None, (_days(before, after), _dollars(before, after)))) if both else ""
    texts = filter(None, (*changes, text, price and f"{price} for the full run"))
    return Comparison(
        names=names,
        settings=tuple(row for row in (*workload, *settings) if row.differs),
        figures=tuple(_figures(first, second, speed)),
        summary=f"{'; '.join(texts) or 'The same settings'}.",
    )


def _workload(first: Recommendation, second: Recommendation) -> Iterator[Row]:
    for label, text in (
        ("Model", lambda a: f"{a.model.name}, {a.model.parameter_count / 1e9:,.3g} B parameters"),
        ("Cluster", lambda a: a.cluster.summary),
        ("Library", lambda a: f"{schema(a.plan.library).name} {a.plan.version}"),
        ("Tokens per sample", lambda a: f"{a.job.sequence_length:,}"),
        ("Adapter", lambda a: adapter_text(a.job.adapter) if a.job.adapter else "none"),
        ("Optimizer", lambda a: a.job.optimizer),
        ("Tokens in total", lambda a: f"{a.job.tokens:,.4g}" if a.job.tokens else "not set"),
    ):
        yield Row(label=label, first=text(first), second=text(second))


def _settings(first: ControlState, second: ControlState) -> Iterator[Row]:
    """Yield settings with a control, then the other fields of the plans."""
    left, right = (configuration(of.advice, of.plan) for of in (first, second))
    for label in dict.fromkeys((*left, *right)):
        yield Row(label=label, first=left.get(label) or "–", second=right.get(label) or "–")
    plans = (first.plan, second.plan)
    if plans[0].library != plans[1].library:
        return
    fields, record, controls = [fields_of(plan) for plan in plans], get_library(plans[0].library), settings_of(plans[0])
    controlled = set(record.control_codec.fields({name: controls[name] for name in record.controls}))
    described = schema(plans[0].library).described
    for name in sorted(set(fields[0]) - controlled - {"version"}):
        title = described(name)
        yield Row(label=title.title if title else name, first=shown(fields[0][name]), second=shown(fields[1][name]))


def _figures(first: ControlState, second: ControlState, speed: str) -> Iterator[Row]:
    before, after = first.estimate, second.estimate
    model = first.advice.model

    def price(estimate: Estimate) -> str:
        return "" if estimate.usd_per_hour is None else dollars(estimate.usd_per_hour)

    both = before.fits and after.fits
    rows: tuple[tuple[str, Callable[[Estimate], str], str], ...] = (
        ("Memory needed per GPU", lambda estimate: gib(estimate.needed_gib), _memory(before, after)),
        ("Price per hour", price, ""),
        ("Throughput", lambda estimate: rate(model, estimate), speed),
        ("Step time", step_time, _relative(before.step_seconds, after.step_seconds)),
        ("Full run", run_time, _days(before, after)),
        ("Cost of the run", run_cost, _dollars(before, after)),
    )
    fits = []
    for of in (first, second):
        chance = probability(of.estimate.fit_probability)
        fits.append(f"{fit(of.estimate, of.advice.min_fit_probability)}; {chance} likely")
    yield Row(label="Fit", first=fits[0], second=fits[1])
    for position, (label, text, change) in enumerate(rows):
        of_run = position > 1
        left, right = ("–" if of_run and not estimate.fits else text(estimate) for estimate in (before, after))
        if set(left + right) - {"–"}:
            last = change if both or not of_run else ""
            yield Row(label=label, first=left or "unknown", second=right or "unknown", change=last)


def _memory(before: Estimate, after: Estimate) -> str:
    change = after.needed_gib - before.needed_gib
    return "" if abs(change) < 0.05 else f"{sign(change)}{gib(abs(change))}"


def _relative(before: float, after: float) -> str:
    change = after / before - 1
    return "" if abs(change) < SAME else f"{sign(change)}{percent(change)}"


def _days(before: Estimate, after: Estimate) -> str:
    if before.days is None or after.days is None:
        return ""
    change = after.days - before.days
    if abs(change) < SAME * before.days:
        return ""
    size = f"{abs(change):,.3g} days" if max(before.days, after.days) >= 1 else f"{24 * abs(change):.3g} hours"
    return f"{sign(change)}{size}"


def _dollars(before: Estimate, after: Estimate) -> str:
    if before.usd_total is None or after.usd_total is None:
        return ""
    change = after.usd_total - before.usd_total
    return "" if abs(change) < SAME * before.usd_total else f"{sign(change)}${number(abs(change))}"
