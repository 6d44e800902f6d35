"""`advise`: the recommendation for a model on a cluster, from the user's input to the explanation."""

from __future__ import annotations

import difflib
from dataclasses import fields, replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from smp_advisor.advice import Advice
from smp_advisor.cluster.cluster import Cluster
from smp_advisor.costs.evaluate import estimate
from smp_advisor.errors import AdvisorError, JobError, NoPlanFitsError
from smp_advisor.guidance import explain, nearest_reference, pitfalls
from smp_advisor.guidance.choice import batch_note, defaults, low_utilisation, nothing_fits, why_this_plan
from smp_advisor.guidance.library_choice import LibraryChoice, choose_library, job_for
from smp_advisor.keywords import AdviseSettings, completes
from smp_advisor.libraries.check import check_against, unsupported_settings
from smp_advisor.libraries.plan import Plan
from smp_advisor.libraries.plan_fields import plan_fields
from smp_advisor.libraries.registry import DEFAULT_LIBRARY, get_library, libraries
from smp_advisor.libraries.support import require_supported_instance
from smp_advisor.search import OBJECTIVES, Objective, search
from smp_advisor.search.alternatives import representatives
from smp_advisor.search.fleet import search_cheapest
from smp_advisor.workload.calibration_file import load_calibration
from smp_advisor.workload.job import MAX_SAMPLES_PER_STEP, Job
from smp_advisor.workload.model import Model

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Unpack

    from smp_advisor.cluster.instance import Instance
    from smp_advisor.scripts.stack import ScriptStack

__all__ = ["advise", "read_model"]

_JOB_FIELDS = frozenset(f.name for f in fields(Job))
_SHAPE_FIELDS = frozenset({"family", "layers", "hidden", "heads", "vocab", "activation"})


def _all_plan_fields() -> frozenset[str]:
    return frozenset[str]().union(*(plan_fields(record.name) for record in libraries())) - {"library"}


def read_model(
    model: Any,
    *,
    sequence_length: int,
    shape: Mapping[str, Any] | None = None,
    job: Job | None = None,
    library: str = DEFAULT_LIBRARY,
) -> Model:
    """Convert any description of a model to a `Model`.

    Parameters
    ----------
    model
        A `Model`; a parameter count (``10e9``, ``"10B"``); a transformers config (object, dict, path of a
        ``config.json``); a `Profile`; a ``torch.nn.Module``, which is traced in a child process.
    sequence_length
        Positions that an inferred shape needs at least.
    shape
        Fixed values for a shape that is inferred from a count: `family`, `layers`, `hidden`, `heads`, `vocab`,
        `activation`.
    job, library
        Job and library for the trace of a module.
    """
    if isinstance(model, Model):
        return model
    shape = dict(shape or {})
    is_profile = hasattr(model, "provenance") and callable(getattr(model, "as_dict", None))
    is_module = callable(getattr(model, "named_parameters", None))
    if (is_profile or is_module) and shape:
        raise AdvisorError(f"{_words(shape)} can only be given with a parameter count; this model is measured.")
    if is_profile:
        return Model.from_profile(model)
    if is_module:
        return _of_module(model, job or Job(sequence_length=sequence_length), library)
    is_path = isinstance(model, str) and (model.endswith(".json") or "/" in model or "\\" in model)
    if not isinstance(model, int | str) and isinstance(model, Real):
        model = float(model)  # NumPy's numbers
    if isinstance(model, int | float) or (isinstance(model, str) and not is_path):
        return Model.from_parameters(model, sequence_length=sequence_length, **shape)
    if shape:
        raise AdvisorError(
            f"{_words(shape)} can only be given with a parameter count; this model's configuration already has them."
        )
    return Model.from_config(model)


def _of_module(module: Any, job: Job, library: str) -> Model:
    """Model of a module from its trace, or from its family's formulas if it cannot be traced."""
    from smp_advisor.profiling import profile
    from smp_advisor.profiling.entry import attention_for

    attention = job.attention if "attention" not in job.defaulted() else attention_for(library)
    try:
        return Model.from_profile(profile(module, job, stages=("trace",), attention=attention))
    except AdvisorError as untraced:
        try:
            return Model.from_module(module)
        except AdvisorError:
            raise untraced from None


@completes(AdviseSettings)
def advise(
    model: Any,
    cluster: Cluster | Instance | str,
    job: Job | None = None,
    *,
    instance_count: int | None = None,
    library: str = DEFAULT_LIBRARY,
    framework: str | None = None,
    objective: str = "throughput",
    min_fit_probability: float = 0.95,
    script: str | None = None,
    data: str | None = None,
    **settings: Unpack[AdviseSettings],
) -> Advice:
    """Recommend a model-parallel configuration and explain it.

    Parameters
    ----------
    model
        A parameter count (``10e9``, ``"10B"``), a `Model`, a transformers config (object, dict, path of a
        ``config.json``), a ``torch.nn.Module`` (traced first) or a `Profile`.
    cluster
        A `Cluster`, or an instance name with `instance_count`.
    job
        The training run; or its fields as keywords (``sequence_length=512``).
    instance_count
        Nodes, where `cluster` is an instance; 1 if not given.
    library
        Name of a library: ``smp-v1``, ``smp-v1-tensorflow``, ``smp-v2``, ``training-compiler``, ``ddp``, ``fsdp``.
        ``auto`` chooses one from instance, framework and model, and explains the choice (`Advice.library_because`).
    framework
        With ``library="auto"``, framework of the training script: ``"pytorch"``, ``"tensorflow"``, with a version if it
        is settled (``"pytorch 1.13"``).
    objective
        ``"throughput"``, ``"cost"`` (also tries fewer nodes and comparable instance types), ``"headroom"`` or
        ``"simplicity"``.
    min_fit_probability
        Only plans that fit with at least this probability are recommended.
    script, data
        Path of your own training script and S3 URI of its data, for the cell. If the script is on this machine, its
        kind of code is read (`read_stack`) and used where neither `job` nor the settings name one.
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
    checked_objective = _objective(objective)
    for name, text in (("script", script), ("data", data)):
        _require_text(name, text)
    _require_probability(min_fit_probability)
    _require_library(library, framework)
    job_settings, shape, pins = _sort_settings(settings)
    code = _code_of(script) if job is None else None
    if code is not None:
        job_settings = {**_job_settings_of(code, job_settings), **job_settings}
    user_settings = _JOB_FIELDS if job is not None else frozenset(job_settings)
    job = _job(job, job_settings)
    at_default = set(job.defaulted())
    cluster = _cluster(cluster, instance_count)
    workload = read_model(model, sequence_length=job.sequence_length, shape=shape, job=job, library=library)
    job = _within_positions(job, workload, is_set="sequence_length" in user_settings)
    job = _within_usual_batch(job, workload)
    choice = _library(
        library,
        workload,
        cluster,
        job,
        framework=framework,
        user_settings=user_settings,
        probability=min_fit_probability,
    )
    library = choice.library
    workload = _in_shape_of(library, workload, model, job, shape)
    job = job_for(library, job, cluster, user_settings=user_settings)
    _require_fields(library, pins)
    if checked_objective == "cost" and cluster.usd_per_hour is None:
        raise AdvisorError(
            f"objective='cost' needs a price, and none is known for {cluster.instance.name}: use another objective, or "
            "Cluster.custom(..., usd_per_hour=...)."
        )
    _require_trainable(library, job)
    if job.precision == "bf16" and not cluster.instance.bf16:
        raise JobError(f"{cluster.instance.gpu_label} does not compute in bf16; use precision='fp16'.")

    if pins:
        check_against(_pinned_plan(library, job, cluster, pins), cluster, workload)

    if checked_objective == "cost":
        best, searched = search_cheapest(
            workload, cluster, job, library=library, min_fit_probability=min_fit_probability, pins=pins
        )
    else:
        best = search(
            workload,
            cluster,
            job,
            objective=checked_objective,
            min_fit_probability=min_fit_probability,
            pins=pins,
            library=library,
        )
        searched = [best]
    if best is None or not len(best.ranked):
        raise NoPlanFitsError(nothing_fits(workload, cluster, job, searched[0], min_fit_probability, pins))

    plan = best.best()
    plan_estimate = estimate(workload, best.cluster, job, plan)
    because = (
        why_this_plan(workload, best, plan_estimate, searched, cluster, min_fit_probability),
        batch_note(workload, job, plan_estimate),
        low_utilisation(plan_estimate),
        "" if code is None else code.summary,
    )
    return Advice(
        model=workload,
        cluster=best.cluster,
        job=job,
        plan=plan,
        estimate=plan_estimate,
        objective=checked_objective,
        min_fit_probability=min_fit_probability,
        steps=explain(
            workload,
            best.cluster,
            job,
            plan,
            plan_estimate,
            min_fit_probability=min_fit_probability,
            objective=objective,
        ),
        pitfalls=pitfalls(
            workload,
            best.cluster,
            job,
            plan,
            script_is_generated=script is None,
            min_fit_probability=min_fit_probability,
        ),
        reference=nearest_reference(
            workload, best.cluster, job, plan, plan_estimate, min_fit_probability=min_fit_probability
        ),
        library_because=choice.because,
        because=" ".join(filter(None, because)),
        defaults=defaults(library, workload, job, at_default - set(job_settings), vocab_given="vocab" in shape),
        plans_enumerated=sum(r.plans_enumerated for r in searched),
        plans_scored=sum(len(r.peak_gib) for r in searched),
        plans_fit=sum(len(r.ranked) for r in searched),
        script=script,
        data=data,
        result=representatives(best),
        request=partial(
            advise,
            workload,
            cluster,
            library=library,
            objective=objective,
            min_fit_probability=min_fit_probability,
            script=script,
            data=data,
            **cast("AdviseSettings", pins),
        ),
    )


def _words(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names))


def _objective(objective: str) -> Objective:
    if objective not in OBJECTIVES:
        raise AdvisorError(f"objective must be one of {', '.join(OBJECTIVES)}, not {objective!r}.")
    return cast("Objective", objective)


def _require_text(name: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise AdvisorError(f"{name} must be text, for example a path or an S3 URI, not {value!r}.")


def _code_of(script: str | None) -> ScriptStack | None:
    """Kind of code of a training script on this machine; None if the file is elsewhere or cannot be read."""
    if script is None or not Path(script).is_file():
        return None
    from smp_advisor.scripts.stack import read_stack  # the checker is not needed otherwise

    try:
        return read_stack(Path(script))
    except AdvisorError:
        return None


def _job_settings_of(code: ScriptStack, job_settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that the script determines. The user's attention replaces that of the script's code."""
    return {name: value for name, value in code.settings.items() if name != "stack" or "attention" not in job_settings}


def _require_probability(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise AdvisorError(f"min_fit_probability must lie between 0 and 1, for example 0.95, not {value!r}.")


def _sort_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Keywords of the job, of the shape, and pinned plan fields."""
    plan_settings = _all_plan_fields()
    names = _JOB_FIELDS | _SHAPE_FIELDS | plan_settings
    for name in settings:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else "see the fields of Job and Plan."
            raise AdvisorError(f"advise takes no setting {name!r}; {hint}")
    return (
        {k: v for k, v in settings.items() if k in _JOB_FIELDS},
        {k: v for k, v in settings.items() if k in _SHAPE_FIELDS and v is not None},
        {k: v for k, v in settings.items() if k in plan_settings - _JOB_FIELDS},
    )


def _require_library(library: str, framework: str | None) -> None:
    if library == "auto":
        return
    if library not in {record.name for record in libraries()}:
        names = ", ".join(record.name for record in libraries())
        raise AdvisorError(f"library must be 'auto' or one of {names}, not {library!r}.")
    if framework is not None:
        raise AdvisorError(f"framework goes with library='auto'; library={library!r} determines it already.")


def _library(
    library: str,
    model: Model,
    cluster: Cluster,
    job: Job,
    *,
    framework: str | None,
    user_settings: frozenset[str],
    probability: float,
) -> LibraryChoice:
    """The requested library, if it runs on the instance, or the chosen one."""
    if library == "auto":
        return choose_library(
            model, cluster, job, framework=framework, user_settings=user_settings, min_fit_probability=probability
        )
    require_supported_instance(library, cluster.instance)
    return LibraryChoice(library=library, because="")


def _require_trainable(library: str, job: Job) -> None:
    """Refuse adapters, fp8 products and other settings in a library that does not document them."""
    record = get_library(library)
    for sentence in unsupported_settings(library, job):
        raise JobError(sentence)
    if job.adapter is not None and not record.adapters:
        titles = " or ".join(other.title for other in libraries() if other.adapters)
        raise JobError(f"{record.title} documents no adapters: leave them out of the job, or use {titles}.")
    if job.fp8 and "fp8" not in plan_fields(library):
        names = " or ".join(f"library={other.name!r}" for other in libraries() if "fp8" in plan_fields(other.name))
        raise JobError(f"{record.title} documents no fp8 products: leave them out of the job, or use {names}.")


def _in_shape_of(library: str, workload: Model, model: Any, job: Job, shape: Mapping[str, Any]) -> Model:
    """The model, with an inferred shape in the family of the library's reference configurations.

    SMP v2's tensor and context parallelism do not support GPT-2, for example; AWS's reference configurations are Llama.
    """
    family = get_library(library).inferred_family
    if workload.origin != "inferred" or "family" in shape or workload.family == family or isinstance(model, Model):
        return workload
    return read_model(model, sequence_length=job.sequence_length, shape={**shape, "family": family})


def _require_fields(library: str, pins: Mapping[str, Any]) -> None:
    """Raise the library's own error for pinned settings that its plans do not have."""
    unknown = {name: value for name, value in pins.items() if name not in plan_fields(library)}
    if unknown:
        Plan(library=library, **unknown)


def _pinned_plan(library: str, job: Job, cluster: Cluster, pins: Mapping[str, Any]) -> Plan:
    """A small plan with the pinned fields, which raises the library's own error if they are wrong."""
    microbatches = pins.get("microbatches") or pins.get("active_microbatches") or 1
    settings: dict[str, Any] = {
        "precision": job.precision,
        "fp8": job.fp8,
        "microbatches": microbatches,
        "batch_size": microbatches,
        "activation_checkpointing": "each" if pins.get("offload_activations") else False,
        "horovod": cluster.gpus > pins.get("partitions", 1),
        "fp16": job.precision == "fp16",
        "bf16": job.precision == "bf16",
        # SMP v1 has bf16 only with sharded data parallelism.
        "sharded_data_parallel_degree": 2 if job.precision == "bf16" else 1,
    }
    fields = plan_fields(library)
    return Plan(library=library, **{**{name: value for name, value in settings.items() if name in fields}, **pins})


def _job(job: Job | None, settings: Mapping[str, Any]) -> Job:
    if job is None:
        saved = settings.get("calibration")
        if isinstance(saved, str | Path):
            settings = {**settings, "calibration": load_calibration(saved)}
        return Job(**settings)
    if settings:
        raise JobError(f"Pass either a Job or its fields, not both: {_words(settings)} came with job=.")
    return job


def _within_positions(job: Job, model: Model, *, is_set: bool) -> Job:
    """The job, with the model's own length if the user set none; an error if theirs exceeds its positions."""
    positions = model.shape.max_positions
    if not positions or model.fixed_sequence_length or job.sequence_length <= positions:
        return job
    if not is_set:
        return replace(job, sequence_length=positions)
    raise JobError(
        f"{model.name} has {positions:,} positions, fewer than a sequence_length of {job.sequence_length:,}: pass "
        f"sequence_length={positions} or less, or a configuration with more positions."
    )


def _within_usual_batch(job: Job, model: Model) -> Job:
    """The job, with the limit of a free global batch in samples if the model reads no tokens."""
    if model.reads_tokens or "max_tokens_per_step" not in job.defaulted():
        return job
    return replace(job, max_tokens_per_step=MAX_SAMPLES_PER_STEP * model.sequence_length(1))


def _cluster(cluster: Cluster | Instance | str, count: int | None) -> Cluster:
    if isinstance(cluster, Cluster):
        if count is not None and count != cluster.nodes:
            raise AdvisorError(
                f"instance_count={count} contradicts the cluster's {cluster.nodes} nodes; pass one of them."
            )
        return cluster
    return Cluster(cluster, 1 if count is None else count)
