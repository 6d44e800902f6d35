"""Throughput and memory at every position of one setting, while the others are fixed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smp_advisor.costs import estimate as estimated
from smp_advisor.drawing.chart import Chart
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.controls import Situation, completed_settings, dependent_settings, fields_of, positions
from smp_advisor.libraries.library import get_library
from smp_advisor.libraries.schema import schema
from smp_advisor.wording import fits

if TYPE_CHECKING:
    from smp_advisor.advice import Advice
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.drawing.sweep import Fit
    from smp_advisor.libraries.library import Setting

__all__ = ["fit_state", "settings_with_sweeps", "sweep_chart"]


def fit_state(estimate: Estimate, required: float) -> Fit:
    """Whether a plan fits with the required probability, is at risk, or does not fit."""
    if fits(estimate, required):
        return "fits"
    return "risk" if estimate.fits else "over"


def settings_with_sweeps(advice: Advice) -> tuple[str, ...]:
    """Settings with several positions, by name."""
    return tuple(name for name, values in _positions(advice, advice.estimate).items() if len(values) > 1)


def sweep_chart(advice: Advice, estimate: Estimate, name: str) -> Chart:
    """The estimate of every position of a setting. Settings that depend on it follow."""
    values = _positions(advice, estimate)[name]
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
                "" if rate is None else f"{rate:,.0f}",
                "" if outcome is None else f"{outcome.needed_gib:.1f}",
                state,
            )
            for text, rate, outcome, state in zip(texts, rates, outcomes, states, strict=True)
        ),
        notes=("The other settings are fixed; those that depend on this one follow.",),
    )


def _positions(advice: Advice, estimate: Estimate) -> dict[str, list[Setting]]:
    plan = estimate.plan
    return positions(
        Situation(plan=plan, fields=fields_of(plan), model=advice.model, cluster=advice.cluster, job=advice.job)
    )


def _moved(advice: Advice, estimate: Estimate, name: str, value: Setting) -> Estimate | None:
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
