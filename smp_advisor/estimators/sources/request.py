"""``CreateTrainingJob`` requests, as boto3 takes them and as ``describe_training_job`` answers."""

from __future__ import annotations

from smp_advisor.estimators.configuration import Configuration, Setting
from smp_advisor.estimators.sources.distribution import choose_library
from smp_advisor.estimators.sources.estimator import read_image
from smp_advisor.estimators.sources.toolkit import decoded, read_toolkit_contract
from smp_advisor.reading.values import Mapping

__all__ = ["configuration_of_request", "looks_like_request"]

_WRAPPED = "CreateTrainingJob"


def looks_like_request(table: Mapping) -> bool:
    """Whether a dictionary is a request, or holds one under ``CreateTrainingJob``."""
    if isinstance(table.get(_WRAPPED), Mapping):
        return True
    return "HyperParameters" in table.entries or {"AlgorithmSpecification", "ResourceConfig"} <= table.entries.keys()


def configuration_of_request(table: Mapping) -> Configuration:
    """What a request says."""
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
    given = request.get("HyperParameters")
    if isinstance(given, Mapping):
        configuration.take_all(given, configuration.hyperparameters, group="hyperparameters")
    named = read_image(configuration)
    read_toolkit_contract(configuration)
    configuration.hyperparameters = {
        key: Setting(decoded(one.value), one.span, one.table, one.key)
        for key, one in configuration.hyperparameters.items()
    }
    _monitoring(configuration, request)
    if configuration.parameters and named is None and "mp_parameters" not in configuration.tables:
        configuration.tables.setdefault("modelparallel", configuration.tables["parameters"])
    configuration.library = choose_library(configuration, configuration.get("framework_version"), named)
    return configuration


def _monitoring(configuration: Configuration, request: Mapping) -> None:
    """Debugger and profiler run where the request configures them: a request has no defaults of the SDK's."""
    hook = request.entries.get("DebugHookConfig")
    configuration.settings["debugger_hook_config"] = Setting(
        hook is not None, None if hook is None else hook.span, request, "DebugHookConfig"
    )
    profiler = request.get("ProfilerConfig")
    off = True
    if isinstance(profiler, Mapping):
        stated = profiler.get("DisableProfiler")
        off = getattr(stated, "value", None) is True
    entry = request.entries.get("ProfilerConfig")
    configuration.settings["disable_profiler"] = Setting(
        off,
        None if entry is None else entry.span,
        profiler if isinstance(profiler, Mapping) else request,
        "DisableProfiler",
    )
