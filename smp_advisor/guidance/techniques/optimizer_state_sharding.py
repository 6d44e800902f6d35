"""Practice 2: optimizer-state sharding, or sharded data parallelism in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.guidance.techniques.finding import Finding, why_not_used, why_used
from smp_advisor.guidance.what_if import vary
from smp_advisor.guidance.wording import compared, figures, fit, fits, gib, plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.case import Case
    from smp_advisor.guidance.what_if import WhatIf

__all__ = ["ask", "find"]

_NOTHING: dict[str, Any] = {"shard_optimizer_state": False, "sharded_data_parallel_degree": 1}


def ask(case: Case) -> dict[str, WhatIf]:
    """No sharding, optimizer-state sharding, and every degree of sharded data parallelism."""
    result = {
        "nothing": vary(case, **_NOTHING),
        "optimizer": vary(case, shard_optimizer_state=True, sharded_data_parallel_degree=1),
    }
    if case.plan.sharded_data_parallel_degree == 1 and case.plan.pipeline_parallel_degree == 1:
        for degree in _degrees(case.replicas):
            result[f"sharded {degree}"] = vary(case, shard_optimizer_state=False, sharded_data_parallel_degree=degree)
    return result


def _degrees(replicas: int) -> list[int]:
    return [degree for degree in range(2, replicas + 1) if replicas % degree == 0]


def find(case: Case, asked: Mapping[str, WhatIf], answers: Mapping[str, Estimate]) -> Finding:
    """Compare the plan's sharding with the others."""
    plan = case.plan
    if plan.sharded_data_parallel_degree > 1:
        return _sharded(case, asked, answers)
    if plan.shard_optimizer_state:
        return _optimizer(case, asked, answers)
    with_ = asked["optimizer"]
    if case.data_parallel_degree == 1:
        return Finding(
            decision="not possible",
            because="There is one data-parallel rank, so there is nothing to divide the optimizer state over.",
        )
    estimate = answers.get("optimizer")
    sentences = [why_not_used(case, with_, estimate, name="shard_optimizer_state"), *_instead(case, asked, answers)]
    return Finding(
        decision="not used",
        because=" ".join(sentences),
        figures=figures(estimate, case.estimate),
        alternative=with_.plan if estimate else None,
    )


def _state(estimate: Estimate) -> str:
    peak = estimate.memory.peak
    return gib(peak.optimizer_state_gib + peak.fp32_copies_gib)


def _optimizer(case: Case, asked: Mapping[str, WhatIf], answers: Mapping[str, Estimate]) -> Finding:
    without, estimate = asked["nothing"], answers.get("nothing")
    whole = f" in place of {_state(estimate)}" if estimate else ""
    shares = plural(case.replicas, "replica")
    what = "The optimizer state is" if case.job.precision == "fp32" else "Optimizer state and fp32 copies are"
    lead = f"{what} divided over {shares}: {_state(case.estimate)} a GPU{whole}."
    sentences = [lead, why_used(case, without, estimate), *_instead(case, asked, answers)]
    return Finding(
        decision="used",
        because=" ".join(sentences),
        figures=figures(case.estimate, estimate),
        alternative=without.plan if estimate else None,
    )


def _instead(case: Case, asked: Mapping[str, WhatIf], answers: Mapping[str, Estimate]) -> list[str]:
    """Sharded data parallelism in its place, at the smallest degree that fits (else the largest)."""
    if case.plan.pipeline_parallel_degree > 1:
        return ["Sharded data parallelism in its place is not possible: it excludes pipeline parallelism."]
    degrees = [degree for degree in _degrees(case.replicas) if f"sharded {degree}" in answers]
    tried = {degree: answers[f"sharded {degree}"] for degree in degrees}
    if not tried:
        return []
    least = case.min_fit_probability
    fitting = [degree for degree, one in tried.items() if fits(one, least)]
    degree = min(fitting) if fitting else max(tried)
    which = "at the smallest degree that fits" if fitting else "even at the largest degree"
    aside = asked[f"sharded {degree}"].aside
    one = tried[degree]
    return [
        (
            f"Sharded data parallelism in its place, {which} ({degree}){aside}, {compared(case.estimate, one)};"
            f" it {fit(one, least)}."
        )
    ]


def _sharded(case: Case, asked: Mapping[str, WhatIf], answers: Mapping[str, Estimate]) -> Finding:
    degree = case.plan.sharded_data_parallel_degree
    without, estimate = asked["optimizer"], answers.get("optimizer")
    bytes_ = 16 if case.job.precision == "fp32" else 20
    if case.job.optimizer == "sgd":
        bytes_ -= 4
    sentences = [
        (
            f"All {bytes_} bytes of state a parameter (parameters, gradients, optimizer state, copies) are divided over"
            f" {degree} GPUs, where shard_optimizer_state would leave parameters and gradients whole."
        )
    ]
    if estimate is None:
        sentences.append(f"There is no plan with shard_optimizer_state in its place: {without.obstacle}")
    else:
        sentences.append(
            f"With shard_optimizer_state in its place{without.aside} the plan {compared(case.estimate, estimate)};"
            f" it then {fit(estimate, case.min_fit_probability)}."
        )
    sentences.append(why_used(case, asked["nothing"], answers.get("nothing"), name="any sharding"))
    return Finding(
        decision="used",
        because=" ".join(sentences),
        figures=figures(case.estimate, estimate),
        alternative=without.plan if estimate else None,
        practice="sharded_data_parallelism",
    )
