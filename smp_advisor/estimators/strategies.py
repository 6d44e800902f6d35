"""How the code of a script divides its model, if the code decides it: by FSDP, DeepSpeed, Lightning or transformers."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from smp_advisor.estimators.configuration import (
    SHARDS,
    Strategy,
    fully_sharded,
    replicated,
    strategy_of_deepspeed,
    undescribed,
    zero,
)
from smp_advisor.review.reading.values import External, Mapping, options
from smp_advisor.review.scripts.checks.sharding import may_offload
from smp_advisor.review.scripts.queries import makers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from smp_advisor.estimators.calls import Calls
    from smp_advisor.review.reading.trace import Call
    from smp_advisor.review.reading.values import Value

_BY_NAME = {"ddp": "", "fsdp": "full_shard", "fsdp_full_shard": "full_shard", "fsdp_native": "full_shard"}
"""Lightning's names of strategies, with FSDP's."""
_CONFIGURED = ("deepspeed", "hf_ds_config", "config", "config_params")
"""Arguments that take DeepSpeed's configuration."""


def strategy_in_code(calls: Calls) -> tuple[Strategy | None, str]:  # noqa: C901 - a list of cases
    """Return the strategy in the code, or the file with DeepSpeed's configuration; None and nothing without one."""
    if calls.named("fully_shard"):
        offloads = any(call.argument("offload_policy") is not None for call in calls.named("fully_shard"))
        return fully_sharded("full_shard", offloads=offloads, name="FSDP2"), ""
    wraps = calls.named("FullyShardedDataParallel", "FSDP", "FullyShardedDataParallelPlugin")
    if wraps and not any(map(calls.certain, wraps)) and (calls.named("DistributedDataParallel", "DDP", "Accelerator")):
        return undescribed("The strategy", "a value that was not followed chooses between FSDP and DDP"), ""
    if shards := calls.named("FullyShardedDataParallel", "FSDP"):
        offloads = any(may_offload(call.argument("cpu_offload")) for call in shards)
        return _sharded(calls, [call.argument("sharding_strategy", 2) for call in shards], offloads=offloads), ""
    for maker in [*calls.makers, *calls.plugins(), *calls.named("initialize")]:
        passed_values = next(filter(None, map(maker.argument, _CONFIGURED)), None)
        if (read := _of_deepspeed(calls, maker, passed_values)) is not None:
            return read
        if calls.known(maker.argument(SHARDS)):
            return fsdp_option(calls.known(maker.argument(SHARDS))), ""
    for plugin in calls.named("FullyShardedDataParallelPlugin"):
        version = calls.known(plugin.argument("fsdp_version")) or 1
        offloads = may_offload(plugin.argument("cpu_offload"))
        if version == 2:
            return fully_sharded("full_shard", offloads=offloads, name="FSDP2"), ""
        return _sharded(calls, [plugin.argument("sharding_strategy", 0)], offloads=offloads), ""
    for call in calls.named("from_pretrained"):
        if (at_load := _at_load(calls, call)) is not None:
            return at_load, ""
    for call in calls.ending("Trainer", "Fabric"):
        if call.argument("strategy") is not None and (strategy := _of_lightning(calls, call)) is not None:
            return strategy, ""
    return (replicated() if calls.named("DistributedDataParallel", "DDP") else None), ""


def _sharded(calls: Calls, values: list[Value | None], *, offloads: bool = False) -> Strategy:
    """FSDP with the sharding strategies of its calls."""
    passed_values = [option for value in values for option in options(value)]
    if not passed_values:
        return fully_sharded("full_shard", offloads=offloads).assuming("FSDP shards with full_shard, its default.")
    names = {option.path if isinstance(option, External) else calls.known(option) for option in passed_values}
    if len(names) > 1 or None in names:
        return undescribed("FSDP", "the script chooses between several sharding strategies")
    return fully_sharded(names.pop(), offloads=offloads)


def _of_deepspeed(calls: Calls, maker: Call, passed_values: Value | None) -> tuple[Strategy | None, str] | None:
    if maker.called == "DeepSpeedPlugin" and passed_values is None:
        moves = [calls.known(maker.argument(f"offload_{part}_device")) for part in ("optimizer", "param")]
        return zero(
            calls.known(maker.argument("zero_stage")), offloads=any(device in ("cpu", "nvme") for device in moves)
        ), ""
    if maker.called == "initialize" and "deepspeed" not in f"{maker.name} {ast.unparse(maker.node.func)}":
        return None
    if isinstance(passed_values, Mapping):
        return strategy_of_deepspeed(calls.plain(passed_values)), ""
    text = calls.known(passed_values)
    if isinstance(text, str) and text:
        return undescribed("DeepSpeed", f"its configuration is in the file {text[:80]!r}: paste that file"), text
    if maker.called == "initialize":
        return undescribed("DeepSpeed", "its configuration is in another file: paste that file"), ""
    return None


def deepspeed_configs(calls: Calls) -> Iterator[dict[str, Any]]:
    """Yield the configurations in the code that an engine of DeepSpeed gets."""
    for call in calls.named("initialize"):
        for value in filter(None, map(call.argument, _CONFIGURED)):
            yield from (calls.plain(table) for table in options(value) if isinstance(table, Mapping))


def _at_load(calls: Calls, call: Call) -> Strategy | None:
    """Return the division of a model by transformers itself, when it is loaded."""
    sizes = [config.argument for config in makers(call.argument("distributed_config"))]
    if any(calls.known(size("fsdp_size")) and not (size("tp_size") or size("tp_plan")) for size in sizes):
        several = any((calls.known(size("dp_replicate_size")) or 1) > 1 for size in sizes)
        offloads = any(calls.known(size("fsdp_cpu_offload")) is True for size in sizes)
        return fully_sharded("hybrid_shard" if several else "full_shard", offloads=offloads, name="FSDP2")
    if sizes or calls.known(call.argument("tp_plan")) or calls.known(call.argument("tp_size")):
        return undescribed("Tensor parallelism of transformers", "no library here has it as a plan")
    return None


def _of_lightning(calls: Calls, call: Call) -> Strategy | None:
    value = call.argument("strategy")
    if isinstance(text := calls.known(value), str):
        name = text.removesuffix("_find_unused_parameters_true")
        if name.startswith("deepspeed"):
            stage = re.search(r"stage_(\d)", name)
            return zero(int(stage[1]) if stage else None, offloads="offload" in name)
        return None if name not in _BY_NAME else fully_sharded(_BY_NAME[name]) if _BY_NAME[name] else replicated()
    for maker in makers(value):
        if maker.called == "FSDPStrategy":
            return _sharded(
                calls, [maker.argument("sharding_strategy")], offloads=may_offload(maker.argument("cpu_offload"))
            )
        if maker.called == "DeepSpeedStrategy":
            moves = any(calls.known(maker.argument(name)) for name in ("offload_optimizer", "offload_parameters"))
            return zero(calls.known(maker.argument("stage")), offloads=moves)
        if maker.called == "DDPStrategy":
            return replicated()
        if maker.called.endswith("Strategy"):
            return undescribed(f"Lightning's {maker.called}", "no library here has it as a plan")
    return None


def fsdp_option(value: object) -> Strategy:
    """Return the option ``fsdp`` of transformers' Trainer: "full_shard auto_wrap offload"."""
    words = str(value).strip("\"' ").lower().split()
    sharding = ["full_shard"] if value is True else [word for word in words if word not in ("auto_wrap", "offload")]
    return fully_sharded(sharding[0] if sharding else "", offloads="offload" in words)
