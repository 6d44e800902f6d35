"""EST508 and EST510: memory of the plan, and techniques that it does not need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.costs import estimate
from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.checks.case import Case, Hit
from smp_advisor.estimators.variants import Variant, estimated, larger, without
from smp_advisor.guidance.wording import fit as fit_words
from smp_advisor.guidance.wording import fits, gib, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["estimate_of", "fit", "unneeded"]

_WORTH = 0.01
"""Smaller gains are not reported."""
_DEGREES = ("hybrid_shard_degree", "tensor_parallel_degree", "partitions", "pipeline_parallel_degree")


@dataclass(frozen=True, slots=True)
class _Ground:
    """Input of an estimate."""

    model: Model
    cluster: Cluster
    job: Job
    plan: Plan

    def estimates(self, variants: Iterator[Variant]) -> list[tuple[Variant, Estimate]]:
        return estimated(self.model, self.cluster, self.job, list(variants))


def _ground(case: Case) -> _Ground | None:
    """None without plan, cluster, model or job, or if processes are not one per GPU, as estimates assume."""
    back = case.back
    if back.plan is None or back.cluster is None or back.model is None or back.job is None:
        return None
    if back.cluster.instance.gpus != case.processes:
        return None
    return _Ground(back.model, back.cluster, back.job, back.plan)


def estimate_of(case: Case) -> Estimate | None:
    """The estimate of the plan; None if there is none."""
    ground = _ground(case)
    if ground is None:
        return None
    try:
        return estimate(ground.model, ground.cluster, ground.job, ground.plan)
    except AdvisorError:
        return None


def fit(case: Case) -> Iterator[Hit]:
    """EST508: a plan whose point estimate does not fit, and the smallest change that fits."""
    now, ground = estimate_of(case), _ground(case)
    if now is None or ground is None or now.fits:
        return
    checkpointed = ""
    if "activation_checkpointing" not in case.back.settings and not ground.plan.activation_checkpointing:
        # The script may checkpoint without a hyperparameter for it: report only what fails even then.
        checkpointing = [
            variant for variant in larger(ground.plan, ground.cluster) if variant.technique == "checkpointing"
        ]
        results = ground.estimates(iter(checkpointing[:1]))
        if not results or results[0][1].fits:
            return
        now = results[0][1]
        ground = _Ground(ground.model, ground.cluster, ground.job, now.plan)
        checkpointed = ", even with activation checkpointing"
    values = {"checkpointed": checkpointed, "remedy": _smallest_change(ground, case.min_fit_probability)}
    if not now.host_memory_fits and now.headroom_gib >= 0:
        variant = "host memory"
        values |= {"needed": gib(now.host_memory_gib_per_node)}
    else:
        variant = "GPU memory"
        values |= {
            "needed": gib(now.needed_gib),
            "excess": gib(-now.headroom_gib),
            "usable": gib(now.usable_gpu_memory_gib),
        }
    yield Hit(id="EST508", span=case.span_of(*_DEGREES), variant=variant, values=values)


def _smallest_change(ground: _Ground, min_fit_probability: float) -> str:
    results = [
        (variant, there) for variant, there in ground.estimates(larger(ground.plan, ground.cluster)) if there.fits
    ]
    for variant, there in results:
        if fits(there, min_fit_probability):
            return f"The smallest change that fits is {variant.saying}: it {fit_words(there, min_fit_probability)}"
    alternative = "Get a plan from smp_advisor.advise, or use more or larger GPUs"
    if not results:
        return f"No single change makes the plan fit. {alternative}"
    variant, there = max(results, key=lambda result: result[1].fit_probability)
    return (
        "No single change makes the plan fit with the required probability. The nearest is"
        f" {variant.saying}: it {fit_words(there, min_fit_probability)}. {alternative}"
    )


def unneeded(case: Case) -> Iterator[Hit]:
    """EST510: techniques without which the plan still fits and is faster."""
    now, ground = estimate_of(case), _ground(case)
    if now is None or ground is None or not now.fits:
        return
    if not {"batch_size", "activation_checkpointing"} <= case.back.settings:
        return  # the other settings of the script are unknown
    for variant, there in ground.estimates(without(ground.plan, ground.cluster)):
        gain = there.samples_per_second / now.samples_per_second - 1
        if not fits(there, case.min_fit_probability) or not there.fits or gain < _WORTH:
            continue
        name = variant.technique
        shown = case.configuration.parameters.get(name) or case.configuration.hyperparameters.get(name)
        yield Hit(
            id="EST510",
            span=shown.span if shown is not None and shown.span is not None else case.span_of("parameters"),
            variant="technique",
            values={
                "technique": name,
                "fit": fit_words(there, case.min_fit_probability),
                "change": variant.saying,
                "gain": percent(gain),
            },
        )
