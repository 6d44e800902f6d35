"""Practice 5: pipeline parallelism across nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance.techniques.finding import Finding, why_not_used, why_used
from smp_advisor.guidance.what_if import WhatIf, vary
from smp_advisor.guidance.wording import figures, plural, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.case import Case

__all__ = ["ask", "find"]


def ask(case: Case) -> dict[str, WhatIf]:
    """One stage where there are several; two where there is one."""
    if case.plan.pipeline_parallel_degree > 1:
        return {"without": vary(case, pipeline_parallel_degree=1)}
    if case.plan.sharded_data_parallel_degree > 1:
        return {}
    return {"with": _two_stages(case)}


def _two_stages(case: Case) -> WhatIf:
    """Two stages; one microbatch would not overlap them, so AWS's starting points of 4 or 2 are tried first."""
    plain = vary(case, pipeline_parallel_degree=2)
    if case.plan.microbatches > 1 or plain.plan is None:
        return plain
    for microbatches in (4, 2):
        if plain.plan.batch_size % microbatches == 0:
            more = vary(case, pipeline_parallel_degree=2, microbatches=microbatches)
            return WhatIf(
                cluster=more.cluster,
                job=more.job,
                plan=more.plan,
                moved=(*more.moved, f"{microbatches} microbatches instead of 1"),
                obstacle=more.obstacle,
            )
    return plain


def find(case: Case, asked: Mapping[str, WhatIf], answers: Mapping[str, Estimate]) -> Finding:
    """Compare the plan's pipeline with none, or no pipeline with one of two stages."""
    if case.plan.pipeline_parallel_degree > 1:
        return _used(case, asked["without"], answers.get("without"))
    if case.plan.sharded_data_parallel_degree > 1:
        return Finding(
            decision="not possible",
            because="Sharded data parallelism, which this plan uses, and pipeline parallelism exclude each other.",
        )
    question, estimate = asked["with"], answers.get("with")
    if estimate is None:
        return Finding(decision="not possible", because=question.obstacle)
    return Finding(
        decision="not used",
        because=why_not_used(case, question, estimate, name="pipeline_parallel_degree=2"),
        figures=figures(estimate, case.estimate),
        alternative=question.plan,
    )


def _used(case: Case, without: WhatIf, estimate: Estimate | None) -> Finding:
    plan, now = case.plan, case.estimate
    sentences = [
        (
            f"The layers are divided into {plan.pipeline_parallel_degree} stages, which {_where(case)}; with"
            f" {plural(plan.microbatches, 'microbatch', 'microbatches')}, at most {now.microbatches_in_flight} in"
            f" flight, waiting and hand-overs take {seconds(now.time.pipeline_bubble_seconds)} of the"
            f" {seconds(now.step_seconds)} of a step."
        ),
        why_used(case, without, estimate),
    ]
    return Finding(
        decision="used",
        because=" ".join(sentences),
        figures=(
            *figures(now, estimate),
            ("waiting and hand-overs", seconds(now.time.pipeline_bubble_seconds)),
        ),
        alternative=without.plan if estimate else None,
    )


def _where(case: Case) -> str:
    """Where neighbouring stages lie, by placement: "cluster" keeps tensor-parallel ranks next to each other."""
    plan, per_node = case.plan, case.cluster.instance.gpus
    stride = case.replicas if plan.placement_strategy == "spread" else plan.tensor_parallel_degree
    if stride * plan.pipeline_parallel_degree <= per_node:
        return "lie within a node"
    if stride >= per_node:
        return "lie on different nodes, as AWS advises"
    return f"spread over several nodes, up to {per_node // stride} of them on one"
