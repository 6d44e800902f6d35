"""Accelerate: its configuration file, and the environment variables that stand for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.estimators.configuration import Configuration, Setting
from smp_advisor.estimators.sources.plain_tables import is_on, plain_of, section
from smp_advisor.estimators.strategy import Strategy, fully_sharded, replicated, undescribed, zero

if TYPE_CHECKING:
    from collections.abc import Mapping as Dictionary

    from smp_advisor.reading.values import Mapping

__all__ = ["configuration_of_accelerate", "looks_like_accelerate", "strategy_of_environment"]

_REPLICATES = ("MULTI_GPU", "DATA_PARALLEL", "NO", "SMDDP")


def looks_like_accelerate(table: Mapping) -> bool:
    """Whether a YAML file is accelerate's configuration."""
    return "distributed_type" in table.entries or {"compute_environment", "num_processes"} <= table.entries.keys()


def configuration_of_accelerate(table: Mapping) -> Configuration:
    """Read accelerate's configuration: strategy, processes, precision, and SageMaker's instance if it names one."""
    configuration = Configuration("accelerate", "The accelerate configuration", table.span)
    data = plain_of(table)
    configuration.use(_strategy(data))
    configuration.take(table, "ec2_instance_type", "instance_type")
    if "num_machines" in data:
        configuration.take(table, "num_machines", "instance_count")
    precision = str(data.get("mixed_precision", "no")).lower()
    value = precision if precision in ("bf16", "fp16") else "fp32"
    entry = table.entries.get("mixed_precision")
    place = (entry.span, table, "mixed_precision") if entry is not None else ()
    configuration.hyperparameters["precision"] = Setting(value, *place)
    if is_on(section(data, "fsdp_config").get("fsdp_activation_checkpointing")):
        configuration.hyperparameters["activation_checkpointing"] = Setting("each", table.entries["fsdp_config"].span)
    return configuration


def _strategy(data: dict[str, Any]) -> Strategy:
    kind = str(data.get("distributed_type", "")).upper()
    if kind == "FSDP":
        return _sharded(section(data, "fsdp_config"), "fsdp_")
    if kind == "DEEPSPEED":
        own = section(data, "deepspeed_config")
        if own.get("deepspeed_config_file"):
            return undescribed("DeepSpeed", "its configuration is in another file: paste that file")
        moved = any(own.get(f"offload_{part}_device") in ("cpu", "nvme") for part in ("optimizer", "param"))
        return zero(own.get("zero_stage"), offloads=moved)
    if kind in _REPLICATES:
        return replicated()
    return undescribed(f"distributed_type {kind or 'without a value'}", "it is none of DDP, FSDP and DeepSpeed")


def strategy_of_environment(environment: Dictionary[str, Any]) -> Strategy | None:
    """Strategy that environment variables choose for accelerate; None if they choose none."""
    names = {key.upper(): value for key, value in environment.items()}
    if is_on(names.get("ACCELERATE_USE_DEEPSPEED")):
        stage = str(names.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", ""))
        return zero(int(stage) if stage.isdecimal() else None)
    if is_on(names.get("ACCELERATE_USE_FSDP")):
        return _sharded(names, "FSDP_")
    return None


def _sharded(options: Dictionary[str, Any], prefix: str) -> Strategy:
    def option(name: str) -> object:
        return options.get(prefix + (name if prefix.islower() else name.upper()))

    offloads, version = is_on(option("offload_params")), str(option("version") or 1)
    if version == "2":
        reshards = option("reshard_after_forward")
        shards = "shard_grad_op" if str(reshards).lower() == "false" else "full_shard"
        return fully_sharded(shards, offloads=offloads, name="FSDP2")
    sharding = option("sharding_strategy")
    plan = fully_sharded(sharding if sharding is not None else "full_shard", offloads=offloads)
    return plan if sharding is not None else plan.assuming("FSDP shards with full_shard, accelerate's default.")
