"""Practice 3: activation checkpointing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance.techniques.finding import Finding, why_not_used, why_used
from smp_advisor.guidance.what_if import vary
from smp_advisor.guidance.wording import compared, figures, fit, gib
from smp_advisor.libraries.axes import checkpointing_strategies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.case import Case
    from smp_advisor.guidance.what_if import WhatIf

__all__ = ["ask", "find"]


def ask(case: Case) -> dict[str, WhatIf]:
    """No checkpointing, and the other strategies."""
    result = {"none": vary(case, activation_checkpointing=False)}
    for strategy in _strategies(case):
        result[strategy] = vary(case, activation_checkpointing=strategy)
    return result


def _strategies(case: Case) -> list[str]:
    """The strategies that the library has and the layers can use."""
    if case.plan.library != "smp-v1":
        return ["each"]
    layers = -(-case.model.layer_count // case.plan.pipeline_parallel_degree)
    return [str(one) for one in checkpointing_strategies(layers, case.plan.tensor_parallel_degree) if one]


def find(case: Case, asked: Mapping[str, WhatIf], answers: Mapping[str, Estimate]) -> Finding:
    """Compare the plan's strategy with none and with the others."""
    now = case.plan.activation_checkpointing
    if not now:
        estimate = answers.get("each")
        return Finding(
            decision="not used",
            because=why_not_used(case, asked["each"], estimate, name='activation_checkpointing="each"'),
            figures=figures(estimate, case.estimate),
            alternative=asked["each"].plan if estimate else None,
        )
    estimate = answers.get("none")
    time = case.estimate.time.recomputation_seconds / case.estimate.step_seconds * 100
    peak = case.estimate.memory.peak
    sentences = [
        (
            f"Strategy {now!r} keeps {gib(peak.activations_gib)} of activations a GPU and {gib(peak.recomputation_gib)}"
            f" live while it recomputes, which takes {time:.0f} % of the step."
        ),
        why_used(case, asked["none"], estimate, name="checkpointing"),
        *_grouping(case, asked, answers),
    ]
    return Finding(
        decision="used",
        because=" ".join(sentences),
        figures=figures(case.estimate, estimate),
        alternative=asked["none"].plan if estimate else None,
    )


def _grouping(case: Case, asked: Mapping[str, WhatIf], answers: Mapping[str, Estimate]) -> list[str]:
    """The other strategy that needs least memory."""
    others = {s: answers[s] for s in _strategies(case) if s != case.plan.activation_checkpointing and s in answers}
    if not others:
        return []
    best = min(others, key=lambda strategy: others[strategy].needed_gib)
    one = others[best]
    saves = one.needed_gib < case.estimate.needed_gib
    which = "The most frugal other strategy" if saves else "No other strategy needs less memory: the next"
    unit = {"each": "one layer a unit", "contiguous": "one unit of all layers of a stage"}.get(
        best, f"units of {best.removeprefix('group_')} layers"
    )
    peak = one.memory.peak
    return [
        (
            f"{which}, {best!r} ({unit}: {gib(peak.activations_gib)} kept and {gib(peak.recomputation_gib)} live while"
            f" recomputing){asked[best].aside}, {compared(case.estimate, one)};"
            f" it {fit(one, case.min_fit_probability)}."
        )
    ]
