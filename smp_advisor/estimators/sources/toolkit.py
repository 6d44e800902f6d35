"""Hyperparameters by which the SDK tells containers how to launch a job: ``sagemaker_*``, ``mp_parameters``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from smp_advisor.estimators.configuration import Gap, Setting
from smp_advisor.reading.values import Mapping, from_plain

if TYPE_CHECKING:
    from smp_advisor.estimators.configuration import Configuration

__all__ = ["decoded", "read_toolkit_contract"]

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
    """Move what the SDK wrote into the hyperparameters to where it belongs; the rest are the script's own."""
    for key, name in _LAUNCH.items():
        stated = configuration.hyperparameters.get(key)
        if stated is not None:
            value = decoded(stated.value)
            configuration.settings[name] = Setting(value, stated.span, stated.table, key)
    stated = configuration.hyperparameters.get("mp_parameters")
    if stated is not None and not configuration.parameters:
        _parameters(configuration, stated)
    for key in [key for key in configuration.hyperparameters if key.startswith("sagemaker_") or key == "mp_parameters"]:
        del configuration.hyperparameters[key]


def decoded(value: Any) -> Any:
    """A hyperparameter of a request as the container takes it: JSON where it is, text otherwise."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _parameters(configuration: Configuration, stated: Setting) -> None:
    found = decoded(stated.value)
    if isinstance(found, str):  # encoded twice, as some write it
        found = decoded(found)
    if not isinstance(found, dict):
        configuration.gaps.append(Gap("parameters", "mp_parameters is no JSON object", stated.span))
        return
    if isinstance(stated.value, dict) and stated.table is not None:
        inner = stated.table.get("mp_parameters")
        if isinstance(inner, Mapping):
            configuration.take_all(inner, configuration.parameters, group="parameters")
            return
    configuration.embedded = stated
    table = from_plain(found)
    if isinstance(table, Mapping):
        configuration.take_all(table, configuration.parameters, group="parameters")
    configuration.parameters = {
        key: Setting(one.value, stated.span, one.table, key) for key, one in configuration.parameters.items()
    }
