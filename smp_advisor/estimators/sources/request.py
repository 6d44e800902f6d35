"""``CreateTrainingJob`` requests, in the form of boto3 and of the answer of ``describe_training_job``."""

from __future__ import annotations

from smp_advisor.estimators.configuration import Configuration, Setting
from smp_advisor.estimators.sources.distribution import choose_library
from smp_advisor.estimators.sources.estimator import read_image
from smp_advisor.estimators.sources.toolkit import decoded, read_toolkit_contract
from smp_advisor.reading.values import Mapping

__all__ = ["configuration_of_request", "looks_like_request"]

_WRAPPED = "CreateTrainingJob"


def looks_like_request(table: Mapping) -> bool:
    """Whether a dictionary is a request, or contains one under ``CreateTrainingJob``."""
    if isinstance(table.get(_WRAPPED), Mapping):
        return True
    return "HyperParameters" in table.entries or {"AlgorithmSpecification", "ResourceConfig"} <= table.entries.keys()


def configuration_of_request(table: Mapping) -> Configuration:
    """Read a request."""
    inner = table.get(_WRAPPED)
    request = inner if isinstance(inner, Mapping) else table
    configuration = Configuration("request", "The CreateTrainingJob request", request.span)
    configuration.tables["request"] = request
    algorithm, resources = request.get("AlgorithmSpecification"), request.get("ResourceConfig")
    if isinstance(algorithm, Mapping):
        configuration.take(algorithm, "TrainingImage", "image_uri")
        configuration.take(algorithm, "ContainerEntrypoint", "own_entrypoint")
    if isinstance(resources, Mapping):
        configuration.take(resources, "InstanceType", "instance_type")
        configuration.take(resources, "InstanceCount", "instance_count")
    hyperparameters = request.get("HyperParameters")
    if isinstance(hyperparameters, Mapping):
        configuration.take_all(hyperparameters, configuration.hyperparameters, group="hyperparameters")
    image = read_image(configuration)
    read_toolkit_contract(configuration)
    configuration.hyperparameters = {
        key: Setting(decoded(setting.value), setting.span, setting.table, setting.key)
        for key, setting in configuration.hyperparameters.items()
    }
    _monitoring(configuration, request)
    if configuration.parameters and image is None and "mp_parameters" not in configuration.tables:
        configuration.tables.setdefault("modelparallel", configuration.tables["parameters"])
    configuration.library = choose_library(configuration, configuration.get("framework_version"), image)
    return configuration


def _monitoring(configuration: Configuration, request: Mapping) -> None:
    """Debugger and profiler run only if the request configures them, because requests have no SDK defaults."""
    hook = request.entries.get("DebugHookConfig")
    configuration.settings["debugger_hook_config"] = Setting(
        hook is not None, None if hook is None else hook.span, request, "DebugHookConfig"
    )
    profiler = request.get("ProfilerConfig")
    off = True
    if isinstance(profiler, Mapping):
        disabled = profiler.get("DisableProfiler")
        off = getattr(disabled, "value", None) is True
    entry = request.entries.get("ProfilerConfig")
    configuration.settings["disable_profiler"] = Setting(
        off,
        None if entry is None else entry.span,
        profiler if isinstance(profiler, Mapping) else request,
        "DisableProfiler",
    )
