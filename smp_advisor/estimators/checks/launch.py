"""EST503, EST506, EST507, EST511 and EST512: launcher, container, monitoring, terms and adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.cluster.containers import containers_of
from smp_advisor.cluster.table import instance as known_instance
from smp_advisor.cluster.table import not_covered
from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.cases import SDK_2, SDK_3, Case, Change, Hit
from smp_advisor.estimators.terms import (
    is_version,
    known_pairs,
    library_version,
    span_of_term,
    terms_of,
    version_of_older_pair,
)
from smp_advisor.job_rules import Fault, job_faults
from smp_advisor.libraries.schema import schema
from smp_advisor.libraries.version import nearest_supported, release, require_supported_instance

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEGREES = ("tensor_parallel_degree", "expert_parallel_degree")


def adapter(case: Case) -> Iterator[Hit]:
    """EST512: AWS's training adapter trains adapters on the model of transformers only."""
    configuration = case.configuration
    if configuration.form != "recipe" or "adapter" not in configuration.settings:
        return
    replaced = configuration.settings.get("replaces_model")
    if replaced is not None and replaced.value is True:
        changes = () if replaced.table is None else (Change(replaced.table, replaced.key, value=False),)
        yield Hit(id="EST512", span=replaced.span, variant="model", changes=changes)
    for name in _DEGREES:
        degree = case.parameter(name)
        if degree is not None and degree > 1:
            setting = configuration.parameters[name]
            values = {"key": setting.key, "degree": degree}
            yield Hit(id="EST512", span=setting.span, variant="degree", values=values, changes=case.change(name, 1))


_LOCAL = ("local", "local_gpu")


def image(case: Case) -> Iterator[Hit]:
    """EST506: versions without an image, and instances that the library cannot use."""
    if not case.of_sagemaker:
        return
    yield from _versions(case)
    yield from _library_instance(case)


def _versions(case: Case) -> Iterator[Hit]:
    configuration = case.configuration
    library, name = case.library, schema(case.library).name
    framework, python = configuration.get("framework_version"), configuration.get("py_version")
    if configuration.framework == "huggingface" and case.smp_launcher == "torchrun" and configuration.form == SDK_2:
        yield _container_hit(
            case,
            ("transformers_version", "framework_version"),
            "HuggingFace estimator",
            {},
        )
        return
    tensorflow_compiler = not case.smp_launcher and configuration.framework == "tensorflow"
    if not isinstance(framework, str) or tensorflow_compiler or "tensorflow_version" in configuration.settings:
        return
    python_version = python if isinstance(python, str) else None
    call = configuration.tables.get("estimator")
    if (
        python_version is None
        and configuration.form == SDK_2
        and call is not None
        and "image_uri" not in configuration.settings
    ):
        if configuration.unknown("py_version"):
            return
        pair = _nearest_pair(library, framework)
        yield _container_hit(
            case,
            ("framework_version",),
            "no py_version",
            {"framework": framework, "python": pair[1]},
            (Change(call, "py_version", pair[1]),),
        )
        return
    if _has_image(library, framework, python_version, short=case.smp_launcher != "torchrun"):
        return
    pair = _nearest_pair(library, framework)
    shown = f"framework version {framework}" + (f" and {python_version}" if python_version else "")
    changes = case.setting_change("framework_version", pair[0]) + case.setting_change("py_version", pair[1])
    if configuration.settings["framework_version"].key == "image_uri" or configuration.framework == "huggingface":
        changes = ()
    yield _container_hit(
        case,
        ("framework_version", "py_version", "image_uri"),
        "no image",
        {"library": name, "versions": shown, "framework": pair[0], "python": pair[1]},
        changes,
    )


def _has_image(library: str, framework: str, python: str | None, *, short: bool) -> bool:
    """Whether the pair is in AWS's tables. Short versions count if the SDK resolves them."""
    if not is_version(framework) or (framework.count(".") == 1 and not short):
        return False
    if library_version(library, framework, python) is not None:
        return True
    return version_of_older_pair(library, framework, python) is not None


def _nearest_pair(library: str, framework: str) -> tuple[str, str]:
    """Image with the nearest framework version; the newer one of two."""
    pairs = known_pairs(library)
    if not is_version(framework):
        return pairs[-1]

    def distance(pair: tuple[str, str]) -> tuple[int, int, int]:
        target, there = (*release(framework), 0, 0)[:3], (*release(pair[0]), 0, 0)[:3]
        gaps = [abs(first - second) for first, second in zip(target, there, strict=True)]
        return gaps[0], gaps[1], gaps[2]

    best = min(distance(pair) for pair in pairs)
    return [pair for pair in pairs if distance(pair) == best][-1]


def _library_instance(case: Case) -> Iterator[Hit]:
    kind = case.configuration.get("instance_type")
    if not isinstance(kind, str) or kind in _LOCAL or not_covered(kind):
        return
    try:
        machine = known_instance(kind)
    except AdvisorError as error:
        # Hardware that is not in the table may exist; a misspelled type does not.
        hint = str(error).partition(": ")[2].partition(";")[0]
        yield _container_hit(case, ("instance_type",), "unknown instance", {"instance": kind, "hint": hint})
        return
    try:
        require_supported_instance(case.library, machine)
    except AdvisorError as error:
        problem, _, _ = str(error).rstrip(".").partition("; ")
        near = nearest_supported(case.library, machine)
        yield _container_hit(
            case,
            ("instance_type",),
            "instance",
            {"problem": problem, "nearest": near.name, "gpus": f"{near.gpus} x {near.gpu_label}"},
            case.setting_change("instance_type", near.name) if case.configuration.form != "recipe" else (),
        )


def _container_hit(
    case: Case, names: tuple[str, ...], variant: str, values: dict[str, str], changes: tuple[Change, ...] = ()
) -> Hit:
    return Hit(id="EST506", span=case.span_of(*names), variant=variant, values=values, changes=changes)


_HARDWARE = {"instance_type": "instance type", "container": "container"}
"""Terms of EST506, and its variants."""
_PLACES = {
    "instance_type": ("instance_type",),
    "container": ("framework_version", "image_uri", "instance_type"),
    "launched": ("instance_type",),
}
"""Settings in the text for a term."""


def hardware(case: Case) -> Iterator[Hit]:
    """EST506: an instance that does not exist, and a container that cannot use the instance."""
    for fault in job_faults(terms_of(case.configuration)):
        if fault.setting not in _HARDWARE or (case.of_sagemaker and fault.setting == "instance_type"):
            continue  # the check of the library reports it with the nearest instance that the library supports
        yield _term_hit(case, fault, "EST506", _HARDWARE[fault.setting], _term_changes(case, fault))
    yield from _only_in_version_3(case)


def _only_in_version_3(case: Case) -> Iterator[Hit]:
    """An estimator of version 2 with a container that only version 3 of the SDK has."""
    job = terms_of(case.configuration)
    if case.configuration.form != SDK_2 or "image_uri" in case.configuration.settings or job.container is None:
        return
    if job.container.sdk_2 is None and job.launched:
        newest = [row for row in containers_of(job.container.repository) if row.sdk_2 is not None][-1]
        values = {
            "framework": f"{job.container.title} with torchrun",
            "remedy": f"Use framework version {newest.framework_version} with {newest.py_version}, or version 3 of the"
            " SDK",
        }
        yield Hit(id="EST506", span=case.span_of("framework_version"), variant="version 3 only", values=values)


def terms(case: Case) -> Iterator[Hit]:
    """EST511: terms that SageMaker refuses, or that do not fit together."""
    for fault in job_faults(terms_of(case.configuration)):
        # The check of the library's launcher reports the missing one of SageMaker's own libraries.
        if fault.setting not in _HARDWARE and not (case.of_sagemaker and fault.setting == "launched"):
            variant = "term" if fault.severity == "error" else "no launcher"
            yield _term_hit(case, fault, "EST511", variant, ())


def _term_hit(case: Case, fault: Fault, check: str, variant: str, changes: tuple[Change, ...]) -> Hit:
    values = {"problem": fault.problem, "remedy": fault.remedy}
    span = span_of_term(case.configuration, fault.setting) or case.span_of(*_PLACES.get(fault.setting, ()))
    return Hit(id=check, span=span, variant=variant, values=values, changes=changes)


def _term_changes(case: Case, fault: Fault) -> tuple[Change, ...]:
    configuration = case.configuration
    versions = configuration.settings.get("framework_version")
    # The version of transformers selects an image of Hugging Face, and a name of an image has several parts.
    if versions is None or versions.key not in ("framework_version", "version") or configuration.framework != "pytorch":
        return ()
    if case.of_sagemaker:
        return ()
    changes = [case.setting_change(name, value) for name, value in fault.changes.items()]
    return tuple(change for group in changes for change in group) if all(changes) else ()


def launcher(case: Case) -> Iterator[Hit]:
    """EST503: MPI starts SMP v1, torchrun starts SMP v2."""
    configuration = case.configuration
    yield from _without_strategy(case)
    if configuration.form == "recipe" or not case.smp_launcher:
        return
    yield from _enabled(case)
    readable = "distribution" in configuration.tables and not configuration.unknown("distribution")
    if configuration.form == SDK_2 or (configuration.form == "parameters" and readable):
        if readable:
            yield from _of_distribution(case)
    elif configuration.form == SDK_3 and not configuration.unknown("distributed"):
        yield from _of_trainer(case)
    elif configuration.form == "request" and not configuration.unknown("hyperparameters"):
        yield from _of_request(case)


def _without_strategy(case: Case) -> Iterator[Hit]:
    """``smdistributed`` contains a strategy, not its options."""
    table = case.configuration.tables.get("smdistributed")
    if table is None or table.open or {"modelparallel", "dataparallel"} & table.entries.keys():
        return
    yield _hit(case, "smdistributed", "no strategy")


def _enabled(case: Case) -> Iterator[Hit]:
    """``enabled`` must be True itself, or the SDK sends no parameters."""
    configuration = case.configuration
    table = configuration.tables.get("modelparallel")
    if table is None or configuration.form not in (SDK_2, "parameters") or configuration.unknown("modelparallel"):
        return
    enabled = configuration.settings.get("modelparallel")
    changes = (Change(table, "enabled", value=True),)
    if "enabled" in table.entries and enabled is not None and enabled.value is not True:
        yield _hit(case, "modelparallel", "enabled is not True", changes, value=repr(enabled.value))
    elif "enabled" not in table.entries and not table.open:
        yield _hit(case, "parameters", "not enabled", changes)


def _of_distribution(case: Case) -> Iterator[Hit]:
    configuration = case.configuration
    distribution = configuration.tables["distribution"]
    if "modelparallel" not in configuration.tables:
        return
    if case.smp_launcher == "torchrun":
        if configuration.get("mpi"):
            yield _hit(case, "mpi", "MPI for v2", (Change(distribution, "mpi", None, "remove"),))
        if not configuration.get("torch_distributed") and not configuration.unknown("torch_distributed"):
            changes = _switch(case, "torch_distributed", {"enabled": True})
            yield _hit(case, "smdistributed", "no torchrun", changes)
        return
    if configuration.get("torch_distributed"):
        changes = (Change(distribution, "torch_distributed", None, "remove"),)
        yield _hit(case, "torch_distributed", "torchrun for v1", changes)
    if not configuration.get("mpi") and not configuration.unknown("mpi"):
        block: dict[str, Any] = {"enabled": True}
        if case.instance is not None:
            block["processes_per_host"] = case.instance.gpus
        entries = " and ".join(f"{key}={value}" for key, value in block.items())
        yield _hit(case, "smdistributed", "no MPI", _switch(case, "mpi", block), mpi=entries)


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
        yield _hit(case, "driver", "Torchrun without source_code")
    if case.smp_launcher == "torchrun" and driver != "Torchrun" and not configuration.get("torch_distributed"):
        if driver is None:
            yield _hit(case, "driver", "v2 without a driver")
        else:
            yield _hit(case, "driver", "v2 with another driver", driver=driver)
    if case.smp_launcher != "mpi":
        return
    if driver == "MPI":
        on_one_node = " on one node" if case.nodes == 1 else ""
        yield _hit(case, "driver", f"v1 with the MPI driver{on_one_node}")
    elif driver == "Torchrun":
        yield _hit(case, "driver", "v1 with Torchrun")
    elif not configuration.get("mpi") and not configuration.unknown("hyperparameters"):
        yield _hit(case, "parameters", "trainer without MPI", _hyperparameters(case, texts=False))


def _of_request(case: Case) -> Iterator[Hit]:
    configuration = case.configuration
    if case.smp_launcher == "torchrun":
        if configuration.get("mpi"):
            yield _hit(case, "mpi", "request with MPI for v2")
        elif not configuration.get("torch_distributed") and not configuration.get("own_entrypoint"):
            changes = _added(case, {"sagemaker_torch_distributed_enabled": "true"})
            yield _hit(case, "parameters", "request without torchrun", changes)
    elif configuration.get("torch_distributed"):
        yield _hit(case, "torch_distributed", "request with torchrun for v1")
    elif not configuration.get("mpi"):
        yield _hit(case, "parameters", "request without MPI", _hyperparameters(case, texts=True))


def _hyperparameters(case: Case, *, texts: bool) -> tuple[Change, ...]:
    entries: dict[str, Any] = {"sagemaker_mpi_enabled": "true" if texts else True}
    if "processes_per_host" not in case.configuration.settings and case.instance is not None:
        gpus = case.instance.gpus
        entries["sagemaker_mpi_num_of_processes_per_host"] = str(gpus) if texts else gpus
    return _added(case, entries)


def _added(case: Case, entries: dict[str, Any]) -> tuple[Change, ...]:
    table = case.configuration.tables.get("hyperparameters")
    return () if table is None else tuple(Change(table, key, value) for key, value in entries.items())


def _hit(case: Case, name: str, variant: str, changes: tuple[Change, ...] = (), **values: object) -> Hit:
    return Hit(id="EST503", span=case.span_of(name), variant=variant, values=values, changes=changes)


def monitoring(case: Case) -> Iterator[Hit]:
    """EST507: Debugger and profiler, which SDK 2 turns on by default."""
    configuration = case.configuration
    if not case.of_sagemaker:
        return
    if configuration.form == SDK_2:
        yield from _of_estimator(case)
    elif configuration.form == "request":
        on = []
        if configuration.get("debugger_hook_config"):
            on.append("Debugger (DebugHookConfig)")
        if configuration.get("disable_profiler") is False:
            on.append("the profiler (ProfilerConfig without DisableProfiler)")
        if on:
            table = configuration.tables["request"]
            changes: tuple[Change, ...] = ()
            if "DebugHookConfig" in table.entries:
                changes += (Change(table, "DebugHookConfig", None, "remove"),)
            if configuration.get("disable_profiler") is False:
                changes += (Change(table, "ProfilerConfig", {"DisableProfiler": True}),)
            yield Hit(
                id="EST507",
                span=case.span_of("debugger_hook_config", "disable_profiler"),
                variant="request",
                values={"tools": " and ".join(on)},
                changes=changes,
            )


def _of_estimator(case: Case) -> Iterator[Hit]:
    configuration = case.configuration
    call = configuration.tables["estimator"]
    hook, profiler = configuration.get("debugger_hook_config"), configuration.get("disable_profiler")
    debugs = hook is not False and not configuration.unknown("debugger_hook_config")
    # AWS's samples for SMP v2 keep the default of the profiler; those for SMP v1 and the compiler turn it off.
    set_explicitly = profiler is False or "profiler_config" in call.entries
    profiles = profiler is not True and not configuration.unknown("disable_profiler")
    profiles = profiles and (set_explicitly or debugs or case.smp_launcher != "torchrun")
    if not debugs and not profiles:
        return
    names = [name for name, on in (("Debugger", debugs), ("the profiler", profiles)) if on]
    by_default = hook is None and not set_explicitly
    tools = f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'}"
    changes = [Change(call, "debugger_hook_config", value=False)] if debugs else []
    changes += [Change(call, "disable_profiler", value=True)] if profiles else []
    places = [name for name, on in (("debugger_hook_config", debugs), ("disable_profiler", profiles)) if on]
    written = [name for name in ("debugger_hook_config", "disable_profiler") if name in configuration.settings]
    yield Hit(
        id="EST507",
        span=case.span_of(*places, *written) if written else configuration.span,
        variant="default" if by_default else "on",
        values={"tools": tools[:1].upper() + tools[1:]},
        changes=tuple(changes),
    )
