"""Pipeline parallelism across nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance.techniques.conclusion import Conclusion, why_not_used, why_used
from smp_advisor.guidance.what_if import WhatIf, vary, without
from smp_advisor.wording import duration, figures, plural, step_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.planned_run import PlannedRun

__all__ = ["comparisons", "conclude"]


def comparisons(run: PlannedRun) -> dict[str, WhatIf]:
    """One stage if there are several, two stages otherwise."""
    if run.plan.pipeline_parallel_degree > 1:
        return {"without": without(run, pipeline_parallel_degree=1)}
    if run.plan.sharded_data_parallel_degree > 1:
        return {}
    return {"with": _two_stages(run)}


def _two_stages(run: PlannedRun) -> WhatIf:
    """Two stages. A single microbatch would not overlap them, so AWS's starting points of 4 or 2 are tried first."""
    plain = vary(run, pipeline_parallel_degree=2)
    if run.plan.microbatches > 1 or plain.plan is None:
        return plain
    for microbatches in (4, 2):
        if plain.plan.batch_size % microbatches == 0:
            more = vary(run, pipeline_parallel_degree=2, microbatches=microbatches)
            return WhatIf(
                cluster=more.cluster,
                job=more.job,
                plan=more.plan,
                moved=(*more.moved, f"{microbatches} microbatches instead of 1"),
                obstacle=more.obstacle,
            )
    return plain


def conclude(run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]) -> Conclusion:
    """Compare the plan's pipeline with none, or no pipeline with two stages."""
    if run.plan.pipeline_parallel_degree > 1:
        return _used(run, comparisons["without"], estimates.get("without"))
    if run.plan.sharded_data_parallel_degree > 1:
        return Conclusion(
            decision="not possible",
            because="This plan uses sharded data parallelism, which excludes pipeline parallelism.",
        )
    comparison, estimate = comparisons["with"], estimates.get("with")
    if estimate is None:
        return Conclusion(decision="not possible", because=comparison.obstacle)
    return Conclusion(
        decision="not used",
        because=why_not_used(run, comparison, estimate, name="pipeline_parallel_degree=2"),
        figures=figures(estimate, run.estimate),
        alternative=comparison.plan,
    )


def _used(run: PlannedRun, without: WhatIf, estimate: Estimate | None) -> Conclusion:
    plan, current = run.plan, run.estimate
    waiting = duration(current, current.time.pipeline_bubble_seconds)
    sentences = (
        f"The layers are divided into {plan.pipeline_parallel_degree} stages, which {_placement(run)}.",
        (
            f"With {plural(plan.microbatches, 'microbatch', 'microbatches')}, at most {current.microbatches_in_flight}"
            f" in flight, waiting and transfers between stages take {waiting} of {step_time(current)} per step."
        ),
        why_used(run, without, estimate),
    )
    return Conclusion(
        decision="used",
        because=" ".join(sentences),
        figures=(*figures(current, estimate), ("waiting and transfers between stages", waiting)),
        alternative=without.plan if estimate else None,
    )


def _placement(run: PlannedRun) -> str:
    """Location of neighboring stages: placement "cluster" keeps tensor-parallel ranks next to each other."""
    plan, per_node = run.plan, run.cluster.instance.gpus
    stride = run.replicas if plan.placement_strategy == "spread" else plan.tensor_parallel_degree
    if stride * plan.pipeline_parallel_degree <= per_node:
        return "are within a node"
    if stride >= per_node:
        return "are on different nodes, as AWS advises"
    return f"are on several nodes, with up to {per_node // stride} of them per node"
