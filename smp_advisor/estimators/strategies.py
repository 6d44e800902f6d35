"""Configurations of accelerate, DeepSpeed and torchtitan.

Defaults of torchtitan: pytorch/torchtitan, ``torchtitan/config/job_config.py`` at 000204a. Read on 2026-11-22.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError
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

    from smp_advisor.reading.values import Mapping

_DEVICES = ("cpu", "nvme")
_MICRO_BATCH = "train_micro_batch_size_per_gpu"


def looks_like_deepspeed(table: Mapping) -> bool:
    """Whether a dictionary is DeepSpeed's configuration."""
    return "zero_optimization" in table.entries or _MICRO_BATCH in table.entries


def strategy_of_deepspeed(config: dict[str, Any]) -> Strategy:
    """Strategy of a configuration as plain data."""
    stages = section(config, "zero_optimization")
    moved = any(section(stages, name).get("device") in _DEVICES for name in ("offload_optimizer", "offload_param"))
    return zero(stages.get("stage", 0), offloads=moved or stages.get("cpu_offload") is True)


def configuration_of_deepspeed(table: Mapping) -> Configuration:
    """Read the configuration alone: strategy and settings, without a cluster."""
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
    """Whether a YAML file is accelerate's configuration."""
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


_BATCH, _SEQUENCE, _SELECTIVE = 8, 2048, "2"
"""Defaults: batch per GPU, tokens, and every second layer."""
_OTHER_DEGREES = [f"{name}_parallel_degree" for name in ("tensor", "pipeline", "context", "expert")]


def is_toml(text: str) -> bool:
    """Whether a text is TOML with torchtitan's sections."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError):  # besides TOMLDecodeError, that of int() for thousands of digits
        return False
    return "training" in data and any(name in data for name in ("parallelism", "model", "job"))


def configuration_of_torchtitan(text: str) -> Configuration:
    """Read torchtitan's configuration."""
    if not is_toml(text):
        raise AdvisorError("The text is not a configuration of torchtitan: it has sections such as [training].")
    data = tomllib.loads(text)
    training, parallel = section(data, "training"), section(data, "parallelism")
    configuration = Configuration("torchtitan", "The torchtitan configuration")
    configuration.use(_torchtitan_strategy({**training, **parallel}))
    numbers = {key: value for key, value in training.items() if type(value) is int}
    checkpointing = section(data, "activation_checkpoint")
    selective = str(checkpointing.get("selective_ac_option", _SELECTIVE))
    some = f"every_{selective}" if selective.isdecimal() else "operators"
    configuration.set_hyperparameters(
        batch_size=numbers.get("local_batch_size", numbers.get("batch_size", _BATCH)),
        max_seq_length=numbers.get("seq_len", _SEQUENCE),
        activation_checkpointing={"full": "each", "none": "none"}.get(str(checkpointing.get("mode", "")), some),
        precision="fp32" if training.get("mixed_precision_param") == "float32" else "bf16",
    )
    name, flavor = section(data, "model").get("name"), section(data, "model").get("flavor")
    if isinstance(name, str) and isinstance(flavor, str):
        family = {"llama3": "llama-3", "llama3_1": "llama-3.1"}.get(name, name)
        configuration.set_hyperparameters(model_id=f"{family}-{flavor}")
        configuration.title = f"The torchtitan configuration of {name}-{flavor}"
    return configuration


def _torchtitan_strategy(degrees: dict[str, Any]) -> Strategy:
    more = [
        f"{name} {degrees[name]}" for name in _OTHER_DEGREES if type(degrees.get(name)) is int and degrees[name] > 1
    ]
    if more:
        return undescribed("FSDP2 of torchtitan", f"FSDP here has no {' or '.join(more)}")
    shard, replicas = degrees.get("data_parallel_shard_degree", -1), degrees.get("data_parallel_replicate_degree", 1)
    if shard == 1:
        return replicated()
    if replicas != 1:
        groups = f"{replicas} replicas over {'all other' if shard == -1 else shard} GPUs each"
        return undescribed("FSDP2 of torchtitan", f"plans shard over all GPUs or those of a node, not {groups}")
    policy = degrees.get("fsdp_reshard_after_forward", "default")
    sharding = "shard_grad_op" if policy == "never" else "full_shard"
    return fully_sharded(sharding, offloads=degrees.get("enable_cpu_offload") is True, name="FSDP2")
