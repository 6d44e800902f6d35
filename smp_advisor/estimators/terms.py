"""Terms of a job, which do not depend on its library, from the tables of its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.estimators.images import container_of
from smp_advisor.job_rules import JobTerms
from smp_advisor.reading.values import Collection, Constant, Mapping, Result

if TYPE_CHECKING:
    from smp_advisor.estimators.configuration import Configuration
    from smp_advisor.reading.source import Span
    from smp_advisor.reading.values import Value

__all__ = ["span_of_term", "terms_of"]

_WRITTEN = {
    "spot": (
        "use_spot_instances",
        "train_use_spot_instances",
        "enable_managed_spot_training",
        "EnableManagedSpotTraining",
    ),
    "max_run_seconds": ("max_run", "train_max_run", "max_runtime_in_seconds", "MaxRuntimeInSeconds"),
    "max_wait_seconds": ("max_wait", "train_max_wait", "max_wait_time_in_seconds", "MaxWaitTimeInSeconds"),
    "keep_alive_seconds": ("keep_alive_period_in_seconds", "KeepAlivePeriodInSeconds"),
    "file_system": ("InputDataConfig",),
}
"""Names of a term in estimators, trainers and requests."""

_LAUNCHERS = ("mpi", "torch_distributed", "pytorchxla", "pytorchddp", "dataparallel", "parameter_server", "driver")


def terms_of(configuration: Configuration) -> JobTerms:
    """Terms of a job; those that the text does not determine are None."""
    readers = {"estimator": _of_estimator, "model trainer": _of_trainer, "request": _of_request}
    reader = readers.get(configuration.form)
    kind, count = configuration.get("instance_type"), configuration.get("instance_count", 1)
    file_system = bool(configuration.get("file_system"))
    return JobTerms(
        instance_type=kind if isinstance(kind, str) else None,
        instance_count=count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else None,
        container=container_of(
            configuration.framework,
            configuration.get("framework_version"),
            configuration.get("transformers_version"),
            configuration.library,
        ),
        **{"file_system": file_system} | (reader(configuration) if reader is not None else {}),
    )


def span_of_term(configuration: Configuration, term: str) -> Span | None:
    """Place of a term in the text; None if it is not written."""
    if term in configuration.settings:
        return configuration.settings[term].span
    home = configuration.tables.get("estimator") or configuration.tables.get("request")
    if home is None:
        return None
    inner = (_arguments(home, name) or _table(home, name) for name in home.entries if isinstance(name, str))
    for table in (home, *inner):
        for name in _WRITTEN.get(term, ()):
            if table is not None and name in table.entries:
                return table.entries[name].span
    return None


def _of_estimator(configuration: Configuration) -> dict[str, Any]:
    call = configuration.tables["estimator"]
    spot = _constant(_entry(call, "use_spot_instances", "train_use_spot_instances"))
    return {
        "spot": spot if isinstance(spot, bool) else None if call.open else spot is not None,
        "max_run_seconds": _seconds(_entry(call, "max_run", "train_max_run")),
        "max_wait_seconds": _seconds(_entry(call, "max_wait", "train_max_wait")),
        "waits": _present(call, "max_wait", "train_max_wait"),
        "checkpoints": _present(call, "checkpoint_s3_uri"),
        "keep_alive_seconds": _seconds(_entry(call, "keep_alive_period_in_seconds")),
        "network": _present(call, "subnets"),
        "launched": _launched_by_estimator(configuration, call),
    }


def _launched_by_estimator(configuration: Configuration, call: Mapping) -> bool | None:
    if any(configuration.get(name) for name in _LAUNCHERS):
        return True
    entry = configuration.get("entry_point")
    unread = call.open or configuration.unknown("distribution", "distributions", *_LAUNCHERS)
    if {"deepspeed", "deepspeed_config"} & configuration.hyperparameters.keys():
        return None  # DeepSpeed has a launcher of its own
    # A shell script may start processes, TensorFlow uses all GPUs in one process, and an image may have a launcher.
    if unread or "image_uri" in configuration.settings or not isinstance(entry, str) or not entry.endswith(".py"):
        return None
    plain = configuration.framework in ("pytorch", "huggingface") and "tensorflow_version" not in configuration.settings
    return False if plain and not configuration.get("compiler") else None


def _of_trainer(configuration: Configuration) -> dict[str, Any]:
    call = configuration.tables["estimator"]
    compute, stopping = _arguments(call, "compute"), _arguments(call, "stopping_condition")
    spot = _constant(_entry(compute, "enable_managed_spot_training"))
    networking = _arguments(call, "networking")
    return {
        "spot": spot if isinstance(spot, bool) else False if compute is not None and not compute.open else None,
        "max_run_seconds": _seconds(_entry(stopping, "max_runtime_in_seconds")),
        "max_wait_seconds": _seconds(_entry(stopping, "max_wait_time_in_seconds")),
        "waits": _present(stopping, "max_wait_time_in_seconds") if stopping else _present(call, "stopping_condition"),
        "checkpoints": _present(call, "checkpoint_config"),
        "keep_alive_seconds": _seconds(_entry(compute, "keep_alive_period_in_seconds")),
        "network": _present(networking, "subnets") if networking is not None else _present(call, "networking"),
        "launched": True if configuration.get("driver") else None,
    }


def _of_request(configuration: Configuration) -> dict[str, Any]:
    request = configuration.tables["request"]
    stopping, resources = _table(request, "StoppingCondition"), _table(request, "ResourceConfig")
    spot = _constant(_entry(request, "EnableManagedSpotTraining"))
    return (
        {
            "spot": spot is True,
            "max_run_seconds": _seconds(_entry(stopping, "MaxRuntimeInSeconds")),
            "max_wait_seconds": _seconds(_entry(stopping, "MaxWaitTimeInSeconds")),
            "waits": _present(stopping, "MaxWaitTimeInSeconds") if stopping is not None else None,
            "checkpoints": _present(request, "CheckpointConfig"),
            "keep_alive_seconds": _seconds(_entry(resources, "KeepAlivePeriodInSeconds")),
            "network": _present(request, "VpcConfig"),
            "file_system": _reads_file_system(request.get("InputDataConfig")),
        }
        if "AlgorithmSpecification" in request.entries
        else {}
    )


def _reads_file_system(channels: Value | None) -> bool | None:
    if not isinstance(channels, Collection):
        return False
    sources = [_table(channel, "DataSource") for channel in channels.items if isinstance(channel, Mapping)]
    return any(source is not None and "FileSystemDataSource" in source.entries for source in sources)


def _present(table: Mapping | None, *names: str) -> bool | None:
    """Whether an entry is set to something else than None; None if unknown."""
    if table is None:
        return None
    for name in names:
        if name in table.entries:
            value = table.entries[name].value
            return not (isinstance(value, Constant) and value.value is None)
    return None if table.open else False


def _entry(table: Mapping | None, *names: str) -> Value | None:
    return next((table.entries[name].value for name in names if name in table.entries), None) if table else None


def _table(table: Mapping, name: str) -> Mapping | None:
    inner = table.get(name)
    return inner if isinstance(inner, Mapping) else None


def _arguments(call: Mapping, name: str) -> Mapping | None:
    value = call.get(name)
    return value.call.passed if isinstance(value, Result) else None


def _constant(value: Value | None) -> object:
    return value.value if isinstance(value, Constant) else None


def _seconds(value: Value | None) -> int | None:
    number = _constant(value)
    return number if isinstance(number, int) and not isinstance(number, bool) else None
