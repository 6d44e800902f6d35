"""Activation checkpointing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance.techniques.conclusion import Conclusion, why_not_used, why_used
from smp_advisor.guidance.what_if import vary, without
from smp_advisor.libraries.axes import checkpointing_strategies
from smp_advisor.libraries.schema import schema
from smp_advisor.wording import VISIBLE_GIB, compared, figures, fit, gib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.costs.estimate import Estimate, StageMemory
    from smp_advisor.guidance.planned_run import PlannedRun
    from smp_advisor.guidance.what_if import WhatIf

__all__ = ["comparisons", "conclude"]


def comparisons(run: PlannedRun) -> dict[str, WhatIf]:
    """No checkpointing, and the other strategies."""
    result = {"none": without(run, activation_checkpointing=False)}
    for strategy in _strategies(run):
        result[strategy] = vary(run, activation_checkpointing=strategy)
    return result


def _strategies(run: PlannedRun) -> list[str]:
    """Strategies that the library has and the layers can use."""
    setting = schema(run.plan.library).described("activation_checkpointing")
    if setting is None or "contiguous" not in setting.choices:
        return ["each"]
    layers = -(-run.model.layer_count // run.plan.pipeline_parallel_degree)
    return [str(name) for name in checkpointing_strategies(layers, run.plan.tensor_parallel_degree) if name]


def conclude(run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]) -> Conclusion:
    """Compare the plan's strategy with none and with the others."""
    strategy = run.plan.activation_checkpointing
    if not strategy:
        estimate = estimates.get("each")
        return Conclusion(
            decision="not used",
            because=why_not_used(run, comparisons["each"], estimate, name='activation_checkpointing="each"'),
            figures=figures(estimate, run.estimate),
            alternative=comparisons["each"].plan if estimate else None,
        )
    estimate = estimates.get("none")
    share = run.estimate.time.recomputation_seconds / run.estimate.step_seconds * 100
    peak = run.estimate.memory.peak
    sentences = [
        f"Strategy {strategy!r} keeps {gib(peak.activations_gib)} of activations per GPU.",
        f"Recomputation takes {_live(peak)}{share:.0f} % of the step.",
        why_used(run, comparisons["none"], estimate, name="checkpointing"),
        *_grouping(run, comparisons, estimates),
    ]
    return Conclusion(
        decision="used",
        because=" ".join(sentences),
        figures=figures(run.estimate, estimate),
        alternative=comparisons["none"].plan if estimate else None,
    )


def _live(peak: StageMemory) -> str:
    """Memory of the unit that is recomputed, if the peak is during a recomputation (it may be at the logits)."""
    visible = peak.recomputation_gib >= VISIBLE_GIB
    return f"{gib(peak.recomputation_gib)} at the peak, and " if visible else ""


def _grouping(run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]) -> list[str]:
    """The other strategy that needs least memory."""
    current = run.plan.activation_checkpointing
    others = {name: estimates[name] for name in _strategies(run) if name != current and name in estimates}
    if not others:
        return []
    best = min(others, key=lambda name: others[name].needed_gib)
    estimate = others[best]
    saves = estimate.needed_gib < run.estimate.needed_gib
    lead = "Of the other strategies," if saves else "No other strategy needs less memory. The next,"
    unit = {"each": "one unit per layer", "contiguous": "one unit for all layers of a stage"}.get(
        best, f"units of {best.removeprefix('group_')} layers"
    )
    least = " needs the least memory:" if saves else ","
    peak = estimate.memory.peak
    return [
        (
            f"{lead} {best!r} ({unit}){comparisons[best].aside}{least} it keeps {gib(peak.activations_gib)} of"
            f" activations per GPU; the plan {compared(run.estimate, estimate)}."
        ),
        f"It {fit(estimate, run.min_fit_probability)}.",
    ]
