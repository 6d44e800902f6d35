"""Checks of plans: the values of their fields, and a plan against cluster, model and job."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.arguments import nearest, shown
from smp_advisor.arguments.amounts import digits_as_number
from smp_advisor.core import MOST
from smp_advisor.core.files import sentence
from smp_advisor.errors import PlanError
from smp_advisor.libraries import groups
from smp_advisor.libraries.library import DEFAULT_LIBRARY, TRL_SINCE, get_library, libraries, plan_fields
from smp_advisor.libraries.schema import Parameter, Schema, schema
from smp_advisor.libraries.version import (
    architecture_name,
    default_of,
    default_version,
    driving_versions,
    image,
    release,
    transformers_families,
    version_on,
    versions,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.cluster.table import Instance
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.libraries.schema import Rule
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


_TYPES: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}
_ARTICLE = {"int": "an int", "float": "a float", "bool": "a bool", "str": "a str"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """One reason why the library, or the SDK that submits the job, refuses settings."""

    rule: str
    """``unknown``, ``version``, ``type``, ``range``, ``choice``, or the id of a rule in the schema."""
    keys: tuple[str, ...]
    text: str
    """One sentence: the problem with its values, and the remedy."""


def violations(
    parameters: Mapping[str, Any],
    *,
    version: str,
    library: str = DEFAULT_LIBRARY,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[Violation]:
    """Yield the problems of a dictionary of library parameters, names and types first."""
    facts = schema(library)
    doubtful: set[str] = set()
    for key, value in parameters.items():
        violation = _single(facts, version, key, value)
        if violation is not None:
            doubtful.add(key)
            yield violation
    stored = {key: value for key, value in parameters.items() if key not in doubtful}
    effective = facts.completed(stored)
    if settings is not None:
        stored.update(settings)
        effective.update(settings)
    for rule in facts.rules_for(version):
        if (rule.script_setting and settings is None) or (doubtful and not doubtful.isdisjoint(rule.keys)):
            continue
        if rule.broken_by(stored, effective):
            yield Violation(rule=rule.id, keys=rule.keys, text=_sentence(facts, rule, effective))


def setting_violations(settings: Mapping[str, Any], *, library: str) -> Iterator[Violation]:
    facts = schema(library)
    for key, value in settings.items():
        setting = facts.setting(key)
        fault = None if setting is None else _fault(setting, value)
        if fault is not None:
            yield Violation(rule="setting", keys=(key,), text=fault[1])


def fault_of(library: str, name: str, value: object) -> str:
    """Return why a field of a plan of a library cannot have a value, whatever the others are; empty if it can."""
    facts = schema(library)
    setting = facts.setting(name)
    entry = setting or facts.parameter(name)
    if entry is None or (setting is None and value is None and entry.default is None):
        return ""
    if name == _CHECKPOINTING and value == "none":
        return ""
    fault = _fault(entry, value)
    return "" if fault is None else fault[1]


_CHECKPOINTING = "activation_checkpointing"


def _fault(entry: Parameter, value: object) -> tuple[str, str] | None:
    """Return the rule that a value of a parameter or setting breaks, and the sentence on it; None if it is allowed."""
    if entry.key == _CHECKPOINTING:
        pattern = entry.pattern or "|".join(map(re.escape, entry.choices))
        if value is False or (isinstance(value, str) and value != "none" and re.fullmatch(pattern, value)):
            return None
        choices = ("False", *(repr(choice) for choice in entry.choices if choice != "none"))
        return "choice", f"{entry.key} must be {entry.accepts or ' or '.join(choices)}, not {value!r:.80}."
    if value is None and entry.nullable:
        return None
    if type(value) is not _TYPES[entry.type]:
        return "type", _type_text(entry, value)
    if isinstance(value, int | float) and not _within(entry, value):
        return "range", _range_text(entry, value)
    if entry.choices and value not in entry.choices:
        return "choice", _choice_text(entry, str(value))
    return None


def _single(facts: Schema, version: str, key: object, value: object) -> Violation | None:
    parameter = facts.parameter(key) if isinstance(key, str) else None
    if parameter is None:
        near = nearest(str(key), facts.defaults(version))
        hint = f"the most similar one is {near}" if near else "leave it out"
        return Violation(
            rule="unknown", keys=(str(key),), text=f"{facts.name} {version} has no parameter {key!r}: {hint}."
        )
    is_there = parameter.exists_in(version)
    fault = _fault(parameter, value) if is_there else ("version", _absence(facts, parameter, version))
    return None if fault is None else Violation(rule=fault[0], keys=(parameter.key,), text=fault[1])


def _within(parameter: Parameter, value: float) -> bool:
    # Written so that NaN, which compares as false, is refused.
    above = parameter.minimum is None or value >= parameter.minimum
    counts = parameter.maximum is None and (parameter.minimum or 0) >= 1
    below = value <= (MOST if counts else math.inf if parameter.maximum is None else parameter.maximum)
    return above and below


def _absence(facts: Schema, parameter: Parameter, version: str) -> str:
    key = parameter.key
    if parameter.until is not None and release(version) > release(parameter.until):
        doc = parameter.doc.rstrip(".")
        return sentence("libraries", "gone", library=facts.name, version=version, parameter=parameter, doc=doc)
    older = [entry.key for entry in facts.aliases if entry.alias_of == key and not entry.deprecated]
    older = [name for name in older if name in facts.defaults(version)]
    came = "came with" if parameter.since_exact else "is not known before"
    values = {"came": came, "library": facts.name, "version": version, "parameter": parameter}
    return sentence("libraries", "renamed" if older else "not_yet", **values, older="".join(older[:1]))


def _type_text(parameter: Parameter, value: object) -> str:
    expected, kind = parameter.type, type(value).__name__
    if expected == "int" and isinstance(value, float) and value.is_integer() and _within(parameter, value):
        # Short form of a float: 5e8 instead of 500000000.0.
        text = f"{value:g}".replace("e+0", "e").replace("e+", "e")
        remedy = f"write int({text if float(text) == value else repr(value)})"
    elif expected == "float" and isinstance(value, int) and not isinstance(value, bool) and abs(value) < MOST:
        remedy = f"write {float(value)!r}"
    elif expected == "bool":
        remedy = "write True or False"
    elif expected == "str":
        remedy = f"write {_either(parameter.choices)}" if parameter.choices else "write a text"
    else:
        least = "" if parameter.minimum is None else f" of at least {parameter.minimum:g}"
        remedy = f"write a whole number{least}" if expected == "int" else "write a number with a decimal point"
    described = f"{shown(value)} is {_ARTICLE.get(kind, f'a {kind}')}" if value is not None else "None is no value"
    return f"{parameter.key} must be {_ARTICLE[expected]} and {described}: {remedy}."


def _range_text(parameter: Parameter, value: float) -> str:
    low, high = parameter.minimum, parameter.maximum
    if low is not None and high is not None:
        return f"{parameter.key} must be from {low:g} to {high:g}, not {value!r}."
    if low is not None and value < low:
        return f"{parameter.key} must be at least {low:g}, not {shown(value)}."
    return f"{parameter.key} must be at most {MOST:g}, not {shown(value)}."


def _choice_text(parameter: Parameter, value: str) -> str:
    if value in parameter.script_choices:
        return sentence("libraries", "sdk", key=parameter.key, value=value, choices=_either(parameter.choices))
    return f"{parameter.key} must be {_either(parameter.choices)}, not {value!r}."


def _either(choices: tuple[str, ...]) -> str:
    return " or ".join(repr(choice) for choice in choices)


def _sentence(facts: Schema, rule: Rule, effective: Mapping[str, Any]) -> str:
    values = ", ".join(f"{key}={effective.get(key)!r}" for key in rule.keys)
    elsewhere = [version for version in versions(facts.library) if not rule.applies_to(version)]
    # Only a newer version is a remedy: rules end because the library gains a feature.
    remedy = f"{rule.fix}, or use {facts.name} {elsewhere[0]}, which allows it" if elsewhere else rule.fix
    return f"{rule.what} ({values}): {remedy}."


_OFF = ("none", "false", "0", "no", "off")
_ON = ("true", "1", "yes", "on", "each")


def fields_from(
    parameters: Mapping[str, Any],
    hyperparameters: Mapping[str, Any],
    *,
    version: str,
    library: str,
    plan_fields: frozenset[str],
) -> dict[str, Any]:
    for violation in violations(parameters, version=version, library=library):
        raise PlanError(violation.text)
    facts = schema(library)
    values: dict[str, Any] = {}
    for key, value in ((key, value) for key, value in parameters.items() if value is not None):
        parameter = facts.parameter(key)
        name = parameter.alias_of if parameter is not None and parameter.alias_of else key
        if name in plan_fields:
            # Two names of one parameter have equal values, or only one of them is on.
            values[name] = value if name == key else values.get(name, False) or value
        elif value != facts.defaults(version)[key]:
            raise PlanError(sentence("libraries", "not_in_a_plan", key=key, value=value))
    # The precision of the script by its name, or by the flags of AWS's scripts.
    flagged = next((name for name in ("bf16", "fp16") if str(hyperparameters.get(name)).lower() in _ON), None)
    precision = hyperparameters.get("precision", flagged)
    for setting in facts.settings:
        used = next((name for name in (setting.key, *setting.aliases) if name in hyperparameters), None)
        if used is not None:
            values[setting.key] = _setting(setting, hyperparameters[used])
    if precision is not None:  # SMP v1's plans have parameters for it instead
        values["precision"] = precision
    return values


def _setting(setting: Parameter, value: Any) -> Any:
    """Return a script's setting as a plan stores it. Flags may be 1 and 0 or texts, and "none" is none."""
    text = str(value).lower()
    if setting.key == "activation_checkpointing":
        # AWS's scripts have a flag here, which checkpoints each layer.
        return False if text in _OFF else "each" if text in _ON else value
    if setting.type == "bool" and text in (*_OFF, *_ON):
        return text in _ON
    return digits_as_number(value) if setting.type == "int" else value


def check_against(plan: Plan, cluster: Cluster, model: Model | None = None, job: Job | None = None) -> None:
    """Raise `PlanError` with the first of the `mismatches`, if there is one."""
    for mismatch in mismatches(plan, cluster, model, job):
        raise PlanError(mismatch)


def mismatches(plan: Plan, cluster: Cluster, model: Model | None = None, job: Job | None = None) -> Iterator[str]:
    try:
        replicas = groups.reduced_data_parallel_degree(plan, cluster)
    except PlanError as error:
        yield str(error)
        return
    if plan.precision == "bf16" and not cluster.instance.bf16:
        yield sentence("libraries", "no_bf16", machine=cluster.instance)
    yield from _container(plan, cluster)
    record = get_library(plan.library)
    if not plan.ddp and replicas > 1:
        yield sentence("libraries", "no_replicas", switch=record.replication, cluster=cluster, replicas=replicas)
    yield from record.cluster_mismatches(plan, cluster, replicas)
    if model is not None:
        yield from _divided(plan, model)
        yield from record.model_mismatches(plan, model, job)
    if job is not None:
        yield from _job(plan, cluster, job)


def _container(plan: Plan, cluster: Cluster) -> Iterator[str]:
    """Yield the container of the library version, which must have code for the GPU."""
    machine, chosen = cluster.instance, image(plan.library, plan.version)
    if chosen.drives(machine):
        return
    usable = driving_versions(plan.library, machine)
    remedy = f"set version to {default_of(plan.library, usable)}" if usable else "choose another instance"
    values = {"machine": machine, "architecture": architecture_name(machine), "remedy": remedy}
    yield sentence("libraries", "no_code", container=chosen.title, **values)


def _divided(plan: Plan, model: Model) -> Iterator[str]:
    """Yield the sizes of the model that the tensor and pipeline parallel degrees must divide."""
    shape, degree = model.shape, plan.tensor_parallel_degree
    sizes = {"attention heads": shape.heads, "hidden size": shape.hidden, "feed-forward size": shape.ffn}
    for name, size in sizes.items():
        if size % degree:
            near = groups.nearest_divisor(size, degree)
            yield sentence("libraries", "undivided", degree=degree, name=name, size=size, near=near)
    if shape.kv_heads % degree and degree % shape.kv_heads:
        near = groups.nearest_divisor(shape.kv_heads, degree)
        yield sentence("libraries", "key_value_heads", degree=degree, size=shape.kv_heads, near=near)
    if plan.pipeline_parallel_degree > model.layer_count:
        yield sentence("libraries", "more_stages_than_blocks", plan=plan, model=model)


def undocumented_settings(library: str, job: Job) -> tuple[str, ...]:
    """Adapters, fp8 products and training settings of a job that a library does not document, as phrases."""
    own = get_library(library)
    return (
        *(("adapters",) if job.adapter is not None and not own.adapters else ()),
        *(("fp8 products",) if job.fp8 and "fp8" not in plan_fields(library) else ()),
        *(f"{name}={value!r}" for name, value in job.training_settings().items() if name not in own.training_settings),
    )


def unscripted_job(library: str, job: Job, model: Model, instance: Instance, *, only: bool = False) -> str:
    """Return why the generated script does not train a job in a library; `only` if it fits in no other one."""
    own = get_library(library)
    if objection := unscripted_optimizer(library, job):
        return objection
    adapter, what = job.adapter, "preferences" if job.training == "dpo" else "adapters"
    if adapter is None and job.training != "dpo":
        return ""
    bits = 16 if adapter is None else adapter.base_bits
    precise = instance.bf16 or not (own.divides_model or bits < 16)
    usual = image(library, version_on(library, default_version(library), instance))
    if own.adapter_bases and not (precise and release(usual.framework_version) >= TRL_SINCE):
        return sentence("libraries", "tuning_by_trl", what=what)
    entry = transformers_families().get(model.family)
    if own.adapter_bases and ((entry is not None and entry.task != "causal") or model.head.kind == "classification"):
        return sentence("libraries", "tuning_of_language_models", what=what, model=model)
    if own.adapter_bases and adapter is not None and (remedy := adapter.instead(model)):
        return sentence("libraries", "unadapted_family", model=model, remedy=remedy)
    if bits in own.adapter_bases:
        return loaded_entirely(library, job, model, instance)
    able = [] if only else [record for record in libraries() if bits in record.adapter_bases]
    names = " or ".join(repr(record.name) for record in able)
    limit = "" if any(record.divides_model for record in able) else " if a replica fits on one GPU"
    remedies = [*([f"use library={names}{limit}"] if able else []), "pass script= with your own script"]
    if own.adapter_bases:
        reason = f"does not shard a base of {bits} bits, whose values bitsandbytes packs"
        remedies.insert(1, "set base_bits=16")
    else:
        titles = " or ".join(record.title for record in libraries() if record.adapter_bases)
        reason = f"trains {what} with {titles}, as AWS's examples with PEFT do, and not with {own.title}"
    *earlier, last = remedies
    return f"The generated script {reason}: {', '.join((*earlier, f'or {last}' if earlier else last))}."


def unscripted_optimizer(library: str, job: Job, version: str = "") -> str:
    """Return why the generated script does not train with a job's optimizer; empty if it does."""
    own, name = get_library(library), f"{'paged ' * job.paged_optimizer}{job.optimizer}"
    if job.optimizer not in own.optimizers or job.paged_optimizer:
        return sentence("libraries", "unscripted_optimizer", known=", ".join(own.optimizers), library=own, name=name)
    if version and name.endswith("bit") and release(image(library, version).framework_version) < TRL_SINCE:
        return sentence("libraries", "optimizer_since", name=name)
    return ""


def loaded_entirely(library: str, job: Job, model: Model, instance: Instance) -> str:
    """Return why the generated script cannot load a quantized base, of which each GPU has all before it is sharded."""
    adapter, own = job.adapter, get_library(library)
    if adapter is None or not adapter.quantized or not own.divides_model or adapter.base_bits not in own.adapter_bases:
        return ""
    loaded_gib, usable_gib = adapter.base_bytes(model) / 2**30, instance.usable_gpu_memory_gib
    values = {"loaded": loaded_gib, "usable": usable_gib}
    return sentence("libraries", "loaded_entirely", **values) if loaded_gib > usable_gib else ""


def unsupported_settings(library: str, job: Job) -> Iterator[str]:
    """Yield a sentence for each training setting of a job that a library does not support."""
    own = get_library(library)
    for name, value in job.training_settings().items():
        if name not in own.training_settings:
            titles = " or ".join(record.title for record in libraries() if name in record.training_settings)
            yield f"{own.title} does not train with {name}={value!r}: leave it out of the job, or use {titles}."


def _job(plan: Plan, cluster: Cluster, job: Job) -> Iterator[str]:
    yield from unsupported_settings(plan.library, job)
    if job.optimizer_step == "backward" and plan.gradient_accumulation_steps > 1:
        yield sentence("libraries", "accumulates_in_the_backward_pass", plan=plan)
    if job.precision != plan.precision:
        remedy = plan.precision_remedy(job.precision)
        yield sentence("libraries", "other_precision", job=job, plan=plan, remedy=remedy)
    if job.fp8 != plan.fp8:
        has, lacks = ("plan", "job") if plan.fp8 else ("job", "plan")
        yield sentence("libraries", "fp8_in_one", has=has, lacks=lacks)
    batch = groups.global_batch_size(plan, cluster)
    if job.global_batch_size is not None and batch != job.global_batch_size:
        copies = groups.replicas(plan, cluster) * plan.gradient_accumulation_steps
        share, remainder = divmod(job.global_batch_size, copies)
        near = copies * max(1, round(job.global_batch_size / copies))
        remedy = f"request a multiple of {copies}, for example {near}"
        if share and not remainder:
            remedy = f"set batch_size to {share}"
        yield sentence("libraries", "other_batch", batch=batch, plan=plan, copies=copies, job=job, remedy=remedy)
