"""`advise`: the recommendation for a model on a cluster, from the user's input to the explanation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.advice import Advice
from smp_advisor.advice.description import is_named, is_profile
from smp_advisor.advice.live.live_advice import LiveAdvice
from smp_advisor.advice.options import AdviseSettings, completes
from smp_advisor.advice.request import (
    Request,
    pinned_plan,
    require_fields,
    require_trainable,
    resolved,
    terms_of,
    with_code,
)
from smp_advisor.costs.evaluate import estimate
from smp_advisor.errors import JobError
from smp_advisor.guidance.choice import (
    batch_note,
    defaults,
    levers_used,
    low_utilisation,
    pretraining_or_fine_tuning,
    requested,
    why_this_plan,
)
from smp_advisor.guidance.explanation import explain
from smp_advisor.guidance.model_changes import model_changes
from smp_advisor.guidance.practices import pitfalls
from smp_advisor.guidance.recommended import PlannedRun
from smp_advisor.guidance.reference import nearest_reference
from smp_advisor.libraries import require_supported_instance
from smp_advisor.libraries.validation import check_against, unscripted_adapter
from smp_advisor.search.candidates import job_for, library_policy, pins_for, search_in_bf16_if_possible
from smp_advisor.search.clusters import Limits, Question, places_of
from smp_advisor.search.decision import decide
from smp_advisor.search.library import LibraryChoice, choose_library, framework_of
from smp_advisor.search.search import representatives
from smp_advisor.search.ways_out import decided, nothing_fits

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from smp_advisor.cluster import Cluster, Instance
    from smp_advisor.search.sizes import Progress
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


@completes(AdviseSettings)
def advise(
    model: Any,
    cluster: Cluster | Instance | str | Sequence[Instance | str],
    job: Job | None = None,
    *,
    instance_count: int | str | None = None,
    max_days: float | str | None = None,
    max_usd: float | str | None = None,
    library: str = "auto",
    framework: str | None = None,
    objective: str = "throughput",
    min_fit_probability: float = 0.95,
    script: str | None = None,
    data: str | None = None,
    on_progress: Progress | None = None,
    **settings: Unpack[AdviseSettings],
) -> LiveAdvice:
    """Recommend a model-parallel configuration and explain it. The result is live: its plan is what its views show.

    Parameters
    ----------
    model
        A parameter count (``10e9``, ``"10B"``), the name of a published model (``"llama-3-70b"``), a `Model`, a
        transformers config (object, dict, path of a ``config.json``; traced first if its family has no formulas), a
        ``torch.nn.Module`` (traced first) or a `Profile`.
    cluster
        A `Cluster`, or an instance name with `instance_count`. Several instances, or ``"any"``, leave the type open:
        `Advice.sizes` compares the clusters.
    job
        The training run; or its fields as keywords (``sequence_length=512``, ``tokens="300B"``). Without either, the
        sequence length is that of a `Profile`. With ``library="auto"``, the default precision and attention of a `Job`
        count as not set.
    instance_count
        Nodes, where `cluster` is an instance; 1 if not given. ``"smallest"`` is the smallest number that fits. Without
        a number, a deadline, a budget or several instances leave it open.
    max_days, max_usd
        Deadline and budget of the run, which needs `tokens`: 30, ``"250k"``. With a deadline, the cheapest cluster
        within it is recommended; with a budget, the fastest.
    library
        ``auto`` chooses a library from instance, framework, fixed settings and model. `Advice.library_because` is the
        reason, and `Advice.library_comparisons` compares the others. Or the name of a library: ``smp-v1``,
        ``smp-v1-tensorflow``, ``smp-v2``, ``training-compiler``, ``ddp``, ``fsdp``.
    framework
        With ``library="auto"``, framework of the training script: ``"pytorch"``, ``"tensorflow"``, with a version if it
        is settled (``"pytorch 1.13"``). DDP, FSDP and SMP v2 then run in the container that has it or the nearest
        version.
    objective
        ``"throughput"``, ``"cost"`` (also tries fewer nodes and comparable instance types), ``"headroom"`` or
        ``"simplicity"``.
    min_fit_probability
        Only plans that fit with at least this probability are recommended.
    script, data
        Path of your own training script and S3 URI of its data, for the cell. If the script is on this machine, its
        kind of code is read (`read_stack`) and used where neither `job` nor the settings name one.
    on_progress
        Called while clusters are compared, with the number of those compared, that of all, and the next one's name.
        An interrupt (Ctrl-C, the notebook's stop button) ends the comparison with the clusters compared by then.
    **settings
        Fields of `Job`; of an inferred shape (`family`, `layers`, `hidden`, `heads`, `vocab`, `activation`); and fields
        of `Plan` to fix at a value (``tensor_parallel_degree=4``).

    Raises
    ------
    AdvisorError
        The input is wrong, or no plan fits. One sentence states the reason and a remedy.

    Examples
    --------
    >>> advice = advise("10B", "ml.p4d.24xlarge", instance_count=16, sequence_length=512)
    >>> advice.estimate.fits
    True
    """
    keywords: dict[str, Any] = {
        "instance_count": instance_count,
        "max_days": max_days,
        "max_usd": max_usd,
        "library": library,
        "framework": framework,
        "objective": objective,
        "min_fit_probability": min_fit_probability,
        "script": script,
        "data": data,
    }
    return LiveAdvice(recommend(Request.of(model, cluster, job, **keywords, **settings), on_progress))


def recommend(request: Request, on_progress: Progress | None = None) -> Advice:
    """Recommend a plan for a request, from the reading of its model to the reasons.

    Raises
    ------
    AdvisorError
        The input is wrong, or no plan fits.
    """
    # 1. Read what was given: the clusters it leaves open, the script, the model.
    objective, least = request.objective, request.min_fit_probability
    limits = Limits.of(request.job, max_days=request.max_days, max_usd=request.max_usd)
    places = places_of(
        request.cluster, request.instance_count, limits=limits, library=request.library, cost=objective == "cost"
    )
    place = places.fixed or places.clusters[0]
    asked, script_note = with_code(request)
    full = resolved(asked, on_progress)
    terms, workload = terms_of(full, place), full.model
    question = Question(request=terms, library=request.library, objective=objective)

    # 2. The cluster, before the library: both depend on the instance.
    sizes = None  # of one cluster without limits
    if places.fixed is None or limits:
        framework = framework_of(request.framework)[0]
        family = library_policy().tensorflow if framework == "tensorflow" else request.library
        sizes = decided(replace(question, library=family), places, limits, on_progress)
    place = sizes.chosen.cluster if sizes is not None and sizes.chosen is not None else place
    terms = replace(terms, cluster=place)

    # 3. The library, and with it the job's free settings.
    if request.library == "auto":
        choice = choose_library(terms, request.framework)
    else:
        require_supported_instance(request.library, place.instance)
        choice = LibraryChoice(library=request.library, because="")
    library = choice.library
    before = job = job_for(library, terms)
    pins = pins_for(library, terms)
    require_fields(library, pins)
    require_trainable(library, job)
    if job.precision == "bf16" and not place.instance.bf16:
        raise JobError(f"{place.instance.gpu_label} does not compute in bf16; use precision='fp16'.")
    if pins:
        check_against(pinned_plan(library, job, place, pins), place, workload)

    # 4. The plan: every plan of the library, scored and ranked.
    search: dict[str, Any] = {"library": library, "min_fit_probability": least, "pins": pins}
    job, best, compared = search_in_bf16_if_possible(
        workload, place, job, objective, search, user_settings=terms.fixed_settings
    )
    if not len(best.ranked):
        raise nothing_fits(replace(question, request=replace(terms, model=workload)), best)
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
    decision = decide(workload, *compared, min_fit_probability=least, pins=pins)
    warnings = (
        *workload.verdicts,
        low_utilisation(plan_estimate),
        script_note,
        unscripted_adapter(library, job, workload, best.cluster.instance, only=request.library == "auto")
        if generated
        else "",
    )
    because = (
        *(() if sizes is None else sizes.lines()),
        why_this_plan(best, least),
        *levers_used(workload, best.cluster, before, job, plan_estimate),
        batch_note(workload, job, plan_estimate, decision.batch),
        pretraining_or_fine_tuning(workload, job) if is_named(request.model) else "",
        *warnings,
    )
    steps = explain(run)
    return Advice(
        model=workload,
        cluster=best.cluster,
        job=job,
        plan=plan,
        estimate=plan_estimate,
        objective=objective,
        min_fit_probability=least,
        decision=decision,
        steps=(*steps, *model_changes(run, search, order=len(steps) + 1)),
        pitfalls=pitfalls(run, script_is_generated=generated),
        reference=nearest_reference(run),
        library_because=choice.because,
        library_comparisons=choice.comparisons,
        because=" ".join(filter(None, because)),
        warnings=tuple(filter(None, warnings)),
        requested=requested(
            library, job, asked.named_settings, pins, request.shape, objective=objective, min_fit_probability=least
        ),
        defaults=(
            *request.read_as,
            *defaults(
                library,
                workload,
                place,
                job,
                set(asked.job.defaulted())
                - set(job.training_settings())
                - (frozenset() if asked.is_of_job else asked.user_settings),
                vocab_given="vocab" in request.shape,
                profiled_length=request.model.sequence if is_profile(request.model) else None,
            ),
        ),
        plans_enumerated=best.plans_enumerated,
        plans_scored=len(best.needed_gib),
        plans_fit=len(best.ranked),
        script=request.script,
        data=request.data,
        result=representatives(best),
        sizes=sizes,
        request=_repeatable(request, workload, job),
    )


def _repeatable(request: Request, model: Model, job: Job) -> Request:
    """The request with the model that was read, and with the sequence length of its profile or name."""
    if model.origin == "inferred":
        return request
    has_own_length = is_profile(request.model) or is_named(request.model)
    if has_own_length and "sequence_length" not in {*job.defaulted(), *request.user_settings}:
        request = request.changed(sequence_length=job.sequence_length)
    return request if is_profile(request.model) else replace(request, model=model)  # a profile has the tree of modules
