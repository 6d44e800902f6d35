"""Hyperparameters that configure the launcher in the container: ``sagemaker_*``, ``mp_parameters``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from smp_advisor.estimators.configuration import Gap, Setting
from smp_advisor.reading.data import from_plain
from smp_advisor.reading.values import Mapping

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
