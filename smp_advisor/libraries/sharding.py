"""FSDP's sharding strategies: their names, their numbers in other tools, and what each of them keeps."""

from __future__ import annotations

from typing import Any

STRATEGIES = ("full_shard", "shard_grad_op", "hybrid_shard", "_hybrid_shard_zero2")
"""The names of plans; their positions are their codes in columns."""
RESHARDING = ("full_shard", "hybrid_shard")
"""Strategies that free gathered parameters after the forward pass (``reshard_after_forward``)."""

_NUMBERED = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "_hybrid_shard_zero2")
OF_TOOLS = {
    key: name.replace("no_shard", "")
    for number, name in enumerate(_NUMBERED, 1)
    for key in (name, name.removeprefix("_"), str(number))
}
"""Names and numbers in transformers and accelerate, with the strategy of plans; empty for none."""
OF_ZERO = {2: "shard_grad_op", 3: "full_shard"}
"""Stages of DeepSpeed's ZeRO with the strategy that shards the same tensors."""


def accelerate_settings(plan: Any) -> dict[str, Any]:
    """Settings of ``fully_shard`` in Accelerate and the Trainer, which wrap the layers of ``_no_split_modules``."""
    return {
        "version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": plan.sharding_strategy in RESHARDING,
        "activation_checkpointing": bool(plan.activation_checkpointing),
        "cpu_ram_efficient_loading": True,
        "state_dict_type": "SHARDED_STATE_DICT",
    }
