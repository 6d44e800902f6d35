"""EST508, EST510: what the memory model says of the plan, and which techniques it could do without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.costs import estimate
from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.checks.case import Case, Hit
from smp_advisor.estimators.variants import Variant, estimated, larger, without
from smp_advisor.guidance.wording import fit as fit_words
from smp_advisor.guidance.wording import fits, gib, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.costs.estimate import Estimate

__all__ = ["estimate_of", "fit", "unneeded"]

_WORTH = 0.01
"""Smaller gains are not worth a remark."""


def estimate_of(case: Case) -> Estimate | None:
    """What the plan costs; None where plan, cluster, model or job are missing, or do not go together."""
    back = case.back
    if back.plan is None or back.cluster is None or back.model is None or back.job is None:
        return None
    if back.cluster.instance.gpus != case.processes:
        return None  # EST502 says so; the estimate is of one process a GPU
    try:
        return estimate(back.model, back.cluster, back.job, back.plan)
    except (AdvisorError, NotImplementedError):
        return None


def fit(case: Case) -> Iterator[Hit]:
    """EST508: a plan that does not fit by its point estimate, and the smallest change that does."""
    now = estimate_of(case)
    if now is None or now.fits:
        return
    if not now.host_memory_fits and now.headroom_gib >= 0:
        what = f"offloaded activations take {gib(now.host_memory_gib_per_node)} of host memory a node, more than there is"
    else:
        what = (
            f"the plan needs {gib(now.memory.peak.total_gib)} a GPU, {gib(-now.headroom_gib)} more than the usable"
            f" {gib(now.usable_gpu_memory_gib)}"
        )
    remedy = _smallest_change(case)
    yield Hit(id="EST508", span=case.span_of("hybrid_shard_degree", "tensor_parallel_degree", "partitions", "pipeline_parallel_degree"), values={"what": what, "remedy": remedy})


def _smallest_change(case: Case) -> str:
    back = case.back
    assert back.plan is not None and back.cluster is not None and back.model is not None and back.job is not None  # noqa: S101, PT018 - narrows types: estimate_of has looked
    found = estimated(back.model, back.cluster, back.job, list(larger(back.plan, back.cluster)))
    for least in (case.min_fit_probability, 0.0):
        for variant, there in found:
            if there.fits and fits(there, least):
                return f"The smallest change that fits is {variant.saying}: it {fit_words(there, case.min_fit_probability)}"
    return "No single change makes it fit: ask smp_advisor.advise for a plan, or take more GPUs or larger ones"


def unneeded(case: Case) -> Iterator[Hit]:
    """EST510: techniques without which the plan still fits, and is faster."""
    now = estimate_of(case)
    back = case.back
    if now is None or not now.fits or back.plan is None or back.cluster is None or back.model is None or back.job is None:
        return
    best: dict[str, tuple[float, Variant, Estimate]] = {}
    for variant, there in estimated(back.model, back.cluster, back.job, list(without(back.plan, back.cluster))):
        gain = there.samples_per_second / now.samples_per_second - 1
        if there.fits and fits(there, case.min_fit_probability) and gain >= _WORTH:
            if variant.technique not in best or gain > best[variant.technique][0]:
                best[variant.technique] = (gain, variant, there)
    for technique, (gain, variant, there) in best.items():
        shown = case.configuration.parameters.get(technique) or case.configuration.hyperparameters.get(technique)
        yield Hit(
            id="EST510",
            span=shown.span if shown is not None and shown.span is not None else case.span_of("parameters"),
            values={
                "what": f"{technique} is on, and without it the plan {fit_words(there, case.min_fit_probability)}",
                "remedy": f"{variant.saying} processes {percent(gain)} more samples a second",
            },
        )
