"""EST503, EST506, EST507 and EST511 to EST513: launcher, container, monitoring, terms, adapter and missing files."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.cluster.containers import containers_of
from smp_advisor.cluster.table import instance as known_instance
from smp_advisor.cluster.table import not_covered
from smp_advisor.core.files import table
from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.cases import SDK_2, SDK_3, Case, Change, Hit
from smp_advisor.estimators.terms import (
    LOCAL,
    is_version,
    known_pairs,
    library_version,
    nearest_pair,
    span_of_term,
    terms_of,
    version_of_older_pair,
)
from smp_advisor.estimators.torch_jobs import BESIDE
from smp_advisor.libraries.job_rules import job_faults
from smp_advisor.libraries.schema import schema
from smp_advisor.libraries.version import nearest_supported, require_supported_instance

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.libraries.job_rules import Fault
    from smp_advisor.review.reading.values import Mapping

_FORMS: dict[str, Any] = table("smp_advisor.estimators", "data/forms.toml")

_DEGREES = ("tensor_parallel_degree", "expert_parallel_degree")


def adapter(case: Case) -> Iterator[Hit]:
    """EST512: AWS's training adapter trains adapters on the model of transformers only."""
    configuration = case.configuration
    if configuration.form != "recipe" or "adapter" not in configuration.settings:
        return
    replaced = configuration.settings.get("replaces_model")
    if replaced is not None and replaced.value is True:
        changes = () if replaced.table is None else (Change(replaced.table, replaced.key, value=False),)
        yield case.hit("EST512", "model", "replaces_model", fixes=changes)
    for name in _DEGREES:
        degree = case.parameter(name)
        if degree is not None and degree > 1:
            setting = configuration.parameters[name]
            yield case.hit("EST512", "degree", name, key=setting.key, degree=degree, fixes=case.change(name, 1))


def image(case: Case) -> Iterator[Hit]:
    """EST506: versions without an image, and instances that the library cannot use."""
    if not case.of_sagemaker:
        return
    yield from _versions(case)
    yield from _library_instance(case)


def _versions(case: Case) -> Iterator[Hit]:
    configuration = case.configuration
    library = case.library
    framework, python = configuration.get("framework_version"), configuration.get("py_version")
    if configuration.framework == "huggingface" and case.smp_launcher == "torchrun" and configuration.form == SDK_2:
        yield case.hit("EST506", "HuggingFace estimator", "transformers_version", "framework_version")
        return
    tensorflow_compiler = not case.smp_launcher and configuration.framework == "tensorflow"
    if not isinstance(framework, str) or tensorflow_compiler or "tensorflow_version" in configuration.settings:
        return
    python_version = python if isinstance(python, str) else None
    call = configuration.tables.get("estimator") if "image_uri" not in configuration.settings else None
    if python_version is None and configuration.form == SDK_2 and call is not None:
        if configuration.unknown("py_version"):
            return
        pair = nearest_pair(known_pairs(library), framework)
        fixes: tuple[Change, ...] = (Change(call, "py_version", pair[1]),)
        yield case.hit("EST506", "no py_version", "framework_version", framework=framework, python=pair[1], fixes=fixes)
        return
    # Short versions count if the SDK resolves them.
    resolved = is_version(framework) and (framework.count(".") != 1 or case.smp_launcher != "torchrun")
    readers = (library_version, version_of_older_pair) if resolved else ()
    if any(reader(library, framework, python_version) is not None for reader in readers):
        return
    pair = nearest_pair(known_pairs(library), framework)
    shown = f"framework version {framework}" + (f" and {python_version}" if python_version else "")
    fixes = case.setting_change("framework_version", pair[0]) + case.setting_change("py_version", pair[1])
    if configuration.settings["framework_version"].key == "image_uri" or configuration.framework == "huggingface":
        fixes = ()
    values = {"library": schema(library).name, "versions": shown, "framework": pair[0], "python": pair[1]}
    yield case.hit("EST506", "no image", "framework_version", "py_version", "image_uri", fixes=fixes, **values)


def _library_instance(case: Case) -> Iterator[Hit]:
    kind = case.configuration.get("instance_type")
    if not isinstance(kind, str) or kind in LOCAL or not_covered(kind):
        return
    try:
        machine = known_instance(kind)
    except AdvisorError as error:
        # Hardware that is not in the table may exist; a misspelled type does not.
        hint = str(error).partition(": ")[2].partition(";")[0]
        yield case.hit("EST506", "unknown instance", "instance_type", instance=kind, hint=hint)
        return
    try:
        require_supported_instance(case.library, machine)
    except AdvisorError as error:
        problem, _, _ = str(error).rstrip(".").partition("; ")
        near = nearest_supported(case.library, machine)
        values = {"problem": problem, "nearest": near.name, "gpus": f"{near.gpus} x {near.gpu_label}"}
        fixes = case.setting_change("instance_type", near.name) if case.configuration.form != "recipe" else ()
        yield case.hit("EST506", "instance", "instance_type", fixes=fixes, **values)


_HARDWARE = {"instance_type": "instance type", "container": "container"}
"""Terms of EST506, and its variants."""


def hardware(case: Case) -> Iterator[Hit]:
    """EST506: an instance that does not exist, and a container that cannot use the instance."""
    configuration, job = case.configuration, terms_of(case.configuration)
    for fault in job_faults(job):
        if fault.setting not in _HARDWARE or (case.of_sagemaker and fault.setting == "instance_type"):
            continue  # the check of the library reports it with the nearest instance that the library supports
        settings = configuration.settings
        versions = settings.get("framework_version")
        # The version of transformers selects an image of Hugging Face, and a name of an image has several parts.
        versioned = versions is not None and versions.key in ("framework_version", "version")
        groups = [case.setting_change(name, value) for name, value in fault.changes.items()]
        fixable = versioned and configuration.framework == "pytorch" and not case.of_sagemaker and all(groups)
        fixes = tuple(change for group in groups for change in group) if fixable else ()
        yield _of_fault(case, fault, "EST506", _HARDWARE[fault.setting], fixes)
    # An estimator of version 2 with a container that only version 3 of the SDK has.
    if configuration.form != SDK_2 or "image_uri" in configuration.settings or job.container is None:
        return
    if job.container.sdk_2 is None and job.launched:
        newest = [row for row in containers_of(job.container.repository) if row.sdk_2 is not None][-1]
        remedy = f"Use framework version {newest.framework_version} with {newest.py_version}, or version 3 of the SDK"
        title = f"{job.container.title} with torchrun"
        yield case.hit("EST506", "version 3 only", "framework_version", framework=title, remedy=remedy)


_OF_REMOTE = "Pass use_torchrun=True to @remote"


def terms(case: Case) -> Iterator[Hit]:
    """EST511: terms that SageMaker refuses, or that do not fit together."""
    if (outer := case.configuration.get("starts_twice")) and case.processes != 1:
        yield case.hit("EST511", "twice", "instance_type", outer=outer)
    for fault in job_faults(terms_of(case.configuration)):
        if fault.setting == "launched" and case.configuration.form == "remote":
            yield case.hit("EST511", "no launcher", "instance_type", problem=fault.problem, remedy=_OF_REMOTE)
            continue
        # The check of the library's launcher reports the missing one of SageMaker's own libraries.
        if fault.setting not in _HARDWARE and not (case.of_sagemaker and fault.setting == "launched"):
            variant = "term" if fault.severity == "error" else "no launcher"
            yield _of_fault(case, fault, "EST511", "spot" if fault.setting == "checkpoints" else variant)


def files(case: Case) -> Iterator[Hit]:
    """EST513: files that the job names and that are not there."""
    for gap in case.configuration.missing:
        reference, _, unread = gap.why.partition(": ")
        hit = case.hit("EST513", "next to it" if unread == BESIDE else "", named=reference, unread=unread)
        yield replace(hit, span=gap.span or case.configuration.span)
    if problem := case.configuration.get("no_python"):
        yield case.hit("EST514", "no Python", "entry_point", named=problem)


def _of_fault(case: Case, fault: Fault, check: str, variant: str, fixes: tuple[Change, ...] = ()) -> Hit:
    texts = {"problem": fault.problem, "remedy": fault.remedy}
    hit = case.hit(check, variant, *_FORMS["terms_in"].get(fault.setting, ()), fixes=fixes, **texts)
    return replace(hit, span=span_of_term(case.configuration, fault.setting) or hit.span)


def launcher(case: Case) -> Iterator[Hit]:
    """EST503: MPI starts SMP v1, torchrun starts SMP v2."""
    configuration = case.configuration
    table = configuration.tables.get("smdistributed")
    if table is not None and not table.open and not {"modelparallel", "dataparallel"} & table.entries.keys():
        # ``smdistributed`` contains a strategy, not its options.
        yield case.hit("EST503", "no strategy", "smdistributed")
    if configuration.form == "recipe" or not case.smp_launcher:
        return
    in_dictionary = configuration.form in (SDK_2, "parameters")
    table, enabled = configuration.tables.get("modelparallel"), configuration.settings.get("modelparallel")
    if in_dictionary and table is not None and not configuration.unknown("modelparallel"):
        # ``enabled`` must be True itself, or the SDK sends no parameters.
        changes = (Change(table, "enabled", value=True),)
        if "enabled" in table.entries and enabled is not None and enabled.value is not True:
            shown = repr(enabled.value)
            yield case.hit("EST503", "enabled is not True", "modelparallel", fixes=changes, value=shown)
        elif "enabled" not in table.entries and not table.open:
            yield case.hit("EST503", "not enabled", "parameters", fixes=changes)
    readable = "distribution" in configuration.tables and not configuration.unknown("distribution")
    if in_dictionary and readable and "modelparallel" in configuration.tables:
        yield from _of_distribution(case, configuration.tables["distribution"])
    elif configuration.form == SDK_3 and not configuration.unknown("distributed"):
        yield from _of_trainer(case)
    elif configuration.form == "request" and not configuration.unknown("hyperparameters"):
        yield from _of_request(case)


def _of_distribution(case: Case, distribution: Mapping) -> Iterator[Hit]:
    configuration = case.configuration
    if case.smp_launcher == "torchrun":
        if configuration.get("mpi"):
            yield case.hit("EST503", "MPI for v2", "mpi", fixes=(Change(distribution, "mpi", None, "remove"),))
        if not configuration.get("torch_distributed") and not configuration.unknown("torch_distributed"):
            changes = _switch(case, "torch_distributed", {"enabled": True})
            yield case.hit("EST503", "no torchrun", "smdistributed", fixes=changes)
        return
    if configuration.get("torch_distributed"):
        changes = (Change(distribution, "torch_distributed", None, "remove"),)
        yield case.hit("EST503", "torchrun for v1", "torch_distributed", fixes=changes)
    if not configuration.get("mpi") and not configuration.unknown("mpi"):
        block: dict[str, Any] = {"enabled": True}
        if case.instance is not None:
            block["processes_per_host"] = case.instance.gpus
        entries = " and ".join(f"{key}={value}" for key, value in block.items())
        yield case.hit("EST503", "no MPI", "smdistributed", fixes=_switch(case, "mpi", block), mpi=entries)


def _switch(case: Case, name: str, block: dict[str, Any]) -> tuple[Change, ...]:
    """Turn on a launcher: add its block, or its ``enabled``."""
    configuration = case.configuration
    if name in configuration.tables:
        return (Change(configuration.tables[name], "enabled", value=True),)
    return (Change(configuration.tables["distribution"], name, block),)


def _of_trainer(case: Case) -> Iterator[Hit]:
    configuration = case.configuration
    driver = configuration.get("driver")
    if driver == "Torchrun" and configuration.get("source_code") is False:
        yield case.hit("EST503", "Torchrun without source_code", "driver")
    if case.smp_launcher == "torchrun" and driver != "Torchrun" and not configuration.get("torch_distributed"):
        if driver is None:
            yield case.hit("EST503", "v2 without a driver", "driver")
        else:
            yield case.hit("EST503", "v2 with another driver", "driver", driver=driver)
    if case.smp_launcher != "mpi":
        return
    if driver == "MPI":
        on_one_node = " on one node" if case.nodes == 1 else ""
        yield case.hit("EST503", f"v1 with the MPI driver{on_one_node}", "driver")
    elif driver == "Torchrun":
        yield case.hit("EST503", "v1 with Torchrun", "driver")
    elif not configuration.get("mpi") and not configuration.unknown("hyperparameters"):
        yield case.hit("EST503", "trainer without MPI", "parameters", fixes=_added(case, _mpi(case)))


def _of_request(case: Case) -> Iterator[Hit]:
    configuration = case.configuration
    if case.smp_launcher == "torchrun":
        if configuration.get("mpi"):
            yield case.hit("EST503", "request with MPI for v2", "mpi")
        elif not configuration.get("torch_distributed") and not configuration.get("own_entrypoint"):
            changes = _added(case, {"sagemaker_torch_distributed_enabled": "true"})
            yield case.hit("EST503", "request without torchrun", "parameters", fixes=changes)
    elif configuration.get("torch_distributed"):
        yield case.hit("EST503", "request with torchrun for v1", "torch_distributed")
    elif not configuration.get("mpi"):
        changes = _added(case, {name: json.dumps(value) for name, value in _mpi(case).items()})
        yield case.hit("EST503", "request without MPI", "parameters", fixes=changes)


def _mpi(case: Case) -> dict[str, Any]:
    entries: dict[str, Any] = {"sagemaker_mpi_enabled": True}
    if "processes_per_host" not in case.configuration.settings and case.instance is not None:
        entries["sagemaker_mpi_num_of_processes_per_host"] = case.instance.gpus
    return entries


def _added(case: Case, entries: dict[str, Any]) -> tuple[Change, ...]:
    table = case.configuration.tables.get("hyperparameters")
    return () if table is None else tuple(Change(table, key, value) for key, value in entries.items())


def monitoring(case: Case) -> Iterator[Hit]:
    """EST507: Debugger and profiler, which SDK 2 turns on by default."""
    configuration = case.configuration
    names = ("debugger_hook_config", "disable_profiler")
    hook, profiler = configuration.get(names[0]), configuration.get(names[1])
    if not case.of_sagemaker or configuration.form != SDK_2:
        return
    call = configuration.tables["estimator"]
    debugs = hook is not False and not configuration.unknown("debugger_hook_config")
    # AWS's samples for SMP v2 keep the default of the profiler; those for SMP v1 and the compiler turn it off.
    set_explicitly = profiler is False or "profiler_config" in call.entries
    profiles = profiler is not True and not configuration.unknown("disable_profiler")
    profiles = profiles and (set_explicitly or debugs or case.smp_launcher != "torchrun")
    if not debugs and not profiles:
        return
    on = [name for name, is_on in (("Debugger", debugs), ("the profiler", profiles)) if is_on]
    tools = f"{' and '.join(on)} {'are' if len(on) > 1 else 'is'}"
    changes = [Change(call, "debugger_hook_config", value=False)] if debugs else []
    changes += [Change(call, "disable_profiler", value=True)] if profiles else []
    written = [name for name in names if name in configuration.settings]
    places = [name for name, is_on in zip(names, (debugs, profiles), strict=True) if is_on] + written
    yield case.hit(
        "EST507",
        "default" if hook is None and not set_explicitly else "on",
        *(places if written else ()),
        tools=tools[:1].upper() + tools[1:],
        fixes=tuple(changes),
    )
