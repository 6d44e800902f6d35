"""The recommendation as a value, and the way to it: from a request to the explanation."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.advice import choice as reasons
from smp_advisor.advice import clusters
from smp_advisor.advice.description import is_named, is_profile
from smp_advisor.advice.explanation import explain
from smp_advisor.advice.practices import pitfalls
from smp_advisor.advice.reference import nearest_reference
from smp_advisor.advice.request import (
    Request,
    pinned_plan,
    require_fields,
    require_trainable,
    resolved,
    terms_of,
    with_code,
)
from smp_advisor.advice.variants import PlannedRun
from smp_advisor.arguments import LIMITS, brief
from smp_advisor.costs.evaluate import estimate, unreplaced
from smp_advisor.errors import AdvisorError, JobError
from smp_advisor.libraries import require_supported_instance
from smp_advisor.libraries.validation import check_against, unscripted_optimizer
from smp_advisor.search.candidates import job_for, library_policy, pins_for, search_in_bf16_if_possible
from smp_advisor.search.clusters import ClusterSize, Limits, Question, places_of
from smp_advisor.search.decision import better_neighbor, cost_of_certainty, decide
from smp_advisor.search.library import LibraryChoice, choose_library, framework_of, searches_of_all
from smp_advisor.search.search import representatives
from smp_advisor.search.sizes import fewer_nodes
from smp_advisor.search.ways_out import decided, nothing_fits

if TYPE_CHECKING:
    import pandas as pd

    from smp_advisor.advice.learned import Summary
    from smp_advisor.advice.practices import Pitfall, Reference, Step
    from smp_advisor.cluster import Cluster, Instance
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.search.decision import Decision
    from smp_advisor.search.rank import Objective
    from smp_advisor.search.search import SearchResult
    from smp_advisor.search.sizes import ClusterSizes, Progress
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


@dataclass(frozen=True, kw_only=True, repr=False)
class Recommendation:
    """The plan that the search chose for a request, with its estimate and its reasons."""

    request: Request
    """The request, which can be changed and made again."""
    model: Model
    cluster: Cluster
    """Cluster of the plan. The objective ``cost`` may choose another cluster than the requested one."""
    job: Job
    """Training run. `estimate.global_batch_size` is the batch that the search chose."""
    plan: Plan
    estimate: Estimate
    decision: Decision
    """How certain the choice is, and the reasons for its global batch."""
    steps: tuple[Step, ...]
    """The ordered practices, each with its decision, figures, trade-off and source."""
    pitfalls: tuple[Pitfall, ...]
    """Requirements of the plan for the training script, the data pipeline and the job."""
    reference: Reference | None
    """AWS's nearest reference configuration, with the differences; None if AWS publishes none for the library."""
    library_because: str = ""
    """The library with its status, and the reason for it, if the advisor chose it (``library="auto"``)."""
    library_comparisons: tuple[str, ...] = ()
    """One sentence for each other library, if the advisor chose the library."""
    because: str
    """Reasons for the plan and for its batch."""
    defaults: tuple[str, ...]
    """Settings that the user left at their default: "sequence length 2,048 tokens", ..."""
    plans_enumerated: int
    """Number of plans that the library can express on the searched clusters."""
    plans_scored: int
    """Number of plans whose memory and fit were computed."""
    plans_fit: int
    """Number of plans that fit with the required probability. Their time was computed, too."""
    requested: tuple[str, ...] = ()
    """Settings of the user: "sequence length 512", "tensor parallel degree 4", ..."""
    warnings: tuple[str, ...] = ()
    """Warnings about the plan, and what was read of the user's script."""
    result: SearchResult = field(compare=False)
    sizes: ClusterSizes | None = field(default=None, compare=False)
    """The compared clusters, if the request left the cluster open or its objective is the cost."""

    @property
    def objective(self) -> Objective:
        """Order of the plans: throughput, cost, headroom or simplicity."""
        return self.request.objective

    @property
    def min_fit_probability(self) -> float:
        """Required probability of fitting."""
        return self.request.min_fit_probability

    @property
    def script(self) -> str | None:
        """Path of the user's own training script; None for the generated one."""
        return self.request.script

    @property
    def data(self) -> str | None:
        """S3 URI of the training channel; None for synthetic tokens."""
        return self.request.data

    @property
    def alternatives(self) -> pd.DataFrame:
        """The best plan of each combination of techniques, best first, with the reason why it is not recommended."""
        from smp_advisor.search.search import alternatives

        return alternatives(self.result, self.model, self.job, min_fit_probability=self.min_fit_probability)

    @property
    def learned(self) -> Summary | None:
        """The effect of your measured runs on the plan, before and after; None without a calibration."""
        from smp_advisor.advice.learned import summary

        return summary(self.model, self.cluster, self.job, self.plan)

    compare_clusters = clusters.compare_clusters

    def __repr__(self) -> str:
        place = f"{self.cluster.nodes} x {self.cluster.instance.name}"
        return brief("Recommendation", [repr(self.model.name), place, repr(self.plan)])


def recommend(request: Request, on_progress: Progress | None = None) -> Recommendation:
    """Recommend a plan for a request, from the reading of its model to the reasons.

    Raises
    ------
    AdvisorError
        The input is wrong, or no plan fits.
    """
    # 1. Read what was given: the clusters it leaves open, the script, the model.
    objective, least = request.objective, request.min_fit_probability
    limits = Limits.of(request.job, **{name: getattr(request, name) for name in LIMITS})
    places = places_of(
        request.cluster, request.instance_count, limits=limits, library=request.library, cost=objective == "cost"
    )
    place = places.fixed or places.clusters[0]
    request_of_script, script_note = with_code(request)
    full = resolved(request_of_script, on_progress)
    terms, workload = terms_of(full, place), full.model
    question = Question(request=terms, library=request.library, objective=objective)

    # 2. The cluster, before the library: both depend on the instance.
    sizes = None  # of one cluster without limits
    if places.fixed is None or limits:
        if not any(_is_able(request.library, terms.job, cluster.instance) for cluster in places.clusters):
            _require_instance(request.library, terms.job, place.instance)
        framework = framework_of(request.framework)[0]
        family = library_policy().tensorflow if framework == "tensorflow" else request.library
        sizes = decided(replace(question, library=family), places, limits, on_progress)
    place = sizes.chosen.cluster if sizes is not None and sizes.chosen is not None else place
    terms = replace(terms, cluster=place)

    # 3. The library, and with it the job's free settings.
    if request.library == "auto":
        choice = choose_library(terms, request.framework)
    else:
        choice = LibraryChoice(library=request.library, because="")
    library = choice.library
    before = job = job_for(library, terms)
    pins = pins_for(library, terms)
    require_fields(library, pins)
    require_trainable(library, job)
    _require_instance(request.library, job, place.instance)
    if pins:
        check_against(pinned_plan(library, job, place, pins), place, workload)

    # 4. The plan: every plan of the library, scored and ranked.
    search: dict[str, Any] = {"library": library, "min_fit_probability": least, "pins": pins}
    job, best, compared = search_in_bf16_if_possible(
        workload, place, job, objective, search, user_settings=terms.fixed_settings
    )
    if not len(best.ranked):
        # A script of TensorFlow can use no other library.
        is_open = request.library == "auto" and library != library_policy().tensorflow
        results = [best, *(searches_of_all(terms) if is_open else ())]
        raise nothing_fits(replace(question, request=replace(terms, model=workload)), results)
    plan = best.best()
    plan_estimate = estimate(workload, best.cluster, job, plan)

    # 5. The reasons.
    run = PlannedRun(
        model=workload,
        cluster=best.cluster,
        job=job,
        plan=plan,
        estimate=plan_estimate,
        min_fit_probability=least,
        objective=objective,
        pins=frozenset(pins),
    )
    generated = request.script is None
    decision = decide(workload, *compared, search)
    decision = replace(decision, mfu=plan_estimate.mfu)
    size = ClusterSize(cluster=place, library=library, job=job, estimate=plan_estimate)
    open_ = replace(question, request=replace(terms, cluster=place), library=library)
    advices = (
        fewer_nodes(open_, size) if place.nodes > 1 and sizes is None else "",
        reasons.batch_neighbor(workload, better_neighbor(workload, job, best, search)),
        reasons.price_of_certainty(least, cost_of_certainty(workload, job, best, search)),
    )
    warnings = (
        *workload.verdicts,
        *advices,
        *reasons.levers_used(workload, best.cluster, before, job, plan_estimate),
        reasons.missing_kernels(workload),
        unreplaced(request_of_script.job.stack, workload) if full.job.stack != request_of_script.job.stack else "",
        reasons.beyond_positions(workload, job),
        reasons.low_utilisation(plan_estimate),
        script_note,
        unscripted_optimizer(library, job, plan.version) if generated else "",
    )
    because = (
        *(() if sizes is None else sizes.lines()),
        reasons.why_this_plan(best, least),
        f"The global batch is {reasons.batch_reason(workload, plan_estimate, decision.batch)}",
        reasons.pretraining_or_fine_tuning(workload, job) if is_named(request.model) else "",
        *warnings,
    )
    return Recommendation(
        request=_repeatable(request, workload, job),
        model=workload,
        cluster=best.cluster,
        job=job,
        plan=plan,
        estimate=plan_estimate,
        decision=decision,
        steps=explain(run),
        pitfalls=pitfalls(run, script_is_generated=generated),
        reference=nearest_reference(run),
        library_because=choice.because,
        library_comparisons=choice.comparisons,
        because=" ".join(filter(None, because)),
        warnings=tuple(filter(None, warnings)),
        requested=reasons.requested(
            library,
            job,
            request_of_script.named_settings,
            pins,
            request.shape,
            objective=objective,
            min_fit_probability=least,
        ),
        defaults=(
            *request.read_as,
            *reasons.defaults(
                library,
                workload,
                place,
                job,
                set(request_of_script.job.defaulted())
                - set(job.training_settings())
                - (frozenset() if request_of_script.is_of_job else request_of_script.user_settings),
                vocab_given="vocab" in request.shape,
                profiled_length=request.model.sequence if is_profile(request.model) else None,
            ),
        ),
        plans_enumerated=best.plans_enumerated,
        plans_scored=len(best.needed_gib),
        plans_fit=len(best.ranked),
        result=representatives(best),
        sizes=sizes,
    )


def _require_instance(library: str, job: Job, machine: Instance) -> None:
    """Refuse an instance on which a named library or the precision of a job does not run."""
    if library != "auto":
        require_supported_instance(library, machine)
    if job.precision == "bf16" and not machine.bf16:
        raise JobError(f"{machine.gpu_label} does not compute in bf16; use precision='fp16'.")


def _is_able(library: str, job: Job, machine: Instance) -> bool:
    with suppress(AdvisorError):
        _require_instance(library, job, machine)
        return True
    return False


def _repeatable(request: Request, model: Model, job: Job) -> Request:
    """Return the request with the model that was read, and with the sequence length of its profile or name."""
    if model.origin == "inferred":
        return request
    has_own_length = is_profile(request.model) or is_named(request.model)
    if has_own_length and "sequence_length" not in {*job.defaulted(), *request.user_settings}:
        request = request.changed(sequence_length=job.sequence_length)
    return request if is_profile(request.model) else replace(request, model=model)  # a profile has the tree of modules
