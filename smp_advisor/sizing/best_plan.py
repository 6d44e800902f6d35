"""The best plan on one cluster, over the libraries that can train there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smp_advisor.costs.evaluate import estimate
from smp_advisor.costs.intervals import plan_kinds
from smp_advisor.costs.stack import stack_of
from smp_advisor.errors import AdvisorError
from smp_advisor.guidance.library_candidates import has_script, job_for, library_policy, obstacle, pins_for
from smp_advisor.guidance.precision import search_in_bf16_if_possible
from smp_advisor.sizing.cluster_size import ClusterSize
from smp_advisor.sizing.places import AUTO

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.guidance.library_candidates import Request
    from smp_advisor.search import Objective
    from smp_advisor.sizing.question import Question

__all__ = ["best_on"]


def best_on(question: Question, cluster: Cluster) -> ClusterSize:
    """The best plan on a cluster; that of a later library of the policy only if it gains enough for the policy.

    Libraries in which no script is generated for the job come last. The library is chosen by its fastest plan,
    and the plan by the objective.
    """
    here = question.on(cluster)
    if question.library != AUTO:
        return _searched(here.request, question.library, question.objective)
    names = _libraries(here.request)
    best = ClusterSize(cluster=cluster, library=names[0], job=here.request.job, estimate=None)
    gain = library_policy().gain
    for name in sorted(names, key=lambda name: not has_script(name, here.request)):
        size = _searched(here.request, name, "throughput")
        faster = size.tokens_per_second >= best.tokens_per_second * (1 + gain) and cluster.gpus > 1
        faster = faster and has_script(name, here.request) >= has_script(best.library, here.request)
        if not best.fits or (size.fits and faster):
            best = size
    if not best.fits:  # the archived library, only where no other can train the model
        archived = _searched(here.request, library_policy().archived, "throughput")
        best = archived if archived.fits else best
    if question.objective in {"throughput", "cost"} or not best.fits:
        return best
    return _searched(here.request, best.library, question.objective)


def _libraries(request: Request) -> list[str]:
    """Libraries of the policy that can train the request on its cluster, in order."""
    policy = library_policy()
    usual = [name for name in policy.order_for(request.job) if obstacle(name, request) is None]
    return usual or [policy.archived]


def _searched(request: Request, library: str, objective: Objective) -> ClusterSize:
    cluster = request.cluster
    job = job_for(library, request)
    nothing = ClusterSize(cluster=cluster, library=library, job=job, estimate=None)
    if obstacle(library, request) is not None or (job.precision == "bf16" and not cluster.instance.bf16):
        return nothing
    pins = pins_for(library, request)
    terms = {"library": library, "min_fit_probability": request.min_fit_probability, "pins": pins}
    try:
        job, result, _ = search_in_bf16_if_possible(
            request.model, cluster, job, objective, terms, user_settings=request.user_settings
        )
    except AdvisorError:
        return nothing  # a fixed setting that this cluster does not allow
    if not len(result.ranked):
        nearest = float(result.needed_gib.min()) if result.plans_enumerated else None
        return replace(nothing, nearest_gib=nearest)
    layout = result.space.layout.take(result.ranked[:1])
    return ClusterSize(
        cluster=cluster,
        library=library,
        job=job,
        estimate=estimate(request.model, cluster, job, result.best()),
        kind=str(plan_kinds(layout, cluster)[0]),
        stack=stack_of(job, layout).name,
    )
