"""Strategy and adapter of a training script, from its syntax tree; the script is not run."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from smp_advisor.estimators.strategy import Strategy, fully_sharded, replicated, undescribed

__all__ = ["ScriptFacts", "read_training_script"]

_TRAINERS = ("Trainer", "SFTTrainer", "Seq2SeqTrainer", "DPOTrainer", "SentenceTransformerTrainer")
_ARGUMENTS = ("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig", "DPOConfig")
_LONGEST = 20_000
"""Most nodes of a script."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptFacts:
    """Strategy of a script, as far as its code shows it."""

    strategy: Strategy | None = None
    """Strategy in the code; None if its arguments or the launcher decide."""
    trainer: bool = False
    """Whether transformers' Trainer, or accelerate, runs the loop: arguments or the environment choose the strategy."""
    parses_arguments: bool = False
    """Whether its hyperparameters are the Trainer's own arguments (HfArgumentParser)."""
    sets_arguments: bool = False
    """Whether the code itself sets ``fsdp`` or ``deepspeed`` to a value that is not a constant."""
    lora: bool = False
    rank: int | None = None
    """Rank of the adapter, if it is a constant."""
    four_bit: bool = False
    maps_devices: bool = False
    """Whether ``device_map`` spreads one model over the GPUs of a process."""


def read_training_script(text: str) -> ScriptFacts | None:
    """Read a script; None if it is not Python, or too long."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if len(nodes) > _LONGEST:
        return None
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    aliases = {
        alias.asname or alias.name: alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    by_name: dict[str, list[ast.Call]] = {}
    for call in calls:
        last = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        by_name.setdefault(aliases.get(last, last), []).append(call)
    lora = by_name.get("LoraConfig", [])
    keywords = [keyword for name in _ARGUMENTS for call in by_name.get(name, []) for keyword in call.keywords]
    ranks = [value for call in lora for value in _constants(call, "r") if type(value) is int]
    return ScriptFacts(
        strategy=_strategy(by_name, keywords, nodes),
        trainer=any(name in by_name for name in (*_TRAINERS, "Accelerator")),
        parses_arguments="HfArgumentParser" in by_name or "TrlParser" in by_name,
        sets_arguments=any(
            keyword.arg in ("fsdp", "deepspeed") and not isinstance(keyword.value, ast.Constant) for keyword in keywords
        ),
        lora=bool(lora) or "get_peft_model" in by_name,
        rank=ranks[0] if len(set(ranks)) == 1 else None,
        four_bit="prepare_model_for_kbit_training" in by_name
        or any(True in _constants(call, "load_in_4bit") for call in calls),
        maps_devices=any("auto" in _constants(call, "device_map") for call in calls),
    )


def _strategy(by_name: dict[str, list[ast.Call]], keywords: list[ast.keyword], nodes: list[ast.AST]) -> Strategy | None:
    if "fully_shard" in by_name:
        return fully_sharded("full_shard", name="FSDP2")
    if "FullyShardedDataParallel" in by_name or "FSDP" in by_name:
        chosen = {
            node.attr
            for node in nodes
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name | ast.Attribute)
            and (getattr(node.value, "id", "") or getattr(node.value, "attr", "")) == "ShardingStrategy"
        }
        if len(chosen) == 1:
            return fully_sharded(chosen.pop())
        if chosen:
            return undescribed("FSDP", "the script chooses between several sharding strategies")
        return fully_sharded("full_shard").assuming("FSDP shards with full_shard, its default.")
    for keyword in keywords:
        if keyword.arg == "fsdp" and isinstance(keyword.value, ast.Constant) and keyword.value.value:
            return fsdp_option(keyword.value.value)
    if any(name in by_name for name in ("DistributedDataParallel", "DDP")):
        return replicated()
    if any("deepspeed" in ast.unparse(call.func) for call in by_name.get("initialize", [])):
        return undescribed("DeepSpeed", "its configuration is in another file: paste that file")
    return None


def fsdp_option(value: object) -> Strategy:
    """The option ``fsdp`` of transformers' Trainer: "full_shard auto_wrap offload"."""
    words = str(value).strip("\"' ").lower().split()
    sharding = [word for word in words if word not in ("auto_wrap", "offload")]
    if value is True:
        sharding = ["full_shard"]
    return fully_sharded(sharding[0] if sharding else "", offloads="offload" in words)


def _constants(call: ast.Call, name: str) -> list[object]:
    return [
        keyword.value.value
        for keyword in call.keywords
        if keyword.arg == name and isinstance(keyword.value, ast.Constant)
    ]
