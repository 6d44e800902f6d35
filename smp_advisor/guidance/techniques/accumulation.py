"""Batch per GPU and gradient accumulation, in libraries without a pipeline schedule of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance.techniques.batch import brief_parts
from smp_advisor.guidance.techniques.conclusion import Conclusion
from smp_advisor.guidance.what_if import WhatIf, vary
from smp_advisor.libraries.library import plan_fields
from smp_advisor.wording import compared, fit, global_batch, plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.planned_run import PlannedRun

__all__ = ["comparisons", "conclude"]


def comparisons(run: PlannedRun) -> dict[str, WhatIf]:
    """Twice the batch, if the limit of tokens allows it, and the batch without accumulation."""
    result: dict[str, WhatIf] = {}
    if run.job.global_batch_size is None and 2 * run.estimate.tokens_per_step <= run.job.max_tokens_per_step:
        result["batch"] = vary(run, batch_size=2 * run.plan.batch_size)
    if run.plan.gradient_accumulation_steps > 1:
        result["together"] = vary(run, gradient_accumulation_steps=1)
    return result


def conclude(run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]) -> Conclusion:
    """Report the batch and the effect of a larger one."""
    plan = run.plan
    group = plan.tensor_parallel_degree * plan.context_parallel_degree * plan.pipeline_parallel_degree
    owner = f"group of {group} GPUs" if group > 1 else "GPU"
    total = global_batch(run.model, run.estimate)
    steps = plan.gradient_accumulation_steps
    times = f", {steps} times before each optimizer step" if steps > 1 else ""
    copies = f"{run.replicas:,} of them make" if run.replicas > 1 else "That is"
    sentences = [
        f"Each {owner} processes {plural(plan.batch_size, 'sample')}{times}.",
        f"{copies} a global batch of {total}.",
    ]
    if "batch" in estimates:
        estimate = estimates["batch"]
        sentences += [
            (
                f"With twice the batch ({2 * plan.batch_size}){comparisons['batch'].aside}, the plan"
                f" {compared(run.estimate, estimate)}."
            ),
            f"It {fit(estimate, run.min_fit_probability)}.",
        ]
    if run.job.global_batch_size is not None:
        sentences.append("The global batch is as requested.")
    rows = [("batch_size", str(plan.batch_size))]
    if "gradient_accumulation_steps" in plan_fields(plan.library):
        rows.append(("gradient_accumulation_steps", str(steps)))
    return Conclusion(
        decision="used",
        because=" ".join(sentences),
        brief=brief_parts(run, estimates.get("together")),
        figures=(*rows, ("global batch", total)),
        alternative=comparisons["batch"].plan if "batch" in estimates else None,
    )
