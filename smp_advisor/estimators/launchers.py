"""The launcher of a job and the library that it starts: ``distribution``, and hyperparameters for the container."""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from smp_advisor.estimators.configuration import Gap, Setting, why_not
from smp_advisor.libraries.library import library_with
from smp_advisor.libraries.schema import schema
from smp_advisor.libraries.version import release
from smp_advisor.reading.data import from_plain, reason
from smp_advisor.reading.values import Constant, Mapping, Value

if TYPE_CHECKING:
    from smp_advisor.estimators.configuration import Configuration

_LAUNCH = {
    "sagemaker_mpi_enabled": "mpi",
    "sagemaker_mpi_num_of_processes_per_host": "processes_per_host",
    "sagemaker_mpi_custom_mpi_options": "custom_mpi_options",
    "sagemaker_torch_distributed_enabled": "torch_distributed",
    "sagemaker_training_compiler_enabled": "compiler",
    "sagemaker_training_compiler_debug_mode": "compiler_debug",
    "sagemaker_pytorch_xla_multi_worker_enabled": "pytorchxla",
    "sagemaker_distributed_dataparallel_enabled": "dataparallel",
}


def read_toolkit_contract(configuration: Configuration) -> None:
    """Move settings that the SDK wrote into the hyperparameters to their place. The others are for the script."""
    for key, name in _LAUNCH.items():
        setting = configuration.hyperparameters.get(key)
        if setting is not None:
            value = decoded(setting.value)
            configuration.settings[name] = Setting(value, setting.span, setting.table, key)
    setting = configuration.hyperparameters.get("mp_parameters")
    if setting is not None and not configuration.parameters:
        _parameters(configuration, setting)
    for key in [key for key in configuration.hyperparameters if key.startswith("sagemaker_") or key == "mp_parameters"]:
        del configuration.hyperparameters[key]


def decoded(value: Any) -> Any:
    """A hyperparameter of a request in the form that the container reads: JSON if it is JSON, else text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _parameters(configuration: Configuration, setting: Setting) -> None:
    value = decoded(setting.value)
    if isinstance(value, str):  # some texts are encoded twice
        value = decoded(value)
    if not isinstance(value, dict):
        configuration.gaps.append(Gap("parameters", "mp_parameters is not a JSON object", setting.span))
        return
    if isinstance(setting.value, dict) and setting.table is not None:
        inner = setting.table.get("mp_parameters")
        if isinstance(inner, Mapping):
            configuration.take_all(inner, configuration.parameters, group="parameters")
            return
    configuration.embedded = setting
    table = from_plain(value)
    if isinstance(table, Mapping):
        configuration.take_all(table, configuration.parameters, group="parameters")
    configuration.parameters = {
        key: Setting(parameter.value, setting.span, parameter.table, key)
        for key, parameter in configuration.parameters.items()
    }


_NEAR = 0.85
"""Similarity of a misspelled name to the correct one."""
_LAUNCHERS = (
    "mpi",
    "torch_distributed",
    "pytorchxla",
    "pytorchddp",
    "parameter_server",
    "multi_worker_mirrored_strategy",
)


def read_distribution(configuration: Configuration, value: Value | None) -> None:
    """Read a ``distribution``."""
    if value is None:
        return
    if not isinstance(value, Mapping):
        configuration.gaps.append(
            Gap("distribution", why_not(value, "it is not a dictionary"), getattr(value, "span", None))
        )
        return
    configuration.tables["distribution"] = value
    if value.open:
        configuration.gaps.append(Gap("distribution", value.open, value.span))
    for launcher in _LAUNCHERS:
        _read_launcher(configuration, value, launcher)
    _read_smdistributed(configuration, value)


def _read_launcher(configuration: Configuration, table: Mapping, launcher: str) -> None:
    inner = table.get(launcher)
    if isinstance(inner, Mapping):
        configuration.tables[launcher] = inner
        configuration.take(inner, "enabled", launcher)
        if launcher == "mpi":
            configuration.take(inner, "processes_per_host")
            configuration.take(inner, "custom_mpi_options")
    elif inner is not None:
        configuration.gaps.append(Gap(launcher, why_not(inner, "it is not a dictionary"), table.entries[launcher].span))


def _read_smdistributed(configuration: Configuration, table: Mapping) -> None:
    smdistributed = table.get("smdistributed")
    if isinstance(smdistributed, Mapping):
        configuration.tables["smdistributed"] = smdistributed
        span = table.entries["smdistributed"].span
        configuration.settings["smdistributed"] = Setting(value=True, span=span, table=table, key="smdistributed")
        read_model_parallel(configuration, smdistributed)
        data_parallel = smdistributed.get("dataparallel")
        if isinstance(data_parallel, Mapping):
            configuration.take(data_parallel, "enabled", "dataparallel")
    elif smdistributed is not None:
        why = why_not(smdistributed, "it is not a dictionary")
        configuration.gaps.append(Gap("smdistributed", why, table.entries["smdistributed"].span))


def read_model_parallel(configuration: Configuration, table: Mapping) -> None:
    """Read ``modelparallel`` of a table."""
    options = table.get("modelparallel")
    if options is None:
        return
    if not isinstance(options, Mapping):
        why = why_not(options, "it is not a dictionary")
        configuration.gaps.append(Gap("modelparallel", why, table.entries["modelparallel"].span))
        return
    read_options(configuration, options)


def read_options(configuration: Configuration, options: Mapping) -> None:
    """Read ``{"enabled": True, "parameters": {...}}``."""
    configuration.tables["modelparallel"] = options
    configuration.take(options, "enabled", "modelparallel")
    parameters = options.get("parameters")
    if isinstance(parameters, Mapping):
        configuration.take_all(parameters, configuration.parameters, group="parameters")
    elif isinstance(parameters, Constant) and isinstance(parameters.value, str):
        why = f"they are in the file {parameters.value!r}: paste its content"
        configuration.gaps.append(Gap("parameters", why, options.entries["parameters"].span))
    elif parameters is not None:
        why = reason(parameters)
        configuration.gaps.append(Gap("parameters", why, options.entries["parameters"].span))
    elif options.open:
        configuration.gaps.append(Gap("parameters", options.open, options.span))


def version_2_keys() -> frozenset[str]:
    """Parameters that only SMP v2 has."""
    return _keys(launcher="torchrun") - _keys(launcher="mpi", framework="pytorch")


def _keys(**features: str) -> frozenset[str]:
    """Parameters of one version of SageMaker's model parallel library."""
    library = library_with(smdistributed=True, **features)
    return frozenset(parameter.key for parameter in schema(library.name).parameters)


def looks_like_parameters(table: Mapping) -> bool:
    """Whether a dictionary contains library parameters: most keys are those of a version, or similar."""
    names = _keys(launcher="torchrun") | _keys(launcher="mpi", framework="pytorch")
    keys = [key for key in table.entries if isinstance(key, str)]
    meant = [key in names or bool(get_close_matches(key, names, n=1, cutoff=_NEAR)) for key in keys]
    return bool(keys) and 2 * sum(meant) >= len(keys)


def choose_library(configuration: Configuration, framework_version: object, image_library: str | None) -> str | None:
    """The library of the job: by its launcher, then its image, then its parameters."""
    if "compiler" in configuration.settings:
        return library_with(compiles=True).name
    if image_library:
        return image_library
    shown = "modelparallel" in configuration.tables or configuration.parameters or "parameters" in configuration.tables
    if not shown:
        # `read_strategy` finds how the script of such a job divides its model.
        shards = "sharding_strategy" in configuration.hyperparameters and configuration.get("torch_distributed")
        return library_with(of_sagemaker=False, divides_model=True).name if shards else None
    if configuration.framework == "tensorflow":
        return library_with(smdistributed=True, framework="tensorflow").name
    launcher = "torchrun" if _is_version_2(configuration, framework_version) else "mpi"
    return library_with(smdistributed=True, framework="pytorch", launcher=launcher).name


def _is_version_2(configuration: Configuration, framework_version: object) -> bool:
    """Whether a PyTorch job uses SMP v2: by the framework's version, then its launcher, then its parameters."""
    mpi, torchrun = bool(configuration.get("mpi")), bool(configuration.get("torch_distributed"))
    first = framework_version.partition(".")[0] if isinstance(framework_version, str) else ""
    if isinstance(framework_version, str) and first.isdigit():
        # AWS lists 1.15.0 with PyTorch 2.0.0; every other image from 2.0 on is for SMP v2.
        old_keys = _keys(launcher="mpi", framework="pytorch") - _keys(launcher="torchrun")
        exception = mpi and not torchrun and configuration.parameters.keys() & old_keys
        return int(first) >= 2 and not (exception and release_2_0(framework_version))
    return (torchrun and not mpi) or bool(configuration.parameters.keys() & version_2_keys())


def release_2_0(framework_version: str) -> bool:
    """Whether it is PyTorch 2.0, which AWS's table lists for both versions of the library."""
    try:
        return release(framework_version)[:2] == (2, 0)
    except ValueError:
        return False
