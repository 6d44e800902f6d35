"""The best plan of each combination of techniques, by free memory and throughput."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.charts.labels import plan_text
from smp_advisor.costs.intervals import DIVISIONS, plan_divisions
from smp_advisor.drawing.chart import Chart
from smp_advisor.errors import AdvisorError
from smp_advisor.search import listed_plans, representatives
from smp_advisor.wording import number

if TYPE_CHECKING:
    from smp_advisor.advice import Advice
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.search import SearchResult

__all__ = ["alternatives_chart", "plotted_plans"]

_DIVISIONS = {
    "replicated": "full copies",
    "tensor": "tensor parallel",
    "sharded": "sharded",
    "pipeline": "pipeline",
    "offloaded": "offloading",
}


def plotted_plans(advice: Advice) -> list[Plan]:
    """Plans of the points, in their order: those that fit, best first."""
    return listed_plans(_result(advice))[: len(representatives(_result(advice)).ranked)]


def alternatives_chart(advice: Advice, estimate: Estimate) -> Chart:
    """Points of all combinations that fit, with the plan on the screen among them."""
    result = representatives(_result(advice))
    plans = plotted_plans(advice)
    usable = advice.cluster.instance.usable_gpu_memory_gib
    tokens = advice.model.reads_tokens
    sequence = advice.model.sequence_length(advice.job.sequence_length)
    scale, unit = (1, "tokens/s") if tokens else (1 / sequence, "samples/s")
    rates = [float(f"{scale * rate:.5g}") for rate in result.scores.tokens_per_second]
    free = [round(usable - float(result.needed_gib[row]), 2) for row in result.ranked]
    titles = [
        f"{plan_text(plan)}: {number(rate)} {unit}, {room:.1f} GiB free"
        for plan, rate, room in zip(plans, rates, free, strict=True)
    ]
    now = (
        round(estimate.headroom_gib, 2),
        float(f"{estimate.tokens_per_second if tokens else estimate.samples_per_second:.5g}"),
    )
    groups = plan_divisions(result.space.layout.take(result.ranked)).tolist()
    best = rates[0] if rates else 1.0
    return Chart(
        kind="scatter",
        title=f"{len(plans):,} combinations of techniques that fit",
        data={
            "unit": unit,
            "free": free,
            "rates": rates,
            "groups": groups,
            "names": [_DIVISIONS[name] for name in DIVISIONS],
            "titles": titles,
            "best": next((index for index, plan in enumerate(plans) if plan == advice.recommended.plan), -1),
            "now": now,
        },
        columns=("Plan", f"Throughput ({unit})", "Against the best", "Free (GiB per GPU)"),
        rows=tuple(
            (plan_text(plan), number(rate), f"{100 * (rate / best - 1):+.1f} %", f"{room:.1f}")
            for plan, rate, room in zip(plans, rates, free, strict=True)
        ),
        notes=("One point per combination of techniques: its best plan that fits with the required probability.",),
        key=tuple(_DIVISIONS[name] if index in groups else "" for index, name in enumerate(DIVISIONS)),
    )


def _result(advice: Advice) -> SearchResult:
    if advice.result is None:  # made by hand
        raise AdvisorError("Only advice made by advise() has alternatives.")
    return advice.result
