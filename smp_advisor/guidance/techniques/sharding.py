"""Sharded data parallelism: SMP v2's hybrid shard degree, FSDP's strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance.techniques.finding import Finding, why_used
from smp_advisor.guidance.what_if import vary
from smp_advisor.guidance.wording import compared, figures, fit, fits, gib, plural
from smp_advisor.libraries.groups import divisors, shard_degree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.case import Case
    from smp_advisor.guidance.what_if import WhatIf

__all__ = ["ask", "find"]

_STRATEGIES = ("full_shard", "hybrid_shard")


def ask(case: Case) -> dict[str, WhatIf]:
    """Every lower shard degree and the next higher one; the other strategy of plain FSDP."""
    plan = case.plan
    if plan.library == "fsdp":
        others = [one for one in _STRATEGIES if one != plan.sharding_strategy and case.cluster.nodes > 1]
        return {one: vary(case, sharding_strategy=one) for one in others}
    now = shard_degree(plan, case.cluster)
    tried = divisors(case.cluster.gpus // (plan.tensor_parallel_degree * plan.expert_parallel_degree))
    higher = [one for one in tried if one > now][:1]
    return {str(one): vary(case, hybrid_shard_degree=one) for one in tried if one < now or one in higher}


def find(case: Case, asked: Mapping[str, WhatIf], answers: Mapping[str, Estimate]) -> Finding:
    """Say what is sharded over how many GPUs, and what the lowest degree that fits would be."""
    now = shard_degree(case.plan, case.cluster)
    peak = case.estimate.memory.peak
    state = peak.parameters_gib + peak.gradients_gib + peak.optimizer_state_gib
    replicas = case.cluster.gpus // (now * case.plan.tensor_parallel_degree * case.plan.expert_parallel_degree)
    sentences = [
        (
            f"Parameters, gradients and optimizer state are sharded over {plural(now, 'GPU')} and take {gib(state)} on"
            f" each; {plural(replicas, 'such group')} {'reduces' if replicas == 1 else 'reduce'} gradients"
            f"{' between them' if replicas > 1 else ''}."
        )
    ]
    if case.plan.library == "fsdp":
        return _strategy(case, asked, answers, sentences)
    lower = {int(key): one for key, one in answers.items() if int(key) < now}
    enough = [degree for degree, one in lower.items() if fits(one, case.min_fit_probability)]
    if enough:
        least = min(enough)
        sentences.append(
            f"A degree of {least} would be enough: it {compared(case.estimate, lower[least])}. AWS advises the lowest"
            " degree that fits; this plan keeps the memory that the higher one leaves free, which costs it less than"
            " the cost model resolves."
        )
    elif lower:
        next_lower = max(lower)
        words = fit(lower[next_lower], case.min_fit_probability)
        sentences.append(f"It is the lowest degree that fits: at {next_lower} the plan {words}.")
    shown = str(max(lower)) if lower else next(iter(answers), "")
    estimate = answers.get(shown)
    return Finding(
        decision="used" if now > 1 else "not used",
        because=" ".join(sentences),
        figures=figures(case.estimate, estimate),
        alternative=asked[shown].plan if estimate else None,
    )


def _strategy(
    case: Case, asked: Mapping[str, WhatIf], answers: Mapping[str, Estimate], sentences: list[str]
) -> Finding:
    other = next(iter(asked), "")
    estimate = answers.get(other)
    if other:
        sentences.append(why_used(case, asked[other], estimate, name=f"it (with sharding_strategy={other!r})"))
    return Finding(
        decision="used",
        because=" ".join(sentences),
        figures=figures(case.estimate, estimate),
        alternative=asked[other].plan if estimate else None,
    )
