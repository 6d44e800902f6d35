"""The batch of a plan, and its parts that run one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.advice.conclusion import Conclusion, speed_of
from smp_advisor.advice.variants import PlannedRun, WhatIf, vary
from smp_advisor.costs.wording import batch_limit, compared, fit, fits, global_batch, plural
from smp_advisor.libraries.library import plan_fields

if TYPE_CHECKING:
    from smp_advisor.advice.variants import Estimates, Plans

_PARTS = ("microbatches", "gradient_accumulation_steps")


def _may_double(run: PlannedRun) -> bool:
    return run.job.global_batch_size is None and 2 * run.estimate.tokens_per_step <= run.job.max_tokens_per_step


def larger_batches(run: PlannedRun) -> dict[str, WhatIf]:
    """Return twice the batch, and the batch of each replica at once, each if possible."""
    result = {"batch": vary(run, batch_size=2 * run.plan.batch_size)} if _may_double(run) else {}
    for parts in _PARTS:
        if getattr(run.plan, parts) > 1:
            at_once: dict[str, Any] = {parts: 1}
            result["together"] = vary(run, **at_once)
    return result


def other_microbatches(run: PlannedRun) -> dict[str, WhatIf]:
    """Return `larger_batches`; where twice the batch is not possible, twice the microbatches and the active ones."""
    plan, result = run.plan, larger_batches(run)
    if "batch" in result and result["batch"].plan is not None:
        return result
    several_active = plan.pipeline_parallel_degree > 1 and plan.pipeline != "simple"
    if plan.batch_size % (2 * plan.microbatches) == 0:
        more: dict[str, Any] = {"microbatches": 2 * plan.microbatches}
        if several_active:  # only the microbatches change; the library's default of the active ones would follow them
            more["active_microbatches"] = plan.active_in_flight
        result["microbatches"] = vary(run, **more)
    if several_active and plan.active_in_flight < plan.microbatches:
        result["active"] = vary(run, active_microbatches=min(2 * plan.active_in_flight, plan.microbatches))
    return result


def conclude_on_batch(run: PlannedRun, comparisons: Plans, estimates: Estimates) -> Conclusion:
    """Report the batch of each group of GPUs, and the effect of a larger one and of the batch at once."""
    plan, larger, together = run.plan, estimates.get("batch"), estimates.get("together")
    total = global_batch(run.model, run.estimate)
    group = plan.tensor_parallel_degree * plan.context_parallel_degree * plan.pipeline_parallel_degree
    owner = f"Each group of {group} GPUs" if group > 1 else "Each GPU"
    in_parts = f", in {plan.microbatches} microbatches" if plan.microbatches > 1 else ""
    steps = plan.gradient_accumulation_steps
    times = f", {steps} times before each optimizer step" if steps > 1 else ""
    samples = plural(plan.batch_size * plan.batches_per_group, "sample")
    sentences = [f"{owner} processes {samples}{in_parts}{times}, and all of them {total}."]
    if plan.microbatches > 1:
        sentences.append(
            f"Every batch must be a multiple of {plan.microbatches}, including the last batch of an epoch: drop it with"
            " drop_last=True."
        )
    if larger is not None:
        change = f"twice the batch ({2 * plan.batch_size}){comparisons['batch'].aside}"
        sentences.append(f"With {change}, the plan {compared(run.estimate, larger)}.")
        sentences.append(f"It {fit(larger, run.min_fit_probability)}.")
    elif run.job.global_batch_size is not None:
        sentences.append("The global batch is as requested.")
    elif not _may_double(run):
        most = batch_limit(run.model, run.job.max_tokens_per_step)
        sentences.append(f"Twice the batch would exceed the limit of {most} per step.")
    brief = "The batch of each replica is processed at once."
    if together is not None:
        end = f"; at once would be {speed_of(run, together)}."
        if not fits(together, run.min_fit_probability):
            end = ": at once, it would not fit." if run.fits else "; at once, it would not fit, either."
        elif not run.fits:
            end = "; at once, it would fit."
        brief = f"Each replica processes its batch in parts{end}"
    plans = (comparisons[key].plan for key in ("batch", "microbatches", "active") if key in estimates)
    numbers = [name for name in ("batch_size", *_PARTS) if name in plan_fields(plan.library)]
    return Conclusion(
        decision="used",
        because=" ".join(sentences),
        brief=brief,
        figures=(*((name, str(getattr(plan, name))) for name in numbers), ("global batch", total)),
        alternative=next(plans, None),
    )
