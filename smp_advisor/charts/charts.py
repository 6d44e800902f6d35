"""The charts of an advice by name; data of ladder, ranks and the reach of a setting."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smp_advisor.arguments import require_types
from smp_advisor.charts.chart import Chart
from smp_advisor.charts.plans import alternatives_chart, clusters_chart
from smp_advisor.charts.step import memory_chart, schedule_chart, time_chart
from smp_advisor.costs import estimate as estimated
from smp_advisor.errors import AdvisorError
from smp_advisor.guidance.ladder import COLUMNS, cells
from smp_advisor.guidance.report import ladder_of, plan_of, ranks_of
from smp_advisor.libraries.controls import Situation, completed_settings, dependent_settings, fields_of, positions
from smp_advisor.libraries.library import get_library
from smp_advisor.libraries.schema import schema
from smp_advisor.wording import fits, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from smp_advisor.charts.bar_drawings import LadderRow, RankColumn
    from smp_advisor.charts.curve_drawings import Fit
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.ladder import Rung
    from smp_advisor.guidance.recommended import Recommended
    from smp_advisor.libraries.library import Setting
    from smp_advisor.libraries.plan import Plan

__all__ = ["CHARTS", "chart_of", "ladder_chart"]


def ladder_chart(advice: Recommended, estimate: Estimate) -> Chart:
    """Memory and step time of each technique, added to those before it, and of the plan with one change each."""
    ladder = ladder_of(advice, estimate.plan)
    before = [None, *ladder.rungs[:-1]]
    itself = ladder.rungs[-1]
    steps = advice.steps if advice.plan == estimate.plan else ()
    reasons = {step.technique: step.because.partition(". ")[0].rstrip(".") + "." for step in steps}
    rows = [
        _row(rung, last, reasons.get(rung.technique, "") if last is not None else "", used=True)
        for rung, last in zip(ladder.rungs, before, strict=True)
    ]
    rows += [_row(rung, itself, "", used=False) for rung in ladder.unused]
    texts = [cells(rung, first=not position) for position, rung in enumerate(ladder.rungs)]
    texts += [cells(rung, first=True) for rung in ladder.unused]
    return Chart(
        kind="ladder",
        title="Techniques in the order of AWS's best practices",
        data={"limit": ladder.usable_gib, "rows": rows},
        columns=tuple(column.capitalize() for column in COLUMNS),
        rows=tuple(texts),
        notes=(
            "Each technique is added to those above it; dashed outlines are the figures before it."
            + (" Below the line: the plan on the screen with one change each." if ladder.unused else ""),
        ),
        marks=("usable memory", "fits", "does not fit", "step time", "before"),
    )


def _row(rung: Rung, before: Rung | None, reason: str, *, used: bool) -> LadderRow:
    title = f"+ {rung.title}" if used and before is not None else rung.title
    same_batch = (
        before is not None
        and before.estimate is not None
        and rung.estimate is not None
        and before.estimate.global_batch_size == rung.estimate.global_batch_size
    )
    return {
        "title": title,
        "memory": _rounded(rung.needed_gib),
        "memory_before": None if before is None else _rounded(before.needed_gib),
        "step": _rounded(rung.step_seconds),
        # Step times of other batches do not compare.
        "step_before": _rounded(before.step_seconds) if before is not None and same_batch else None,
        "fits": rung.fits,
        "decision": rung.decision,
        "used": used,
        "because": rung.because or reason,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


_COLUMNS = {
    "stage": ("stage", "P"),
    "tensor_slice": ("tensor slice", "T"),
    "context_slice": ("context slice", "C"),
    "experts": ("experts", "E"),
    "shard": ("shard", "S"),
    "replica": ("replica", "R"),
}
"""Name and letter of each column of a rank map."""
_MOST_NODES = 16


def ranks_chart(advice: Recommended, estimate: Estimate, by: int = 0) -> Chart:
    """Stage, slices, shard and replica of every GPU of the first nodes, in the colors of column `by`."""
    table = ranks_of(advice, estimate.plan, None)
    ranks = table.ranks
    nodes = list(range(min(ranks.nodes, _MOST_NODES)))
    count = len(nodes) * ranks.gpus_per_node
    columns: list[RankColumn] = [
        {
            "name": title,
            "letter": letter,
            "values": getattr(ranks, name)[:count].tolist(),
            "degree": ranks.degrees[name],
        }
        for name, (title, letter) in _COLUMNS.items()
        if ranks.degrees[name] > 1
    ]
    letters = ", ".join(f"{column['letter']}: {column['name']} (of {column['degree']:,})" for column in columns)
    more = f"The first {plural(len(nodes), 'node')} of {ranks.nodes}." if ranks.nodes > len(nodes) else ""
    return Chart(
        kind="ranks",
        title="Contents of every GPU",
        data={
            "gpus_per_node": ranks.gpus_per_node,
            "nodes": nodes,
            "columns": columns,
            "by": by if 0 <= by < len(columns) else 0,
            "description": " ".join(filter(None, (*table.summary, more))),
        },
        columns=("Node", "GPU", "Rank", *(column["name"].capitalize() for column in columns)),
        rows=tuple(
            (
                str(ranks.node[index]),
                str(ranks.gpu[index]),
                str(ranks.rank[index]),
                *(str(column["values"][index]) for column in columns),
            )
            for index in range(count)
        ),
        notes=tuple(filter(None, (letters and f"{letters}.", *table.summary, more))),
        choices=tuple(column["name"] for column in columns),
    )


def fit_state(estimate: Estimate, required: float) -> Fit:
    """Whether a plan fits with the required probability, is at risk, or does not fit."""
    if fits(estimate, required):
        return "fits"
    return "risk" if estimate.fits else "over"


def settings_with_sweeps(advice: Recommended) -> tuple[str, ...]:
    """Settings with several positions, by name."""
    return tuple(name for name, values in _positions(advice, advice.estimate).items() if len(values) > 1)


def sweep_chart(advice: Recommended, estimate: Estimate, name: str, values: Sequence[Setting] = ()) -> Chart:
    """The estimate of every position of a setting, or of some values. Settings that depend on it follow."""
    values = list(values) or _positions(advice, estimate)[name]
    record = get_library(estimate.plan.library)
    current = record.control_codec.settings((name,), fields_of(estimate.plan))[name]
    best = record.control_codec.settings((name,), fields_of(advice.recommended.plan))[name]
    if current not in values:
        values = sorted([*values, current]) if isinstance(current, int) else [*values, current]
    outcomes = [_moved(advice, estimate, name, value) for value in values]
    tokens = advice.model.reads_tokens
    rates = [None if outcome is None else _rate(outcome, tokens=tokens) for outcome in outcomes]
    states: list[Fit] = [
        "refused" if outcome is None else fit_state(outcome, advice.min_fit_probability) for outcome in outcomes
    ]
    texts = [_text(value) for value in values]
    described = schema(estimate.plan.library).described(record.control_codec.described_by(name))
    title = record.control_codec.label(name) or (described.title if described else name)
    return Chart(
        kind="sweep",
        title=f"Throughput and memory by {title[:1].lower()}{title[1:]}",
        data={
            "label": title,
            "texts": texts,
            "unit": "tokens/s" if tokens else "samples/s",
            "rates": rates,
            "memory": [None if outcome is None else round(outcome.needed_gib, 3) for outcome in outcomes],
            "fits": states,
            "limit": advice.cluster.instance.usable_gpu_memory_gib,
            "current": values.index(current),
            "recommended": values.index(best) if best in values else -1,
        },
        columns=(title, "Throughput", "GiB needed per GPU", "Fits"),
        rows=tuple(
            (
                text,
                "" if rate is None or state == "over" else f"{rate:,.0f}",
                "" if outcome is None else f"{outcome.needed_gib:.1f}",
                state,
            )
            for text, rate, outcome, state in zip(texts, rates, outcomes, states, strict=True)
        ),
        notes=("The other settings are fixed; those that depend on this one follow.",),
        marks=(
            "throughput",
            "memory",
            "usable memory",
            "on screen",
            "recommended",
            *tuple(name for name, state in _AREAS if state in states),
        ),
    )


_AREAS = (("at risk", "risk"), ("out of memory", "over"), ("not possible", "refused"))


def _positions(advice: Recommended, estimate: Estimate) -> dict[str, list[Setting]]:
    plan = estimate.plan
    return positions(
        Situation(plan=plan, fields=fields_of(plan), model=advice.model, cluster=advice.cluster, job=advice.job)
    )


def _moved(advice: Recommended, estimate: Estimate, name: str, value: Setting) -> Estimate | None:
    """Estimate of the plan with another value of a setting; None if it cannot be combined with the others."""
    plan = estimate.plan
    after = dependent_settings(
        plan,
        fields_of(plan),
        get_library(plan.library).control_codec.fields({name: value}),
        model=advice.model,
        job=advice.job,
        cluster=advice.cluster,
        global_batch_size=advice.job.global_batch_size,
    )
    try:
        moved = replace(plan, **completed_settings(plan, after.settings, advice.cluster))
        return estimated(advice.model, advice.cluster, advice.job, moved)
    except AdvisorError:
        return None


def _rate(estimate: Estimate, *, tokens: bool) -> float:
    return float(f"{estimate.tokens_per_second if tokens else estimate.samples_per_second:.6g}")


def _text(value: Setting) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value).replace("_", " ")


CHARTS: Mapping[str, Callable[[Recommended, Estimate], Chart]] = {
    "memory": memory_chart,
    "time": time_chart,
    "schedule": schedule_chart,
    "alternatives": alternatives_chart,
    "clusters": clusters_chart,
    "ladder": ladder_chart,
    "ranks": ranks_chart,
}
"""Function that makes each chart for a plan of the advice."""


def chart_of(advice: Recommended, name: str, plan: Plan | int | None = None) -> Chart:
    """A chart of a plan, see `Advice.chart`."""
    require_types({"name": (name, str)}, "chart")
    chosen = plan_of(advice, plan)
    own = chosen == advice.estimate.plan
    estimate = advice.estimate if own else estimated(advice.model, advice.cluster, advice.job, chosen)
    if name in CHARTS:
        return CHARTS[name](advice, estimate)
    settings = settings_with_sweeps(advice)
    if name in settings:
        return sweep_chart(advice, estimate, name)
    raise AdvisorError(
        f"There is no chart {name!r:.60}: name one of {', '.join(CHARTS)}, or a setting: {', '.join(settings)}."
    )
