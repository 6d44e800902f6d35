"""The request: the keywords of `advise` in one form, which is checked, changed and stored as itself."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.advice.description import is_named, is_profile, listed, read_model
from smp_advisor.arguments import LIMITS, check, hint, options, options_of, shown
from smp_advisor.cluster.cluster import Cluster
from smp_advisor.cluster.table import completed_instance, meant_instance
from smp_advisor.core.files import is_path, sentence
from smp_advisor.errors import AdvisorError, JobError, PlanError
from smp_advisor.libraries.library import get_library, libraries, meant_library, plan_fields
from smp_advisor.libraries.plan import Plan
from smp_advisor.libraries.validation import fault_of, unsupported_settings
from smp_advisor.libraries.version import reserved_positions
from smp_advisor.search.candidates import Request as Terms
from smp_advisor.search.candidates import pins_for
from smp_advisor.search.clusters import ANY, Question
from smp_advisor.search.library import framework_of
from smp_advisor.search.rank import batch_policy
from smp_advisor.workload import Job, Model, load_calibration
from smp_advisor.workload.stack import stack_on

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any as Description

    from smp_advisor.advice.description import Progress
    from smp_advisor.advice.recommendation import Recommendation
    from smp_advisor.cluster.table import Instance
    from smp_advisor.search.rank import Objective


JOB_FIELDS = frozenset(f.name for f in fields(Job))
_SHAPE_FIELDS = frozenset(option.name for option in options_of("shape"))
_FREE = frozenset({"precision", "attention"})
"""Fields of a `Job` object that count as not set while they have their defaults and the library is chosen."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request: the keywords of `smp_advisor.advise`, checked.

    Examples
    --------
    >>> request = Request.of("1.3B", "ml.p4d.24xlarge", library="fsdp", tokens="20B", batch_size=4)
    >>> request.job.tokens, dict(request.pins)
    (20000000000.0, {'batch_size': 4})
    >>> request.changed(instance_count=4, batch_size=None).pins
    {}
    """

    model: Description
    """Description of the model. In a recommendation: the `Model` or `Profile` that was read, or the count to infer a
    shape from."""
    cluster: Cluster | Instance | str | tuple[Instance | str, ...]
    """A cluster; or the instances to choose from, and ``any``."""
    job: Job = field(default_factory=Job)
    user_settings: frozenset[str] = frozenset()
    """Fields of the job that the user set. The library decides on the others."""
    instance_count: int | str | None = None
    max_days: float | str | None = None
    max_usd: float | str | None = None
    max_gpu_hours: float | str | None = None
    library: str = "auto"
    framework: str | None = None
    objective: Objective = "throughput"
    min_fit_probability: float = 0.95
    script: str | None = None
    """Path of the user's training script."""
    data: str | None = None
    """S3 URI of the training channel."""
    shape: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the shape that is inferred from a parameter count."""
    pins: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the plan at fixed values."""
    read_as: tuple[str, ...] = ()
    """How names of clusters were completed, one phrase each."""

    @classmethod
    def of(cls, model: Any, cluster: Any, job: Job | None = None, **keywords: Any) -> Request:
        """Sort and check the keywords of `advise`."""
        price = keywords.pop("usd_per_hour", None)
        unset = ("objective", "min_fit_probability")  # None is not set, and these have a default
        own = {
            name: _DEFAULTS[name] if value is None and name in unset else value
            for name, value in keywords.items()
            if name in _OPTIONS
        }
        settings = {name: value for name, value in keywords.items() if name not in _OPTIONS}
        own |= check({name: own[name] for name in _CHECKED if name in own})
        library = own["library"] = meant_library(own.get("library", "auto"))
        require_library(library, own.get("framework"))
        of_job, shape, pins = sort_settings(settings, {"model", "cluster", "job", "usd_per_hour", *_OPTIONS})
        require_values(library, pins)
        user_settings = set_by_user(job, of_job, library)
        places, counted, read_as = meant_places(cluster)
        if price is not None:
            places = _at_price(places, options()["usd_per_hour"].checked(price))
        if counted is not None:
            if own.get("instance_count") not in (None, counted):
                raise AdvisorError(f"{cluster!r:.40} is {counted} nodes, and instance_count={own['instance_count']}.")
            own["instance_count"] = counted
        return cls(
            model=model,
            cluster=places,
            read_as=read_as,
            job=job_of(job, of_job),
            user_settings=user_settings,
            shape=shape,
            pins=pins,
            **own,
        )

    @property
    def is_of_job(self) -> bool:
        """Whether the user passed a complete `Job` instead of settings."""
        return self.user_settings >= JOB_FIELDS - _FREE

    @property
    def named_settings(self) -> frozenset[str]:
        """Fields of the job that the user named or that differ from their defaults."""
        chosen_fields = frozenset[str]() if self.is_of_job else self.user_settings
        return chosen_fields | (JOB_FIELDS - frozenset(self.job.defaulted()))

    def changed(self, **changes: Any) -> Request:
        """Return the request with other keywords of `advise`; None removes a setting."""
        own = {name: value for name, value in changes.items() if name in _OPTIONS}
        of_job, shape, pins = sort_settings(
            {name: value for name, value in changes.items() if name not in {*own, "model", "cluster"}}, _OPTIONS
        )
        if own.get("library"):
            own["library"] = meant_library(own["library"])
        library = own.get("library") or ("auto" if "library" in own else self.library)
        require_library(library, own.get("framework", self.framework) if library == "auto" else None)
        values: dict[str, Any] = {name: _DEFAULTS[name] if value is None else value for name, value in own.items()}
        values |= check(values)
        if isinstance(self.cluster, Cluster) and {"cluster", "instance_count"} & changes.keys():
            values = {"cluster": self.cluster.instance, "instance_count": self.cluster.nodes} | values
        if "cluster" in changes:
            values["cluster"], counted, values["read_as"] = meant_places(changes["cluster"])
            values |= {} if counted is None else {"instance_count": counted}
        if "model" in changes:
            values |= {"model": changes["model"], "shape": {}}
        if names := {name for name in changes if name in _SHAPE_FIELDS}:
            shape_values = {name: value for name, value in self.shape.items() if name not in names}
            values["shape"] = shape_values | shape
        if pins:
            fixed = {name: value for name, value in pins.items() if value is not None}
            require_values(library, fixed)
            values["pins"] = {name: value for name, value in self.pins.items() if name not in pins} | fixed
        if of_job:
            values |= self.job_with(of_job)
        if "library" in own and self.is_of_job:  # which of a Job's defaults count as set depends on it
            values["user_settings"] = set_by_user(values.get("job", self.job), {}, library) | frozenset(of_job)
        return replace(self, **values)

    def job_with(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return `job` and `user_settings` with changed fields of the job."""
        carried_fields = (self.user_settings | (JOB_FIELDS - frozenset(self.job.defaulted()))) - changes.keys()
        if "stack" in changes and (self.is_of_job or "attention" not in self.user_settings):
            carried_fields -= {"attention"}  # that of the kind of code
        chosen = {name: value for name, value in changes.items() if value is not None}
        job = job_of(None, {**{name: getattr(self.job, name) for name in carried_fields}, **chosen})
        return {"job": job, "user_settings": (self.user_settings - frozenset(changes)) | frozenset(chosen)}


_CHECKED = ("objective", "min_fit_probability", "script", "data", "instance_count", *LIMITS)
_OPTIONS = frozenset(
    {
        *LIMITS, "instance_count", "library", "framework", "objective", "min_fit_probability", "script",
        "data",
    }
)  # fmt: skip
"""Keywords of `advise` that are settings of neither the job, the shape nor the plan."""
_DEFAULTS: Mapping[str, Any] = {entry.name: entry.default for entry in fields(Request)}


SETTINGS = (
    JOB_FIELDS
    | _SHAPE_FIELDS
    | _OPTIONS
    | {"usd_per_hour"}
    | frozenset[str]().union(*(plan_fields(r.name) for r in libraries()))
)
"""Keywords of `advise` next to the model, the cluster and the job."""


def sort_settings(
    settings: Mapping[str, Any], arguments: Collection[str] = ()
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return keywords of the job, of the shape, and pinned plan fields."""
    plan_settings = frozenset[str]().union(*(plan_fields(record.name) for record in libraries())) - {"library"}
    names = JOB_FIELDS | _SHAPE_FIELDS | plan_settings
    for name, value in settings.items():
        if name not in names:
            meaning = hint(name, names | set(arguments), value) or "see the fields of Job and Plan."
            raise AdvisorError(f"advise takes no setting {name!r}; {meaning}")
    texts = {name: value for name, value in settings.items() if isinstance(value, str)}
    settings = {**settings, **check(texts)}
    if settings.get("activation_checkpointing") is True:
        settings["activation_checkpointing"] = "each"
    return (
        {k: v for k, v in settings.items() if k in JOB_FIELDS},
        {k: v for k, v in settings.items() if k in _SHAPE_FIELDS and v is not None},
        {k: v for k, v in settings.items() if k in plan_settings - JOB_FIELDS},
    )


def meant_places(cluster: Any) -> tuple[Any, int | None, tuple[str, ...]]:
    """Return the clusters of a request, the number of nodes if their text has one, and how the text was read."""
    several = isinstance(cluster, list | tuple)
    entries, counts, notes = [], [], []
    for entry in cluster if several else (cluster,):
        if not isinstance(entry, str) or entry.strip().lower() == ANY or not entry.strip():
            entries.append(entry.strip().lower() if isinstance(entry, str) else entry)
            continue
        machine, count, note = meant_instance(entry)
        entries.append(machine.name)
        counts += [] if count is None else [count]
        notes += [note] if note else []
    if several and counts:
        raise AdvisorError("A list of instances has no numbers of nodes: pass instance_count.")
    return tuple(entries) if several else entries[0], counts[0] if counts else None, tuple(notes)


def _at_price(place: Any, usd_per_hour: float) -> Any:
    """An instance, or a cluster of it, at a price of the user's: of a capacity block, a savings plan, a region."""
    if isinstance(place, Cluster):
        return Cluster(_at_price(place.instance, usd_per_hour), place.nodes)
    if isinstance(place, tuple) or place == ANY:
        raise AdvisorError("usd_per_hour is the price of one instance type: name one instead of several.")
    machine = completed_instance(place) if isinstance(place, str) else place
    assumed_fields = tuple(name for name in machine.assumed if name != "usd_per_hour")
    return replace(machine, usd_per_hour=usd_per_hour, price_note="your price", assumed=assumed_fields)


def require_library(library: str, framework: str | None) -> None:
    """Refuse the name of no library, and a framework next to a named library."""
    if library == "auto":
        return
    if library not in [record.name for record in libraries()]:
        names = ", ".join(record.name for record in libraries())
        raise AdvisorError(f"library must be 'auto' or one of {names}, not {library!r}.")
    if framework is not None:
        raise AdvisorError(f"framework goes with library='auto'; library={library!r} determines it already.")


def require_trainable(library: str, job: Job) -> None:
    """Refuse adapters, fp8 products and other settings in a library that does not document them."""
    record = get_library(library)
    for fault in unsupported_settings(library, job):
        raise JobError(fault)
    if job.adapter is not None and not record.adapters:
        titles = " or ".join(entry.title for entry in libraries() if entry.adapters)
        raise JobError(f"{record.title} documents no adapters: leave them out of the job, or use {titles}.")
    if job.fp8 and "fp8" not in plan_fields(library):
        names = " or ".join(f"library={entry.name!r}" for entry in libraries() if "fp8" in plan_fields(entry.name))
        raise JobError(f"{record.title} documents no fp8 products: leave them out of the job, or use {names}.")


def require_values(library: str, pins: Mapping[str, Any]) -> None:
    """Refuse a pinned setting that no library takes at this value, or that the named library does not take."""
    records = [record for record in libraries() if library in ("auto", record.name)]
    for name, value in pins.items():
        faults = [fault_of(record.name, name, value) for record in records if name in plan_fields(record.name)]
        if faults and all(faults):
            raise PlanError(faults[0])


def require_fields(library: str, pins: Mapping[str, Any]) -> None:
    """Raise the library's own error for pinned settings that its plans do not have."""
    unknown = {name: value for name, value in pins.items() if name not in plan_fields(library)}
    if unknown:
        Plan(library=library, **unknown)


def pinned_plan(library: str, job: Job, cluster: Cluster, pins: Mapping[str, Any]) -> Plan:
    """Return a small plan with the pinned fields, which raises the library's own error if they are wrong."""
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


def job_of(job: Job | None, settings: Mapping[str, Any]) -> Job:
    """Return the job, or a job with the settings; a calibration may be the path of its file."""
    if job is None:
        saved = settings.get("calibration")
        if isinstance(saved, str | Path):
            settings = {**settings, "calibration": load_calibration(saved)}
        if settings.get("fp8"):
            settings = {"precision": "bf16", **settings}
        return Job(**settings)
    if settings:
        raise JobError(f"Pass either a Job or its fields, not both: {listed(settings)} came with job=.")
    return job


def set_by_user(job: Job | None, settings: Mapping[str, Any], library: str) -> frozenset[str]:
    """Return the job's settings that the user set: without fp16 and eager, SMP v1's defaults, if ``library="auto"``."""
    if job is None:
        return frozenset(settings)
    if not isinstance(job, Job):
        raise AdvisorError(
            f"The third argument of advise is a Job, not {shown(job)}: pass instance_count= and other settings by name."
        )
    free = library == "auto" and _FREE | {"stack"} <= set(job.defaulted())
    return JOB_FIELDS - _FREE if free else JOB_FIELDS


_NAMED_LENGTHS = (8192, 4096)
"""Longest sequence of a model by its name: that of the pre-training of Llama 3 (arXiv 2407.21783, section 3.4.1), and
that of AWS's recipes for fine-tuning (``max_len`` of llmft_*_sft_lora.yaml, 2026-06-23)."""


def suited(job: Job, model: Any, workload: Model, *, has_length: bool) -> Job:
    """Return the job for a model: with the length of its profile or its positions, and the limit of its batch."""
    if is_profile(model) and model.has_sequence and not has_length:
        job = replace(job, sequence_length=model.sequence)
    elif is_named(model) and not has_length:
        positions = json.loads(workload.config_json or "{}").get("max_position_embeddings", 0)
        longest = _NAMED_LENGTHS[job.tunes]
        job = replace(job, sequence_length=max(min(positions, longest), job.sequence_length))
    if (kind := stack_on(job.stack, workload.family)) != job.stack:
        job = replace(job, stack=kind)
    # Without a length of the user's, that of the model; theirs must not exceed its positions.
    positions = workload.shape.max_positions - reserved_positions(workload.family)
    if 0 < positions < job.sequence_length and not workload.fixed_sequence_length:
        if has_length:
            raise JobError(sentence("advice", "fewer_positions", model=workload, positions=positions, job=job))
        job = replace(job, sequence_length=positions)
    return within_usual_batch(job, workload)


def within_usual_batch(job: Job, model: Model) -> Job:
    """The job, with the largest usual batch of the model and the kind of training as the limit of a free batch."""
    if "max_tokens_per_step" not in job.defaulted():
        return job
    return replace(job, max_tokens_per_step=batch_policy(model, job).cap_tokens)


def with_code(request: Request) -> tuple[Request, str]:
    """Return the request with the settings that the user's script determines, and a summary of them.

    Unchanged is a request of a complete job, and that of a script that is elsewhere or cannot be read.
    """
    script = request.script
    if request.is_of_job or script is None or not is_path(script) or not Path(script).is_file():
        return request, ""
    from smp_advisor.review.scripts.following import read_stack  # the checker is not needed otherwise

    try:
        code = read_stack(Path(script))
    except AdvisorError:
        return request, ""
    user_settings = request.user_settings
    settings = {
        name: value
        for name, value in code.settings.items()
        if name not in user_settings and (name != "stack" or "attention" not in user_settings)
    }
    return replace(request, **request.job_with(settings)) if settings else request, code.summary


def resolved(request: Request, on_progress: Progress | None = None) -> Request:
    """Return the request with its model read and its job completed for the model."""
    job, library = request.job, request.library
    model = read_model(
        request.model,
        sequence_length=job.sequence_length,
        shape=request.shape,
        job=job,
        library=library,
        on_progress=on_progress,
    )
    job = suited(job, request.model, model, has_length="sequence_length" in request.user_settings)
    if library != "auto":
        require_fields(library, request.pins)
        require_trainable(library, job)
    return replace(request, model=model, job=job)


def terms_of(request: Request, cluster: Cluster) -> Terms:
    """Return the terms of a resolved request's search on a cluster."""
    return Terms(
        model=request.model,
        cluster=cluster,
        job=request.job,
        pins=request.pins,
        user_settings=request.user_settings,
        pytorch=framework_of(request.framework)[1],
        min_fit_probability=request.min_fit_probability,
        own_script=request.script is not None,
    )


def question_of(request: Request, cluster: Cluster) -> Question:
    """Return the request as it is searched on other clusters."""
    terms = terms_of(resolved(with_code(request)[0]), cluster)
    return Question(request=terms, library=request.library, objective=request.objective)


def repeated(request: Request, advice: Recommendation, job: Job) -> Request:
    """Return the request for the model, the library and the version of an advice, with a complete job."""
    library = advice.plan.library
    pins = pins_for(library, terms_of(request, advice.cluster))
    return replace(
        request,
        model=advice.model,
        job=job,
        user_settings=JOB_FIELDS,
        library=library,
        framework=None,
        shape={},
        pins=pins,
    )
