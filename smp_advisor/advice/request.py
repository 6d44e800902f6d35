"""Input of advise: the model from any description, and settings sorted, checked and completed."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from smp_advisor.arguments import meant, options_of, require_types, shown
from smp_advisor.errors import AdvisorError, JobError, ModelError, PlanError, UnknownFamilyError
from smp_advisor.libraries.library import get_library, libraries, plan_fields
from smp_advisor.libraries.plan import Plan
from smp_advisor.libraries.validation import fault_of, unsupported_settings
from smp_advisor.search.rank import batch_policy
from smp_advisor.workload import Job, Model, load_calibration
from smp_advisor.workload.counts import is_count
from smp_advisor.workload.from_config import config_values, is_path, title_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from smp_advisor.cluster.cluster import Cluster

    Progress = Callable[[float, float, str], None]


_TRACERS = ("torch", "transformers")


def read_model(
    model: Any,
    *,
    sequence_length: int,
    shape: Mapping[str, Any] | None = None,
    job: Job | None = None,
    library: str = "auto",
    on_progress: Progress | None = None,
) -> Model:
    """Convert any description of a model to a `Model`."""
    if isinstance(model, Model):
        return model
    shape = dict(shape or {})
    job = job or Job(sequence_length=sequence_length)
    profiled = is_profile(model)
    is_module = callable(getattr(model, "named_parameters", None))
    if (profiled or is_module) and shape:
        raise AdvisorError(f"{listed(shape)} can only be given with a parameter count; this model is measured.")
    if profiled:
        return Model.from_profile(model)
    if is_module:
        return _of_module(model, job, library)
    if not isinstance(model, int | str) and isinstance(model, Real):
        model = float(model)  # NumPy's numbers
    if isinstance(model, int | float) or (isinstance(model, str) and is_count(model)):
        return Model.from_parameters(model, sequence_length=sequence_length, **shape)
    if shape:
        raise AdvisorError(
            f"{listed(shape)} can only be given with a parameter count; this model's configuration already has them."
        )
    if is_named(model):
        return Model.from_name(model)
    _require_description(model)
    try:
        return Model.from_config(model)
    except UnknownFamilyError as error:
        return _traced(model, job, library, on_progress, error)


def _require_description(model: object) -> None:
    """Refuse what is none of the descriptions of a model."""
    if model is None or isinstance(model, list | tuple | set | type | bytes):
        raise ModelError(
            "A model is a parameter count such as '10B', a name such as 'llama-3-70b', a transformers configuration"
            f" (object, dict, path of a config.json), a torch.nn.Module, a Profile or a Model, not {shown(model)}."
        )


def is_profile(model: object) -> bool:
    """Whether a description of a model is a `Profile`; this does not import its room."""
    return hasattr(model, "provenance") and callable(getattr(model, "as_dict", None))


def is_named(model: object) -> TypeGuard[str]:
    """Whether a description is the name of a published model, whose weights a job can start from."""
    return isinstance(model, str) and not is_count(model) and not is_path(model)


def has_formulas(model: Any) -> bool:
    """Whether `read_model` needs no trace for a configuration. True for any other description."""
    if not isinstance(model, str | dict) and not callable(getattr(model, "to_dict", None)):
        return True
    if is_named(model) or (isinstance(model, str) and is_count(model)):
        return True
    try:
        Model.from_config(model)
    except UnknownFamilyError:
        return False
    except AdvisorError:
        pass
    return True


def _traced(config: Any, job: Job, library: str, on_progress: Progress | None, error: UnknownFamilyError) -> Model:
    """Model of a configuration whose family has no formulas, from a trace of transformers' own code."""
    values, source = config_values(config)
    family = values.get("model_type")
    missing = [name for name in _TRACERS if find_spec(name) is None]
    if missing:
        raise ModelError(
            f"In {source}, the model type {family!r} has no formulas: install {' and '.join(missing)} (pip install"
            f" {' '.join(missing)}), and it is traced automatically."
        ) from error
    from smp_advisor.profiling import profile

    try:
        traced = profile(values, job, stages=("trace",), library=library, on_progress=on_progress)
        model = Model.from_profile(traced)
    except AdvisorError as problem:
        raise ModelError(
            f"In {source}, the model type {family!r} has no formulas, and its trace failed: {problem}"
        ) from None
    note = f"traced on this machine, because the family {family} has no formulas; {model.note.partition('; ')[2]}"
    return replace(model, name=title_of(values, model.family, model.parameter_count), note=note)


def _of_module(module: Any, job: Job, library: str) -> Model:
    """Model of a module from its trace, or from its family's formulas if it cannot be traced."""
    from smp_advisor.profiling import profile

    try:
        return Model.from_profile(profile(module, job, stages=("trace",), library=library))
    except AdvisorError as untraced:
        try:
            return Model.from_module(module)
        except AdvisorError:
            raise untraced from None


JOB_FIELDS = frozenset(f.name for f in fields(Job))
_SHAPE_FIELDS = frozenset(option.name for option in options_of("shape"))


def listed(names: Mapping[str, Any]) -> str:
    """Names in alphabetical order, as text."""
    return ", ".join(sorted(names))


def sort_settings(
    settings: Mapping[str, Any], arguments: Collection[str] = ()
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Keywords of the job, of the shape, and pinned plan fields."""
    plan_settings = frozenset[str]().union(*(plan_fields(record.name) for record in libraries())) - {"library"}
    names = JOB_FIELDS | _SHAPE_FIELDS | plan_settings
    for name in settings:
        if name not in names:
            keyword = meant(name, names | set(arguments))
            hint = f"did you mean {keyword}?" if keyword else "see the fields of Job and Plan."
            raise AdvisorError(f"advise takes no setting {name!r}; {hint}")
    return (
        {k: v for k, v in settings.items() if k in JOB_FIELDS},
        {k: v for k, v in settings.items() if k in _SHAPE_FIELDS and v is not None},
        {k: v for k, v in settings.items() if k in plan_settings - JOB_FIELDS},
    )


def require_library(library: str, framework: str | None) -> None:
    """Refuse the name of no library, and a framework next to a named library."""
    require_types({"library": (library, str), "framework": (framework, (str, type(None)))}, "advise")
    if library == "auto":
        return
    if library not in {record.name for record in libraries()}:
        names = ", ".join(record.name for record in libraries())
        raise AdvisorError(f"library must be 'auto' or one of {names}, not {library!r}.")
    if framework is not None:
        raise AdvisorError(f"framework goes with library='auto'; library={library!r} determines it already.")


def require_trainable(library: str, job: Job) -> None:
    """Refuse adapters, fp8 products and other settings in a library that does not document them."""
    record = get_library(library)
    for sentence in unsupported_settings(library, job):
        raise JobError(sentence)
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


def job_of(job: Job | None, settings: Mapping[str, Any]) -> Job:
    """The job, or a job with the settings; a calibration may be the path of its file."""
    if job is None:
        saved = settings.get("calibration")
        if isinstance(saved, str | Path):
            settings = {**settings, "calibration": load_calibration(saved)}
        return Job(**settings)
    if settings:
        raise JobError(f"Pass either a Job or its fields, not both: {listed(settings)} came with job=.")
    return job


def set_by_user(job: Job | None, settings: Mapping[str, Any], library: str) -> frozenset[str]:
    """The job's settings that the user set: without fp16 and eager, SMP v1's defaults, if ``library="auto"``."""
    if job is None:
        return frozenset(settings)
    if not isinstance(job, Job):
        raise AdvisorError(
            f"The third argument of advise is a Job, not {shown(job)}: pass instance_count= and other settings by name."
        )
    own = frozenset({"precision", "attention"})
    free = library == "auto" and own | {"stack"} <= set(job.defaulted())
    return JOB_FIELDS - own if free else JOB_FIELDS


_NAMED_LENGTHS = (8192, 4096)
"""Longest sequence of a model by its name: that of the pre-training of Llama 3 (arXiv 2407.21783, section 3.4.1), and
that of AWS's recipes for fine-tuning (``max_len`` of llmft_*_sft_lora.yaml, 2026-06-23)."""


def suited(job: Job, model: Any, workload: Model, *, has_length: bool) -> Job:
    """The job for a model: with the length of its profile or its positions, and the limit of its batch."""
    if is_profile(model) and model.has_sequence and not has_length:
        job = replace(job, sequence_length=model.sequence)
    elif is_named(model) and not has_length:
        positions = json.loads(workload.config_json or "{}").get("max_position_embeddings", 0)
        longest = _NAMED_LENGTHS[job.adapter is not None or job.training == "fine-tuning"]
        job = replace(job, sequence_length=max(min(positions, longest), job.sequence_length))
    return within_usual_batch(_within_positions(job, workload, is_set=has_length), workload)


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


def within_usual_batch(job: Job, model: Model) -> Job:
    """The job, with the largest usual batch of the model and the kind of training as the limit of a free batch."""
    if "max_tokens_per_step" not in job.defaulted():
        return job
    return replace(job, max_tokens_per_step=batch_policy(model, job).cap_tokens)
