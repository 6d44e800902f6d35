"""Batch and microbatches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.guidance.techniques.conclusion import Conclusion
from smp_advisor.guidance.what_if import WhatIf, vary
from smp_advisor.wording import SAME, batch_limit, compared, fit, fits, global_batch, plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.planned_run import PlannedRun

__all__ = ["brief_parts", "comparisons", "conclude"]


def comparisons(run: PlannedRun) -> dict[str, WhatIf]:
    """Twice the batch, twice the microbatches, twice the active microbatches, each if possible."""
    plan = run.plan
    result: dict[str, WhatIf] = {}
    if run.job.global_batch_size is None and not _beyond_limit(run):
        result["batch"] = vary(run, batch_size=2 * plan.batch_size)
    if plan.microbatches > 1:
        result["together"] = vary(run, microbatches=1)
    if plan.batch_size % (2 * plan.microbatches) == 0:
        more: dict[str, Any] = {"microbatches": 2 * plan.microbatches}
        # Fixed, so that only the microbatches change; the library's default would follow them.
        if plan.pipeline_parallel_degree > 1 and plan.pipeline != "simple":
            more["active_microbatches"] = plan.active_in_flight
        result["microbatches"] = vary(run, **more)
    if plan.pipeline_parallel_degree > 1 and plan.pipeline != "simple" and plan.active_in_flight < plan.microbatches:
        active = min(2 * plan.active_in_flight, plan.microbatches)
        result["active"] = vary(run, active_microbatches=active)
    return result


def _beyond_limit(run: PlannedRun) -> bool:
    return 2 * run.estimate.tokens_per_step > run.job.max_tokens_per_step


def conclude(run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]) -> Conclusion:
    """Report the batch and the effect of a larger one."""
    plan = run.plan
    microbatches = plural(plan.microbatches, "microbatch", "microbatches")
    size = plan.batch_size // plan.microbatches
    copies = run.replicas if plan.prescaled_batch else run.data_parallel_degree
    total = global_batch(run.model, run.estimate)
    sentences = [
        f"Each {_owner(run)} processes {plural(plan.batch_size, 'sample')} per step, in {microbatches} of {size}.",
        f"{f'{copies:,} of them make' if copies > 1 else 'That is'} a global batch of {total}.",
    ]
    if plan.microbatches > 1:
        sentences.append(
            f"Every batch must be a multiple of {plan.microbatches}, including the last batch of an epoch: drop it with"
            " drop_last=True."
        )
    active = min(2 * plan.active_in_flight, plan.microbatches)
    for key, change in (
        ("batch", f"twice the batch ({2 * plan.batch_size})"),
        ("microbatches", f"twice the microbatches ({2 * plan.microbatches}, each half as large)"),
        ("active", f"{active} active microbatches instead of {plan.active_in_flight}"),
    ):
        if key in estimates:
            estimate = estimates[key]
            sentences.append(f"With {change}{comparisons[key].aside}, the plan {compared(run.estimate, estimate)}.")
            sentences.append(f"It {fit(estimate, run.min_fit_probability)}.")
    if run.job.global_batch_size is not None:
        sentences.append("The global batch is as requested.")
    elif _beyond_limit(run):
        sentences.append(f"Twice the batch would exceed the limit of {batch_limit(run.model, run.job)} per step.")
    figures = (
        ("batch_size", str(plan.batch_size)),
        ("microbatches", str(plan.microbatches)),
        ("samples per microbatch", str(size)),
        ("microbatches in flight", str(run.estimate.microbatches_in_flight)),
        ("global batch", total),
    )
    alternative = next((comparisons[key].plan for key in ("batch", "microbatches", "active") if key in estimates), None)
    brief = brief_parts(run, estimates.get("together"))
    return Conclusion(
        decision="used", because=" ".join(sentences), brief=brief, figures=figures, alternative=alternative
    )


def brief_parts(run: PlannedRun, together: Estimate | None) -> str:
    """Why a batch is processed in parts, given the estimate of the batch in one part."""
    if together is None:
        return "The batch of each replica is processed at once."
    reason = "Each replica processes its batch in parts"
    if not fits(together, run.min_fit_probability):
        return f"{reason}: at once, it would not fit." if run.fits else f"{reason}; at once, it would not fit, either."
    if not run.fits:
        return f"{reason}; at once, it would fit."
    change = together.samples_per_second / run.estimate.samples_per_second - 1
    return f"{reason}; at once would be {'as fast' if abs(change) < SAME else 'faster' if change > 0 else 'slower'}."


def _owner(run: PlannedRun) -> str:
    """The GPUs that process one `batch_size` together."""
    tp, pp = run.plan.tensor_parallel_degree, run.plan.pipeline_parallel_degree
    if run.plan.prescaled_batch and tp > 1:
        return f"model-parallel group of {tp * pp} GPUs" if pp > 1 else f"tensor-parallel group of {tp} GPUs"
    return f"pipeline of {pp} GPUs" if pp > 1 else "GPU"
