"""Configurations of accelerate and DeepSpeed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.estimators.configuration import (
    Configuration,
    Setting,
    Strategy,
    fully_sharded,
    is_on,
    plain_of,
    replicated,
    section,
    undescribed,
    zero,
)

if TYPE_CHECKING:
    from collections.abc import Mapping as Dictionary

    from smp_advisor.review.reading.values import Mapping

_DEVICES = ("cpu", "nvme")
_MICRO_BATCH = "train_micro_batch_size_per_gpu"


def looks_like_deepspeed(table: Mapping) -> bool:
    return "zero_optimization" in table.entries or _MICRO_BATCH in table.entries


def strategy_of_deepspeed(config: dict[str, Any]) -> Strategy:
    stages = section(config, "zero_optimization")
    moved = any(section(stages, name).get("device") in _DEVICES for name in ("offload_optimizer", "offload_param"))
    return zero(stages.get("stage", 0), offloads=moved or stages.get("cpu_offload") is True)


def configuration_of_deepspeed(table: Mapping) -> Configuration:
    configuration = Configuration("deepspeed", "The DeepSpeed configuration", table.span)
    data = plain_of(table)
    configuration.use(strategy := strategy_of_deepspeed(data))
    for key, name in ((_MICRO_BATCH, "batch_size"), ("gradient_accumulation_steps", "gradient_accumulation_steps")):
        if type(data.get(key)) is int:
            configuration.hyperparameters[name] = Setting(data[key], table.entries[key].span, table, key)
    # DeepSpeed trains in fp32 unless a section turns on another precision.
    enabled = {name: section(data, name).get("enabled", False) for name in ("bf16", "fp16")}
    possible = [name for name, on in enabled.items() if on is not False]
    on = next((name for name in possible if enabled[name] is True), None)
    if on is not None:
        configuration.hyperparameters["precision"] = Setting(on, table.entries[on].span, table, on)
        return configuration
    configuration.set_hyperparameters(precision=possible[0] if possible else "fp32")
    if possible:
        assumption = f"The precision is {possible[0]}, because the configuration leaves it to the script."
        configuration.strategy = strategy.assuming(assumption)
    return configuration


_REPLICATES = ("MULTI_GPU", "DATA_PARALLEL", "NO", "SMDDP")


def looks_like_accelerate(table: Mapping) -> bool:
    return "distributed_type" in table.entries or {"compute_environment", "num_processes"} <= table.entries.keys()


def configuration_of_accelerate(table: Mapping) -> Configuration:
    """Read accelerate's configuration: strategy, processes, precision, and SageMaker's instance if it names one."""
    configuration = Configuration("accelerate", "The accelerate configuration", table.span)
    data = plain_of(table)
    configuration.use(_accelerate_strategy(data))
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


def _accelerate_strategy(data: dict[str, Any]) -> Strategy:
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
