"""Torchtitan's configuration (TOML): degrees, batch, sequence length, precision and checkpointing.

Source of the defaults: pytorch/torchtitan, ``torchtitan/config/job_config.py`` at 000204a. Read on 2026-11-22.
"""

from __future__ import annotations

import tomllib
from typing import Any

from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.configuration import Configuration, Setting
from smp_advisor.estimators.sources.plain_tables import section
from smp_advisor.estimators.strategy import Strategy, fully_sharded, replicated, undescribed

__all__ = ["configuration_of_torchtitan", "is_toml"]

_SECTIONS = ("parallelism", "training", "model", "job")
_BATCH, _SEQUENCE, _SELECTIVE = 8, 2048, "2"
"""Defaults: batch per GPU, tokens, and every second layer."""
_OTHER_DEGREES = (
    "tensor_parallel_degree",
    "pipeline_parallel_degree",
    "context_parallel_degree",
    "expert_parallel_degree",
)


def is_toml(text: str) -> bool:
    """Whether a text is TOML with torchtitan's sections."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError):  # besides TOMLDecodeError, that of int() for thousands of digits
        return False
    return "training" in data and any(name in data for name in _SECTIONS if name != "training")


def configuration_of_torchtitan(text: str) -> Configuration:
    """Read torchtitan's configuration.

    Raises
    ------
    AdvisorError
        The text is not TOML of torchtitan.
    """
    if not is_toml(text):
        raise AdvisorError("The text is not a configuration of torchtitan: it has sections such as [training].")
    data = tomllib.loads(text)
    training, parallel = section(data, "training"), section(data, "parallelism")
    configuration = Configuration("torchtitan", "The torchtitan configuration")
    configuration.use(_strategy({**training, **parallel}))
    for keys, name, default in (
        (("local_batch_size", "batch_size"), "batch_size", _BATCH),
        (("seq_len",), "max_seq_length", _SEQUENCE),
    ):
        value = next((training[key] for key in keys if type(training.get(key)) is int), default)
        configuration.hyperparameters[name] = Setting(value)
    mode = str(section(data, "activation_checkpoint").get("mode", "selective"))
    selective = str(section(data, "activation_checkpoint").get("selective_ac_option", _SELECTIVE))
    checkpointing = {"full": "each", "none": "none"}.get(
        mode, f"every_{selective}" if selective.isdecimal() else "operators"
    )
    configuration.hyperparameters["activation_checkpointing"] = Setting(checkpointing)
    precision = "fp32" if training.get("mixed_precision_param") == "float32" else "bf16"
    configuration.hyperparameters["precision"] = Setting(precision)
    model = section(data, "model")
    if isinstance(model.get("name"), str) and isinstance(model.get("flavor"), str):
        name = f"{model['name']}-{model['flavor']}"
        configuration.hyperparameters["model_id"] = Setting(
            {"llama3": "llama-3", "llama3_1": "llama-3.1"}.get(model["name"], model["name"]) + f"-{model['flavor']}"
        )
        configuration.title = f"The torchtitan configuration of {name}"
    return configuration


def _strategy(degrees: dict[str, Any]) -> Strategy:
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
