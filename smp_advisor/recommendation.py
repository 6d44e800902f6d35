"""From what the user has to advice: the one call that runs the whole flow."""

from __future__ import annotations

import difflib
from dataclasses import fields, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

from smp_advisor.advice import Advice
from smp_advisor.cluster.cluster import Cluster
from smp_advisor.costs.evaluate import estimate
from smp_advisor.errors import AdvisorError, JobError, NoPlanFitsError
from smp_advisor.guidance import explain, nearest_reference, pitfalls
from smp_advisor.guidance.choice import batch_note, defaults, low_utilisation, nothing_fits, why_this_plan
from smp_advisor.guidance.library_choice import LibraryChoice, choose_library, job_for
from smp_advisor.libraries.check import check_against
from smp_advisor.libraries.plan import Plan
from smp_advisor.libraries.plan_fields import plan_fields
from smp_advisor.libraries.registry import LIBRARIES
from smp_advisor.libraries.schema import schema
from smp_advisor.libraries.support import require_supported_instance
from smp_advisor.search import OBJECTIVES, Objective, search
from smp_advisor.search.fleet import search_cheapest
from smp_advisor.workload.job import MAX_SAMPLES_PER_STEP, Job
from smp_advisor.workload.model import Model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.cluster.instance import Instance

__all__ = ["advise", "read_model"]

_JOB_FIELDS = frozenset(f.name for f in fields(Job))
_PLAN_FIELDS = frozenset[str]().union(*map(plan_fields, LIBRARIES)) - {"library"}
_SHAPE_FIELDS = frozenset({"family", "layers", "hidden", "heads", "vocab"})


def read_model(
    model: Any,
    *,
    sequence_length: int,
    shape: Mapping[str, Any] | None = None,
    job: Job | None = None,
    library: str = "smp-v1",
) -> Model:
    """A `Model` of whatever the user has.

    Parameters
    ----------
    model
        A `Model`; a parameter count (``10e9``, ``"10B"``); a transformers config (object, dict, path of a
        ``config.json``); a `Profile`; a ``torch.nn.Module``, which is traced in a child process.
    sequence_length
        Positions that an inferred shape must hold.
    shape
        What to hold when the shape is inferred from a count: `family`, `layers`, `hidden`, `heads`, `vocab`.
    job, library
        What a module is traced for.
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
        model = float(model)  # NumPy's numbers are as good as Python's
    if isinstance(model, int | float) or (isinstance(model, str) and not is_path):
        return Model.from_parameters(model, sequence_length=sequence_length, **shape)
    if shape:
        raise AdvisorError(
            f"{_words(shape)} can only be given with a parameter count; this model's configuration already says them."
        )
    return Model.from_config(model)


def _of_module(module: Any, job: Job, library: str) -> Model:
    """A live module as its trace measures it; by its family's formulas where it cannot be traced."""
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


def advise(
    model: Any,
    cluster: Cluster | Instance | str,
    job: Job | None = None,
    *,
    instance_count: int | None = None,
    library: str = "smp-v1",
    framework: str | None = None,
    objective: str = "throughput",
    min_fit_probability: float = 0.95,
    script: str | None = None,
    data: str | None = None,
    **settings: Any,
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
        ``"smp-v1"``, ``"smp-v1-tensorflow"``, ``"smp-v2"``, ``"training-compiler"``, ``"ddp"``, ``"fsdp"``; ``"auto"``
        chooses from instance, framework and model, and says why (`Advice.library_because`).
    framework
        With ``library="auto"``, what the script is written for: ``"pytorch"``, ``"tensorflow"``, with a version if it
        is settled (``"pytorch 1.13"``).
    objective
        ``"throughput"``, ``"cost"`` (also tries fewer nodes and comparable instance types), ``"headroom"`` or
        ``"simplicity"``.
    min_fit_probability
        Only plans that fit with at least this probability are recommended.
    script, data
        Path of your own training script and S3 URI of its data, for the cell.
    **settings
        Fields of `Job`; of an inferred shape (`family`, `layers`, `hidden`, `heads`, `vocab`); and fields of `Plan` to
        hold at a value (``tensor_parallel_degree=4``).

    Raises
    ------
    AdvisorError
        One sentence: what is wrong with the input, or that nothing fits and what would.

    Examples
    --------
    >>> advice = advise("10B", "ml.p4d.24xlarge", instance_count=16, sequence_length=512)
    >>> advice.estimate.fits
    True
    """
    chosen_objective = _objective(objective)
    for name, text in (("script", script), ("data", data)):
        _require_text(name, text)
    _require_probability(min_fit_probability)
    _require_library(library, framework)
    given_job, shape, pins = _sort_settings(settings)
    job_is_given = job is not None
    job = _job(job, given_job)
    at_default = set(job.defaulted())
    cluster = _cluster(cluster, instance_count)
    read = read_model(model, sequence_length=job.sequence_length, shape=shape, job=job, library=library)
    job = _within_positions(job, read, given="sequence_length" in given_job or job_is_given)
    job = _within_usual_batch(job, read)
    settled = _JOB_FIELDS if job_is_given else frozenset(given_job)
    chosen = _library(library, read, cluster, job, framework=framework, given=settled, probability=min_fit_probability)
    library = chosen.library
    read = _in_shape_of(library, read, model, job, shape)
    job = job_for(library, job, cluster, given=settled)
    _require_fields(library, pins)
    if chosen_objective == "cost" and cluster.usd_per_hour is None:
        raise AdvisorError(
            f"objective='cost' needs a price, and none is known for {cluster.instance.name}: use another objective, or "
            "Cluster.custom(..., usd_per_hour=...)."
        )
    _require_trainable(library, job)
    if job.precision == "bf16" and not cluster.instance.bf16:
        raise JobError(f"{cluster.instance.gpu_label} does not compute in bf16; use precision='fp16'.")

    if pins:
        check_against(_pinned_plan(library, job, cluster, pins), cluster, read)

    if chosen_objective == "cost":
        best, searched = search_cheapest(
            read, cluster, job, library=library, min_fit_probability=min_fit_probability, pins=pins
        )
    else:
        best = search(
            read,
            cluster,
            job,
            objective=chosen_objective,
            min_fit_probability=min_fit_probability,
            pins=pins,
            library=library,
        )
        searched = [best]
    if best is None or not len(best.ranked):
        raise NoPlanFitsError(nothing_fits(read, cluster, job, searched[0], min_fit_probability, pins))

    plan = best.best()
    value = estimate(read, best.cluster, job, plan)
    because = (
        why_this_plan(read, best, searched, cluster, min_fit_probability),
        batch_note(read, job, value),
        low_utilisation(value),
    )
    return Advice(
        model=read,
        cluster=best.cluster,
        job=job,
        plan=plan,
        estimate=value,
        objective=chosen_objective,
        min_fit_probability=min_fit_probability,
        steps=explain(
            read, best.cluster, job, plan, value, min_fit_probability=min_fit_probability, objective=objective
        ),
        pitfalls=pitfalls(
            read,
            best.cluster,
            job,
            plan,
            script_is_generated=script is None,
            min_fit_probability=min_fit_probability,
        ),
        reference=nearest_reference(read, best.cluster, job, plan, value, min_fit_probability=min_fit_probability),
        library_because=chosen.because,
        because=" ".join(filter(None, because)),
        defaults=defaults(library, read, job, at_default - set(given_job), vocab_given="vocab" in shape),
        plans_enumerated=sum(r.plans_enumerated for r in searched),
        plans_scored=sum(len(r.peak_gib) for r in searched),
        plans_fit=sum(len(r.ranked) for r in searched),
        script=script,
        data=data,
        result=best,
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


def _require_probability(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise AdvisorError(f"min_fit_probability must lie between 0 and 1, for example 0.95, not {value!r}.")


def _sort_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Keywords of the job, of the shape, and pinned plan fields."""
    known = _JOB_FIELDS | _SHAPE_FIELDS | _PLAN_FIELDS
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "see the fields of Job and Plan."
            raise AdvisorError(f"advise takes no setting {name!r}; {hint}")
    return (
        {k: v for k, v in settings.items() if k in _JOB_FIELDS},
        {k: v for k, v in settings.items() if k in _SHAPE_FIELDS and v is not None},
        {k: v for k, v in settings.items() if k in _PLAN_FIELDS - _JOB_FIELDS},
    )


def _require_library(library: str, framework: str | None) -> None:
    if library not in {*LIBRARIES, "auto"}:
        raise AdvisorError(f"library must be 'auto' or one of {', '.join(LIBRARIES)}, not {library!r}.")
    if framework is not None and library != "auto":
        raise AdvisorError(f"framework goes with library='auto'; library={library!r} settles it already.")


def _library(
    library: str,
    model: Model,
    cluster: Cluster,
    job: Job,
    *,
    framework: str | None,
    given: frozenset[str],
    probability: float,
) -> LibraryChoice:
    """The library asked for, if it runs there, or the one chosen."""
    if library == "auto":
        return choose_library(model, cluster, job, framework=framework, given=given, min_fit_probability=probability)
    require_supported_instance(library, cluster.instance)
    return LibraryChoice(library=library, because="")


def _require_trainable(library: str, job: Job) -> None:
    """Refuse what a library does not document: adapters and fp8 products."""
    name = schema(library).name
    if job.adapter is not None and library not in {"smp-v2", "fsdp", "ddp"}:
        raise JobError(f"{name} documents no adapters: leave them out of the job, or use SMP v2, FSDP or DDP.")
    if job.fp8 and library != "smp-v2":
        raise JobError(f"{name} documents no fp8 products: leave them out of the job, or use library='smp-v2'.")


def _in_shape_of(library: str, read: Model, model: Any, job: Job, shape: Mapping[str, Any]) -> Model:
    """The model, in Llama's shape where SMP v2 trains a bare parameter count.

    AWS's reference configurations of SMP v2 are Llama's, and its tensor and context parallelism do not know GPT-2.
    """
    if library != "smp-v2" or read.origin != "inferred" or "family" in shape:
        return read
    return read_model(model, sequence_length=job.sequence_length, shape={**shape, "family": "llama"})


def _require_fields(library: str, pins: Mapping[str, Any]) -> None:
    """Refuse pinned settings that plans of the library do not have, in the library's own words."""
    unknown = {name: value for name, value in pins.items() if name not in plan_fields(library)}
    if unknown:
        Plan(library=library, **unknown)


def _pinned_plan(library: str, job: Job, cluster: Cluster, pins: Mapping[str, Any]) -> Plan:
    """A small plan with the pinned fields: what is wrong with them shows here, in the library's own terms."""
    if library != "smp-v1":
        return _small_plan(library, job, cluster, pins)
    microbatches = pins.get("microbatches") or pins.get("active_microbatches") or 1
    fill: dict[str, Any] = {
        "microbatches": microbatches,
        "batch_size": microbatches,
        "activation_checkpointing": "each" if pins.get("offload_activations") else False,
        "fp16": job.precision == "fp16",
    }
    if job.precision == "bf16":  # only with sharded data parallelism, which then shows what it excludes
        fill |= {"bf16": True, "sharded_data_parallel_degree": 2}
    plan: Plan = Plan(**{**fill, **pins})
    return plan


def _small_plan(library: str, job: Job, cluster: Cluster, pins: Mapping[str, Any]) -> Plan:
    known = plan_fields(library)
    fill: dict[str, Any] = {
        "precision": job.precision,
        "fp8": job.fp8,
        "activation_checkpointing": "each" if pins.get("offload_activations") else False,
        "horovod": cluster.gpus > pins.get("partitions", 1),
        "batch_size": pins.get("microbatches", 1),
    }
    return Plan(library=library, **{**{name: value for name, value in fill.items() if name in known}, **pins})


def _job(job: Job | None, given: Mapping[str, Any]) -> Job:
    if job is None:
        return Job(**given)
    if given:
        raise JobError(f"Give either a Job or its fields, not both: {_words(given)} came beside job=.")
    return job


def _within_positions(job: Job, model: Model, *, given: bool) -> Job:
    """The job, at the model's own length where the user gave none; an error where theirs exceeds its positions."""
    positions = model.shape.max_positions
    if not positions or model.fixed_sequence_length or job.sequence_length <= positions:
        return job
    if not given:
        return replace(job, sequence_length=positions)
    raise JobError(
        f"{model.name} has {positions:,} positions, fewer than a sequence_length of {job.sequence_length:,}: pass "
        f"sequence_length={positions} or less, or a configuration with more positions."
    )


def _within_usual_batch(job: Job, model: Model) -> Job:
    """The job, with the limit of a free global batch in samples where the model reads no tokens."""
    if model.reads_tokens or "max_tokens_per_step" not in job.defaulted():
        return job
    return replace(job, max_tokens_per_step=MAX_SAMPLES_PER_STEP * model.sequence_length(1))


def _cluster(cluster: Cluster | Instance | str, count: int | None) -> Cluster:
    if isinstance(cluster, Cluster):
        if count is not None and count != cluster.nodes:
            raise AdvisorError(f"instance_count={count} contradicts the cluster's {cluster.nodes} nodes; give one.")
        return cluster
    return Cluster(cluster, 1 if count is None else count)
