"""Batch of a GPU and gradient accumulation, in libraries without a pipeline schedule of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance.amounts import global_batch
from smp_advisor.guidance.techniques.finding import Finding
from smp_advisor.guidance.what_if import WhatIf, vary
from smp_advisor.guidance.wording import compared, fit, plural
from smp_advisor.libraries.plan_fields import plan_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.case import Case

__all__ = ["ask", "find"]


def ask(case: Case) -> dict[str, WhatIf]:
    """Twice the batch, where the limit of tokens allows it."""
    if case.job.global_batch_size is not None or 2 * case.estimate.tokens_per_step > case.job.max_tokens_per_step:
        return {}
    return {"batch": vary(case, batch_size=2 * case.plan.batch_size)}


def find(case: Case, asked: Mapping[str, WhatIf], answers: Mapping[str, Estimate]) -> Finding:
    """Say what the batch is and what more of it would do."""
    plan, now = case.plan, case.estimate
    together = plan.tensor_parallel_degree * plan.context_parallel_degree * plan.pipeline_parallel_degree
    who = f"group of {together} GPUs" if together > 1 else "GPU"
    whole = global_batch(case.model, now)
    steps = plan.gradient_accumulation_steps
    often = f", {steps} times before each optimizer step" if steps > 1 else ""
    sentences = [
        (
            f"Each {who} is handed {plural(plan.batch_size, 'sample')}{often};"
            f" {plural(case.replicas, 'of them makes', 'of them make')} a global batch of {whole}."
        )
    ]
    if "batch" in answers:
        estimate = answers["batch"]
        sentences.append(
            f"Twice the batch ({2 * plan.batch_size}){asked['batch'].aside} {compared(now, estimate)}; it"
            f" {fit(estimate, case.min_fit_probability)}."
        )
    if case.job.global_batch_size is not None:
        sentences.append("The global batch is the one that was asked for.")
    rows = [("batch_size", str(plan.batch_size))]
    if "gradient_accumulation_steps" in plan_fields(plan.library):
        rows.append(("gradient_accumulation_steps", str(steps)))
    return Finding(
        decision="used",
        because=" ".join(sentences),
        figures=(*rows, ("global batch", whole)),
        alternative=asked["batch"].plan if "batch" in answers else None,
    )
