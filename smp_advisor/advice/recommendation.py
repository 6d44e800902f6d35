"""`advise`: the recommendation for a model on a cluster, from the user's input to the explanation."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from smp_advisor.advice import Advice
from smp_advisor.advice.live.live_advice import LiveAdvice
from smp_advisor.advice.options import AdviseSettings, completes
from smp_advisor.advice.request import (
    JOB_FIELDS,
    is_named,
    is_profile,
    job_of,
    pinned_plan,
    read_model,
    require_fields,
    require_library,
    require_trainable,
    require_values,
    set_by_user,
    sort_settings,
    suited,
)
from smp_advisor.arguments import check
from smp_advisor.costs.evaluate import estimate
from smp_advisor.errors import AdvisorError, JobError
from smp_advisor.guidance.choice import (
    batch_note,
    defaults,
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
from smp_advisor.libraries import get_library, require_supported_instance
from smp_advisor.libraries.validation import check_against, unscripted_adapter
from smp_advisor.search.candidates import Request, job_for, library_policy, pins_for, search_in_bf16_if_possible
from smp_advisor.search.clusters import Limits, Question, places_of
from smp_advisor.search.decision import decide
from smp_advisor.search.library import LibraryChoice, choose_library, family_to_infer, framework_of
from smp_advisor.search.search import representatives
from smp_advisor.search.ways_out import decided, nothing_fits
from smp_advisor.workload.from_count import can_be_inferred
from smp_advisor.workload.model import Model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Unpack

    from smp_advisor.cluster import Cluster, Instance
    from smp_advisor.scripts.following import ScriptStack
    from smp_advisor.search.rank import Objective
    from smp_advisor.search.sizes import Progress
    from smp_advisor.workload.job import Job


@completes(AdviseSettings)
def advise(  # noqa: PLR0915 - the path of a request, in its order
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
    options: dict[str, Any] = {
        "instance_count": instance_count,
        "max_days": max_days,
        "max_usd": max_usd,
        "objective": objective,
        "min_fit_probability": min_fit_probability,
        "script": script,
        "data": data,
    }
    call = partial(advise, cluster=cluster, job=job, library=library, framework=framework, **options, **settings)
    check({"objective": objective, "min_fit_probability": min_fit_probability, "script": script, "data": data})
    chosen_objective = cast("Objective", objective)
    require_library(library, framework)
    job_settings, shape, pins = sort_settings(settings, signature(advise).parameters)
    require_values(library, pins)
    code = _code_of(script) if job is None else None
    if code is not None:
        # The user's attention replaces that of the script's code.
        of_code = {k: v for k, v in code.settings.items() if k != "stack" or "attention" not in job_settings}
        job_settings = {**of_code, **job_settings}
    user_settings, job = set_by_user(job, job_settings, library), job_of(job, job_settings)
    at_default = set(job.defaulted())
    limits = Limits.of(job, max_days=max_days, max_usd=max_usd)
    places = places_of(cluster, instance_count, limits=limits, library=library, cost=chosen_objective == "cost")
    place = places.fixed or places.clusters[0]
    workload = read_model(model, sequence_length=job.sequence_length, shape=shape, job=job, library=library)
    job = suited(job, model, workload, has_length="sequence_length" in user_settings)
    if library == "auto":  # one shape for all libraries, so that their plans compare
        workload = _in_shape_of(family_to_infer(framework, pins), workload, model, job, shape)
    else:
        require_fields(library, pins)
        require_trainable(library, job)
        workload = _in_shape_of(get_library(library).inferred_family, workload, model, job, shape)
    request = Request(
        model=workload,
        cluster=place,
        job=job,
        pins=pins,
        user_settings=user_settings,
        pytorch=framework_of(framework)[1],
        min_fit_probability=min_fit_probability,
        own_script=script is not None,
    )
    question = Question(request=request, library=library, objective=chosen_objective)
    sizes = None  # of one cluster without limits
    if places.fixed is None or limits:
        family = library_policy().tensorflow if framework_of(framework)[0] == "tensorflow" else library
        sizes = decided(replace(question, library=family), places, limits, on_progress)
    place = sizes.chosen.cluster if sizes is not None and sizes.chosen is not None else place
    request = replace(request, cluster=place)
    if library == "auto":
        choice = choose_library(request, framework)
    else:
        require_supported_instance(library, request.cluster.instance)
        choice = LibraryChoice(library=library, because="")
    # Compared clusters have one shape: that of their figures stays.
    if sizes is None and (library != "auto" or get_library(choice.library).smdistributed):
        workload = _in_shape_of(get_library(choice.library).inferred_family, workload, model, job, shape)
    library = choice.library
    job, pins = job_for(library, request), pins_for(library, request)
    require_fields(library, pins)
    require_trainable(library, job)
    if job.precision == "bf16" and not place.instance.bf16:
        raise JobError(f"{place.instance.gpu_label} does not compute in bf16; use precision='fp16'.")

    if pins:
        check_against(pinned_plan(library, job, place, pins), place, workload)

    terms: dict[str, Any] = {"library": library, "min_fit_probability": min_fit_probability, "pins": pins}
    job, best, compared = search_in_bf16_if_possible(
        workload, place, job, chosen_objective, terms, user_settings=user_settings
    )
    if not len(best.ranked):
        raise nothing_fits(replace(question, request=replace(request, model=workload, cluster=place)), best)

    plan = best.best()
    plan_estimate = estimate(workload, best.cluster, job, plan)
    decision = decide(workload, *compared, min_fit_probability=min_fit_probability, pins=pins)
    because = (
        *(() if sizes is None else sizes.lines()),
        why_this_plan(best, min_fit_probability),
        batch_note(workload, job, plan_estimate, decision.batch),
        pretraining_or_fine_tuning(workload, job) if is_named(model) else "",
    )
    run = PlannedRun(
        model=workload,
        cluster=best.cluster,
        job=job,
        plan=plan,
        estimate=plan_estimate,
        min_fit_probability=min_fit_probability,
        objective=objective,
        pins=frozenset(pins),
    )
    warnings = (
        *workload.verdicts,
        low_utilisation(plan_estimate),
        "" if code is None else code.summary,
        unscripted_adapter(library, job, workload, best.cluster.instance, only=question.library == "auto")
        if script is None
        else "",
    )
    return LiveAdvice(
        Advice(
            model=workload,
            cluster=best.cluster,
            job=job,
            plan=plan,
            estimate=plan_estimate,
            objective=chosen_objective,
            min_fit_probability=min_fit_probability,
            decision=decision,
            steps=(*(steps := explain(run)), *model_changes(run, terms, order=len(steps) + 1)),
            pitfalls=pitfalls(run, script_is_generated=script is None),
            reference=nearest_reference(run),
            library_because=choice.because,
            library_comparisons=choice.comparisons,
            because=" ".join(filter(None, (*because, *warnings))),
            warnings=tuple(filter(None, warnings)),
            requested=requested(
                library,
                job,
                frozenset(set(job_settings) | (set(JOB_FIELDS) - at_default)),
                pins,
                shape,
                objective=chosen_objective,
                min_fit_probability=min_fit_probability,
            ),
            defaults=defaults(
                library,
                workload,
                place,
                job,
                at_default - set(job_settings),
                vocab_given="vocab" in shape,
                profiled_length=model.sequence if is_profile(model) else None,
            ),
            plans_enumerated=best.plans_enumerated,
            plans_scored=len(best.needed_gib),
            plans_fit=len(best.ranked),
            script=script,
            data=data,
            result=representatives(best),
            sizes=sizes,
            question=question,
            call=_replayed(call, model, workload, job),
            request=partial(advise, workload, cluster, library=library, **options, **pins),
        )
    )


def _replayed(call: partial[LiveAdvice], model: Any, workload: Model, job: Job) -> partial[LiveAdvice]:
    """The call with the model that was read, and with the sequence length of its profile or name."""
    if workload.origin == "inferred":
        return partial(call, model=model)
    has_own_length = (is_profile(model) or is_named(model)) and "sequence_length" not in job.defaulted()
    if has_own_length and call.keywords.get("job") is None and "sequence_length" not in call.keywords:
        call = partial(call, sequence_length=job.sequence_length)
    return partial(call, model=model if is_profile(model) else workload)  # a profile has the tree of modules


def _code_of(script: str | None) -> ScriptStack | None:
    """Kind of code of a training script on this machine; None if the file is elsewhere or cannot be read."""
    if script is None or not Path(script).is_file():
        return None
    from smp_advisor.scripts.following import read_stack  # the checker is not needed otherwise

    try:
        return read_stack(Path(script))
    except AdvisorError:
        return None


def _in_shape_of(family: str, workload: Model, model: Any, job: Job, shape: Mapping[str, Any]) -> Model:
    """The model, with an inferred shape in the family of a library's reference configurations: Llama for SMP v2."""
    if workload.origin != "inferred" or "family" in shape or workload.family == family or isinstance(model, Model):
        return workload
    if is_profile(model):  # it has the shape that was traced
        return workload
    if not can_be_inferred(workload.parameter_count, family):
        return workload
    return read_model(model, sequence_length=job.sequence_length, shape={**shape, "family": family})
