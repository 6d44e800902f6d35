"""The launcher of a job and the library that it starts: ``distribution``, and hyperparameters for the container."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import json_values, table
from smp_advisor.estimators.configuration import Gap, constant, inner_table, why_not
from smp_advisor.libraries.library import library_with
from smp_advisor.libraries.schema import schema
from smp_advisor.review.reading.data import from_plain, reason
from smp_advisor.review.reading.values import Mapping, Value, is_none

if TYPE_CHECKING:
    from smp_advisor.estimators.configuration import Configuration, Setting

_FORMS: dict[str, Any] = table("smp_advisor.estimators", "data/forms.toml")


def read_toolkit_contract(configuration: Configuration) -> None:
    """Move settings that the SDK wrote into the hyperparameters to their place. The others are for the script."""
    for key, name in _FORMS["toolkit"].items():
        setting = configuration.hyperparameters.get(key)
        if setting is not None:
            configuration.settings[name] = replace(setting, value=decoded(setting.value), key=key)
    setting = configuration.hyperparameters.get("mp_parameters")
    if setting is not None and not configuration.parameters:
        _parameters(configuration, setting)
    for key in [key for key in configuration.hyperparameters if key.startswith("sagemaker_") or key == "mp_parameters"]:
        del configuration.hyperparameters[key]


def decoded(value: Any) -> Any:
    """Return a hyperparameter of a request in the form that the container reads: JSON if it is JSON, else text."""
    if not isinstance(value, str):
        return value
    try:
        return json_values(value)
    except ValueError:
        return value


def _parameters(configuration: Configuration, setting: Setting) -> None:
    value = decoded(setting.value)
    if isinstance(value, str):  # some texts are encoded twice
        value = decoded(value)
    if not isinstance(value, dict):
        configuration.gaps.append(Gap("parameters", "mp_parameters is not a JSON object", setting.span))
        return
    inner = inner_table(setting.table, "mp_parameters")
    if isinstance(setting.value, dict) and inner is not None:
        configuration.take_all(inner, configuration.parameters, group="parameters")
        return
    table = from_plain(value)
    if isinstance(table, Mapping):
        table.span = setting.span
        configuration.take_all(table, configuration.parameters, group="parameters")
    configuration.parameters = {
        key: replace(parameter, span=setting.span) for key, parameter in configuration.parameters.items()
    }


_NEAR = 0.85
"""Similarity of a misspelled name to the correct one."""


def read_distribution(configuration: Configuration, value: Value | None) -> None:
    if value is None or is_none(value):
        return
    if not isinstance(value, Mapping):
        why, span = why_not(value, "it is not a dictionary"), getattr(value, "span", None)
        configuration.gaps.append(Gap("distribution", why, span))
        return
    configuration.tables["distribution"] = value
    if value.open:
        configuration.gaps.append(Gap("distribution", value.open, value.span))
    for launcher in _FORMS["launchers"]:
        if (inner := configuration.inner(value, launcher)) is not None:
            configuration.tables[launcher] = inner
            configuration.take(inner, "enabled", launcher)
            if launcher == "mpi":
                configuration.take(inner, "processes_per_host")
                configuration.take(inner, "custom_mpi_options")
    if (smdistributed := configuration.inner(value, "smdistributed")) is not None:
        configuration.tables["smdistributed"] = smdistributed
        configuration.put("smdistributed", True, value, "smdistributed")  # noqa: FBT003 - a value
        read_options(configuration, configuration.inner(smdistributed, "modelparallel"))
        if (data_parallel := inner_table(smdistributed, "dataparallel")) is not None:
            configuration.take(data_parallel, "enabled", "dataparallel")


def read_options(configuration: Configuration, options: Mapping | None) -> None:
    if options is None:
        return
    configuration.tables["modelparallel"] = options
    configuration.take(options, "enabled", "modelparallel")
    parameters = options.get("parameters")
    if isinstance(parameters, Mapping):
        configuration.take_all(parameters, configuration.parameters, group="parameters")
    elif parameters is not None:
        file = constant(options, "parameters")
        why = f"they are in the file {file!r}: paste its content" if isinstance(file, str) else reason(parameters)
        configuration.gaps.append(Gap("parameters", why, options.entries["parameters"].span))
    elif options.open:
        configuration.gaps.append(Gap("parameters", options.open, options.span))


def _has_keys_of(configuration: Configuration, launcher: str) -> bool:
    """Return whether the job has parameters that only the PyTorch version of the library with this launcher has."""
    opposite = "mpi" if launcher == "torchrun" else "torchrun"
    keys = _keys(launcher=launcher, framework="pytorch") - _keys(launcher=opposite, framework="pytorch")
    return bool(keys & configuration.parameters.keys())


def _keys(**features: str) -> frozenset[str]:
    library = library_with(smdistributed=True, **features)
    return frozenset(parameter.key for parameter in schema(library.name).parameters)


def looks_like_parameters(table: Mapping) -> bool:
    """Return whether a dictionary contains library parameters: most keys are those of a version, or similar."""
    names = _keys(launcher="torchrun") | _keys(launcher="mpi", framework="pytorch")
    keys = [key for key in table.entries if isinstance(key, str)]
    meant = [key in names or bool(get_close_matches(key, names, n=1, cutoff=_NEAR)) for key in keys]
    return bool(keys) and 2 * sum(meant) >= len(keys)


def choose_library(configuration: Configuration, framework_version: object, image_library: str | None) -> str | None:
    """Return the library of the job: by its launcher, then its image, then its parameters."""
    if "compiler" in configuration.settings:
        return library_with(compiles=True).name
    launched = any(configuration.get(name) for name in ("mpi", "torch_distributed", "modelparallel"))
    started = str(configuration.get("entry_point"))
    unread = started.endswith(".sh") or (configuration.get("source_code") and not started.endswith(".py"))
    if unread and not launched and not configuration.parameters:
        return None  # an image may also run what does not train, such as a conversion
    if image_library:
        return image_library
    shown = "modelparallel" in configuration.tables or configuration.parameters or "parameters" in configuration.tables
    if not shown:
        # `read_strategy` finds how the script of such a job divides its model.
        shards = "sharding_strategy" in configuration.hyperparameters and configuration.get("torch_distributed")
        return library_with(of_sagemaker=False, divides_model=True).name if shards else None
    if configuration.framework == "tensorflow":
        return library_with(smdistributed=True, framework="tensorflow").name
    mpi, torchrun = bool(configuration.get("mpi")), bool(configuration.get("torch_distributed"))
    first, _, later = framework_version.partition(".") if isinstance(framework_version, str) else ("", "", "")
    second = (torchrun and not mpi) or _has_keys_of(configuration, "torchrun")
    if first.isdigit():
        # AWS lists 1.15.0 with PyTorch 2.0.0; every other image from 2.0 on is for SMP v2.
        exception = mpi and not torchrun and (int(first), later.partition(".")[0]) == (2, "0")
        second = int(first) >= 2 and not (exception and _has_keys_of(configuration, "mpi"))
    launcher = "torchrun" if second else "mpi"
    return library_with(smdistributed=True, framework="pytorch", launcher=launcher).name
