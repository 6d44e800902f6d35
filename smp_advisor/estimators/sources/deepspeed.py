"""DeepSpeed's configuration: its ZeRO stage, offloading, batch and precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.estimators.configuration import Configuration, Setting
from smp_advisor.estimators.sources.plain_tables import plain_of, section
from smp_advisor.estimators.strategy import Strategy, zero

if TYPE_CHECKING:
    from smp_advisor.reading.values import Mapping

__all__ = ["configuration_of_deepspeed", "looks_like_deepspeed", "strategy_of_deepspeed"]

_DEVICES = ("cpu", "nvme")
_BATCH = "train_micro_batch_size_per_gpu"


def looks_like_deepspeed(table: Mapping) -> bool:
    """Whether a dictionary is DeepSpeed's configuration."""
    return "zero_optimization" in table.entries or _BATCH in table.entries


def strategy_of_deepspeed(config: dict[str, Any]) -> Strategy:
    """Strategy of a configuration as plain data."""
    stages = section(config, "zero_optimization")
    moved = any(section(stages, name).get("device") in _DEVICES for name in ("offload_optimizer", "offload_param"))
    return zero(stages.get("stage", 0), offloads=moved or stages.get("cpu_offload") is True)


def configuration_of_deepspeed(table: Mapping) -> Configuration:
    """Read the configuration alone: strategy and settings, without a cluster."""
    configuration = Configuration("deepspeed", "The DeepSpeed configuration", table.span)
    data = plain_of(table)
    configuration.use(strategy_of_deepspeed(data))
    for key, name in ((_BATCH, "batch_size"), ("gradient_accumulation_steps", "gradient_accumulation_steps")):
        if type(data.get(key)) is int:
            configuration.hyperparameters[name] = Setting(data[key], table.entries[key].span, table, key)
    _precision(configuration, table, data)
    return configuration


def _precision(configuration: Configuration, table: Mapping, data: dict[str, Any]) -> None:
    """Set the precision: DeepSpeed trains in fp32 unless a section turns on another one."""
    enabled = {name: section(data, name).get("enabled", False) for name in ("bf16", "fp16")}
    for name, on in enabled.items():
        if on is True:
            configuration.hyperparameters["precision"] = Setting(name, table.entries[name].span, table, name)
            return
    open_ones = [name for name, on in enabled.items() if on is not False]
    configuration.hyperparameters["precision"] = Setting(open_ones[0] if open_ones else "fp32")
    if open_ones and configuration.strategy is not None:
        configuration.strategy = configuration.strategy.assuming(
            f"The precision is {open_ones[0]}, because the configuration leaves it to the script."
        )
