"""EST508: memory of the plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.costs import estimate
from smp_advisor.costs.wording import fit as fit_words
from smp_advisor.costs.wording import fits, gib
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries import mismatches
from smp_advisor.libraries.library import plan_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.estimators.cases import Case, Hit
    from smp_advisor.libraries.plan import Plan


@dataclass(frozen=True, slots=True)
class Variant:
    saying: str
    """The change in words: "activation_checkpointing='each'"."""
    plan: Plan


def _made(plan: Plan, cluster: Cluster, **changes: Any) -> Iterator[Variant]:
    names = plan_fields(plan.library)
    if not changes.keys() <= names or all(getattr(plan, name) == value for name, value in changes.items()):
        return
    try:
        changed = replace(plan, **changes)
        if any(True for _ in mismatches(changed, cluster)):
            return
    except AdvisorError:
        return
    saying = " and ".join(f"{name}={value!r}" for name, value in changes.items())
    yield Variant(saying, changed)


def larger(plan: Plan, cluster: Cluster) -> Iterator[Variant]:
    """Yield the changes that save memory, the smallest first."""
    yield from _made(plan, cluster, activation_checkpointing="each")
    if not plan.shard_optimizer_state and plan.sharded_data_parallel_degree == 1:
        yield from _made(plan, cluster, shard_optimizer_state=True)
    for divided in (2, 4, 8):
        if plan.batch_size % divided == 0 and (plan.batch_size // divided) % plan.microbatches == 0:
            yield from _made(plan, cluster, batch_size=plan.batch_size // divided)
    for factor in (2, 4, 8, 16, 32):
        if plan.hybrid_shard_degree > 0:
            yield from _made(plan, cluster, hybrid_shard_degree=plan.hybrid_shard_degree * factor)
        if plan.sharded_data_parallel_degree > 1:
            degree = plan.sharded_data_parallel_degree * factor
            yield from _made(plan, cluster, sharded_data_parallel_degree=degree)
    for factor in (2, 4, 8):
        degree = plan.tensor_parallel_degree * factor
        if degree <= cluster.gpus_per_node:
            yield from _made(plan, cluster, tensor_parallel_degree=degree)
    yield from _made(plan, cluster, activation_checkpointing="each", offload_activations=True)
    for factor in (2, 4, 8):
        degree = plan.pipeline_parallel_degree * factor
        yield from _made(plan, cluster, **{plan.PIPELINE_FIELD: degree})


_CERTAIN = 0.02
"""Plans that fit with less than this probability certainly fail."""
_SHORT = 128
"""Tokens of the shortest sequences that models are trained on."""
_SURELY = {"GPU memory": "GPU memory, certainly", "host memory": "host memory, certainly"}
_DEGREES = ("hybrid_shard_degree", "tensor_parallel_degree", "partitions", "pipeline_parallel_degree")


def _estimates(case: Case, variants: Iterable[Variant]) -> list[tuple[Variant, Estimate]]:
    model, cluster, job = case.back.model, case.back.cluster, case.back.job
    if model is None or cluster is None or job is None:
        return []
    suitable = [variant for variant in variants if not any(True for _ in mismatches(variant.plan, cluster, model, job))]
    return [(variant, estimate(model, cluster, job, variant.plan)) for variant in suitable]


def estimate_of(case: Case) -> Estimate | None:
    """The estimate of the plan; None if there is none, or if processes are not one per GPU, as estimates assume."""
    back = case.back
    if back.plan is None or back.cluster is None or back.model is None or back.job is None:
        return None
    try:
        one_per_gpu = back.cluster.instance.gpus == case.processes
        return estimate(back.model, back.cluster, back.job, back.plan) if one_per_gpu else None
    except AdvisorError:
        return None


def checkpointed_estimate(case: Case) -> Estimate | None:
    """The estimate with activation checkpointing, if the text has no setting for it and the plan does not fit."""
    now, cluster = estimate_of(case), case.back.cluster
    if now is None or cluster is None or now.fits:
        return None
    if "activation_checkpointing" in case.back.settings or now.plan.activation_checkpointing:
        return None
    changes = _made(now.plan, cluster, activation_checkpointing="each")
    return next((there for _, there in _estimates(case, changes)), None)


def fit(case: Case) -> Iterator[Hit]:
    """EST508: a plan whose point estimate does not fit, and the smallest change that fits."""
    now, cluster = estimate_of(case), case.back.cluster
    if now is None or cluster is None or now.fits:
        return
    checkpointed, with_it = "", checkpointed_estimate(case)
    if with_it is not None and with_it.fits:
        checkpointed = ", without activation checkpointing, which the text does not set"
    elif with_it is not None:
        now, checkpointed = with_it, ", even with activation checkpointing"
    least = case.min_fit_probability
    results = [(variant, there) for variant, there in _estimates(case, larger(now.plan, cluster)) if there.fits]
    smallest = next((result for result in results if fits(result[1], least)), None)
    otherwise = "Get a plan from smp_advisor.advise, or use more or larger GPUs"
    remedy = f"No single change makes the plan fit. {otherwise}"
    if smallest is not None:
        remedy = f"The smallest change that fits is {smallest[0].saying}: it {fit_words(smallest[1], least)}"
    elif results:
        nearest, there = max(results, key=lambda result: result[1].fit_probability)
        remedy = "No single change makes the plan fit with the required probability. The nearest is"
        remedy += f" {nearest.saying}: it {fit_words(there, least)}. {otherwise}"
    values: dict[str, Any] = {"checkpointed": checkpointed, "remedy": remedy}
    if not now.host_memory_fits and now.headroom_gib >= 0:
        variant = "host memory"
        values |= {"needed": gib(now.host_memory_gib_per_node)}
    else:
        variant = "GPU memory"
        values |= {"needed": gib(now.needed_gib), "usable": gib(now.usable_gpu_memory_gib)}
        values["excess"] = gib(-now.headroom_gib)
    back, then = case.back, now
    if now.fit_probability < _CERTAIN and back.assumes_length and back.model and back.job:
        # Certain if it fails with short sequences, too, where their length is an assumption.
        then = estimate(back.model, cluster, replace(back.job, sequence_length=_SHORT), now.plan)
    variant = _SURELY[variant] if then.fit_probability < _CERTAIN else variant
    yield case.hit("EST508", variant, *_DEGREES, **values)
