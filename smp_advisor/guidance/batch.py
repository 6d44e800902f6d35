"""The batch: its parts and its size, against published ones and the limits of the search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.guidance.conclusion import Argument, Conclusion, speed_of
from smp_advisor.guidance.what_if import PlannedRun, WhatIf, vary
from smp_advisor.libraries.library import plan_fields
from smp_advisor.search import NEAR_BEST
from smp_advisor.wording import batch_limit, compared, fit, fits, global_batch, percent, plural
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.search import BatchChoice
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

_NEAR_TARGET = 1.5
"""Largest ratio of a batch and the published one that counts as the same."""


def _may_double(run: PlannedRun) -> bool:
    return run.job.global_batch_size is None and 2 * run.estimate.tokens_per_step <= run.job.max_tokens_per_step


def _accumulations(run: PlannedRun) -> dict[str, WhatIf]:
    """Twice the batch, if the limit of tokens allows it, and the batch without accumulation."""
    result = {"batch": vary(run, batch_size=2 * run.plan.batch_size)} if _may_double(run) else {}
    if run.plan.gradient_accumulation_steps > 1:
        result["together"] = vary(run, gradient_accumulation_steps=1)
    return result


def _on_accumulation(
    run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]
) -> Conclusion:
    """Report the batch per GPU and the effect of a larger one, without a pipeline schedule of the library."""
    plan = run.plan
    group = plan.tensor_parallel_degree * plan.context_parallel_degree * plan.pipeline_parallel_degree
    owner = f"group of {group} GPUs" if group > 1 else "GPU"
    steps = plan.gradient_accumulation_steps
    times = f", {steps} times before each optimizer step" if steps > 1 else ""
    rows = [("batch_size", str(plan.batch_size))]
    if "gradient_accumulation_steps" in plan_fields(plan.library):
        rows.append(("gradient_accumulation_steps", str(steps)))
    sentences = [f"Each {owner} processes {plural(plan.batch_size, 'sample')}{times}.", _total(run, run.replicas)]
    sentences += _larger(run, comparisons, estimates, {"batch": f"twice the batch ({2 * plan.batch_size})"})
    return _conclusion(run, comparisons, estimates, sentences, rows)


def _microbatches(run: PlannedRun) -> dict[str, WhatIf]:
    """Twice the batch, twice the microbatches, twice the active microbatches, each if possible."""
    plan = run.plan
    several_active = plan.pipeline_parallel_degree > 1 and plan.pipeline != "simple"
    result = {"batch": vary(run, batch_size=2 * plan.batch_size)} if _may_double(run) else {}
    if plan.microbatches > 1:
        result["together"] = vary(run, microbatches=1)
    if plan.batch_size % (2 * plan.microbatches) == 0:
        more: dict[str, Any] = {"microbatches": 2 * plan.microbatches}
        if several_active:  # only the microbatches change; the library's default of the active ones would follow them
            more["active_microbatches"] = plan.active_in_flight
        result["microbatches"] = vary(run, **more)
    if several_active and plan.active_in_flight < plan.microbatches:
        result["active"] = vary(run, active_microbatches=min(2 * plan.active_in_flight, plan.microbatches))
    return result


def _on_microbatches(
    run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]
) -> Conclusion:
    """Report the batch, its microbatches and the effect of larger ones."""
    plan, tp, pp = run.plan, run.plan.tensor_parallel_degree, run.plan.pipeline_parallel_degree
    owner = f"pipeline of {pp} GPUs" if pp > 1 else "GPU"
    if plan.prescaled_batch and tp > 1:
        owner = f"model-parallel group of {tp * pp} GPUs" if pp > 1 else f"tensor-parallel group of {tp} GPUs"
    size, samples = plan.batch_size // plan.microbatches, plural(plan.batch_size, "sample")
    microbatches = plural(plan.microbatches, "microbatch", "microbatches")
    sentences = [
        f"Each {owner} processes {samples} per step, in {microbatches} of {size}.",
        _total(run, run.replicas if plan.prescaled_batch else run.data_parallel_degree),
    ]
    if plan.microbatches > 1:
        sentences.append(
            f"Every batch must be a multiple of {plan.microbatches}, including the last batch of an epoch: drop it with"
            " drop_last=True."
        )
    active = min(2 * plan.active_in_flight, plan.microbatches)
    changes = {
        "batch": f"twice the batch ({2 * plan.batch_size})",
        "microbatches": f"twice the microbatches ({2 * plan.microbatches}, each half as large)",
        "active": f"{active} active microbatches instead of {plan.active_in_flight}",
    }
    sentences += _larger(run, comparisons, estimates, changes)
    if run.job.global_batch_size is None and not _may_double(run):
        sentences.append(f"Twice the batch would exceed the limit of {batch_limit(run.model, run.job)} per step.")
    rows = [
        ("batch_size", str(plan.batch_size)),
        ("microbatches", str(plan.microbatches)),
        ("samples per microbatch", str(size)),
        ("microbatches in flight", str(run.estimate.microbatches_in_flight)),
    ]
    return _conclusion(run, comparisons, estimates, sentences, rows)


def _total(run: PlannedRun, copies: int) -> str:
    lead = f"{copies:,} of them make" if copies > 1 else "That is"
    return f"{lead} a global batch of {global_batch(run.model, run.estimate)}."


def _larger(
    run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate], changes: Mapping[str, str]
) -> list[str]:
    """Sentences on larger batches and parts, as far as there are such plans."""
    sentences = [
        f"With {change}{comparisons[key].aside}, the plan {compared(run.estimate, estimates[key])}."
        f" It {fit(estimates[key], run.min_fit_probability)}."
        for key, change in changes.items()
        if key in estimates
    ]
    return sentences if run.job.global_batch_size is None else [*sentences, "The global batch is as requested."]


def _conclusion(
    run: PlannedRun,
    comparisons: Mapping[str, WhatIf],
    estimates: Mapping[str, Estimate],
    sentences: list[str],
    rows: list[tuple[str, str]],
) -> Conclusion:
    """The conclusion, with the reason why the batch is processed in parts in short."""
    together, brief = estimates.get("together"), "The batch of each replica is processed at once."
    if together is not None:
        end = f"; at once would be {speed_of(run, together)}."
        if not fits(together, run.min_fit_probability):
            end = ": at once, it would not fit." if run.fits else "; at once, it would not fit, either."
        elif not run.fits:
            end = "; at once, it would fit."
        brief = f"Each replica processes its batch in parts{end}"
    plans = (comparisons[key].plan for key in ("batch", "microbatches", "active") if key in estimates)
    return Conclusion(
        decision="used",
        because=" ".join(sentences),
        brief=brief,
        figures=(*rows, ("global batch", global_batch(run.model, run.estimate))),
        alternative=next(plans, None),
    )


accumulation = Argument(_accumulations, _on_accumulation)
microbatches = Argument(_microbatches, _on_microbatches)


def batch_reason(model: Model, estimate: Estimate, batch: BatchChoice) -> str:
    """The batch, and a published one for this size: ``4,096 samples (2.1 M tokens). GPT-3 13B used 2 M``."""
    samples = f"{estimate.global_batch_size:,} samples"
    if model.reads_tokens:
        samples += f" ({format_count(estimate.tokens_per_step)} tokens)"
    if batch.policy is None:
        return f"{samples}, as requested."
    policy, reason = batch.policy, ""
    ratio = batch.tokens_per_step / policy.target_tokens
    if ratio > _NEAR_TARGET and batch.half is not None and batch.half < 1 - NEAR_BEST:
        reason = ", because half of it would be slower"
    elif ratio < 1 / _NEAR_TARGET:
        if batch.cap_tokens is not None and 2 * batch.tokens_per_step > batch.cap_tokens:
            reason = f", because the limit is {format_count(batch.cap_tokens)} tokens per step"
        elif batch.twice is None:
            reason = ", because no plan with twice the batch fits"
        elif 2 * estimate.step_seconds / batch.twice > policy.longest_step_seconds:
            minutes = f"{policy.longest_step_seconds / 60:g} minutes"
            reason = f", because a step with twice the batch would take more than {minutes}"
        elif batch.larger_gain < NEAR_BEST:
            reason = ", because larger ones are not noticeably faster"
        elif batch.twice < 1 + NEAR_BEST:
            reason = ", because twice the batch is faster only with more techniques"
    example = policy.example.partition(", ")[0]
    return f"{samples}{reason}. {example[0].upper()}{example[1:]}."


def batch_note(model: Model, job: Job, estimate: Estimate, batch: BatchChoice) -> str:
    """The plan's global batch, and the effect of twice and half of it."""
    chosen = global_batch(model, estimate)
    if batch.policy is None:
        return f"Every plan keeps your global batch of {chosen}."

    def change(ratio: float) -> str:
        percents = round(100 * (ratio - 1))
        return f"{percents:+d} %" if percents else "less than 1 %"

    sentences = [f"You set no global batch size. The search chose {chosen}; {batch.policy.example}."]
    limit = f"the limit of {batch_limit(model, job)}"
    if batch.cap_binds:
        cost = f"costs {percent(batch.cap_cost)} of speed" if batch.cap_cost >= 0.005 else "costs no speed"
        sentences.append(f"Twice the batch would exceed {limit}, which {cost}.")
    elif batch.larger_gain < NEAR_BEST:
        near = f"{100 * NEAR_BEST:.0f} %"
        sentences.append(f"Twice the batch and more, up to {limit}, gain less than {near} or do not fit.")
    elif batch.twice is not None:
        sentences.append(f"Twice the batch changes the speed by {change(batch.twice)}.")
    if batch.half is not None:
        sentences.append(f"Half the batch changes it by {change(batch.half)}.")
    return " ".join(sentences)
