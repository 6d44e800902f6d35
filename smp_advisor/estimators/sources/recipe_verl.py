"""HyperPod recipes of verl: supervised fine-tuning, DPO and reinforcement learning over FSDP.

Source: aws/sagemaker-hyperpod-recipes, 2631995 (2026-06-23).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.estimators.configuration import Configuration, Setting
from smp_advisor.estimators.sources.plain_tables import count, plain_of, section
from smp_advisor.estimators.sources.recipe_fine_tuning import model_name_of, set_batch
from smp_advisor.estimators.strategy import Strategy, fully_sharded, undescribed

if TYPE_CHECKING:
    from smp_advisor.reading.values import Mapping

__all__ = ["configuration_of_verl"]

_OFFLOADS = ("param_offload", "optimizer_offload", "offload_policy")


def configuration_of_verl(recipe: Mapping) -> Configuration:
    """Read a recipe of verl: the trained model, which is the actor in reinforcement learning."""
    configuration = Configuration("recipe", "The verl recipe", recipe.span)
    data = plain_of(recipe)
    training, trainer = section(data, "training_config"), section(data, "trainer")
    samples, roles = section(training, "data"), section(training, "actor_rollout_ref")
    own = section(training, "trainer")
    inner = {"devices": own.get("n_gpus_per_node"), "num_nodes": own.get("nnodes")}
    trainer = {name: trainer.get(name, value) for name, value in inner.items()}
    configuration.settings["processes_per_host"] = Setting(trainer.get("devices"))
    configuration.settings["instance_count"] = Setting(trainer.get("num_nodes"))
    if roles:
        actor, model = section(roles, "actor"), section(roles, "model")
        engine = {**section(actor, "fsdp_config"), "strategy": actor.get("strategy")}
        engine["ulysses_sequence_parallel_size"] = actor.get("ulysses_sequence_parallel_size", 1)
        per_gpu, total = actor.get("ppo_micro_batch_size_per_gpu"), actor.get("ppo_mini_batch_size")
        length = _sum(samples.get("max_prompt_length"), samples.get("max_response_length"))
        configuration.title = "The verl recipe (actor)"
        configuration.settings["shares_gpus"] = Setting("the rollout engine and the reference model")
    else:
        engine, model = section(training, "engine"), section(training, "model")
        per_gpu, total = samples.get("micro_batch_size_per_gpu"), samples.get("train_batch_size")
        length = samples.get("max_length")
    strategy = _strategy(engine, trainer)
    if samples.get("use_dynamic_bsz") is True and not roles:
        tokens = count(samples.get("max_token_len_per_gpu"))
        per_sample = count(length)
        if tokens and per_sample:
            per_gpu = max(1, tokens // per_sample)
            strategy = strategy.assuming(
                f"The batch per GPU is {per_gpu}, the samples of {length:,} tokens in its {tokens:,} tokens per GPU."
            )
    states = str(engine.get("model_dtype")).lower() in ("bfloat16", "bf16")
    strategy = strategy.assuming(
        "The precision is bf16, because the recipe computes in bfloat16.",
        "Parameters and Adam's states are in bf16, because the recipe loads the model in it." if states else "",
    )
    configuration.use(strategy)
    values = configuration.hyperparameters
    values["precision"] = Setting("bf16")
    values["max_seq_length"] = Setting(length)
    values["activation_checkpointing"] = Setting("each" if model.get("enable_gradient_checkpointing") else "none")
    set_batch(configuration, per_gpu, total, trainer)
    values["model_id"] = Setting(model_name_of(model.get("path"), data))
    if states:
        configuration.settings["state_precision"] = Setting("16-bit")
    if count(model.get("lora_rank")):
        configuration.settings["adapter"] = Setting("lora")
        configuration.settings["adapter_rank"] = Setting(model["lora_rank"])
        configuration.settings["adapter_targets"] = Setting(str(model.get("target_modules")))
        configuration.settings["adapter_dropout"] = Setting(0.0)
    if "dpo" in str(section(data, "run").get("name", "")).lower():
        configuration.settings["trains_on_preferences"] = Setting(value=True)
    return configuration


def _strategy(engine: dict[str, Any], trainer: dict[str, Any]) -> Strategy:
    target = str(engine.get("_target_", "")).rpartition(".")[2]
    kind, size = str(engine.get("strategy") or target or "without a name"), engine.get("fsdp_size", -1)
    name = "FSDP2" if kind == "fsdp2" else "FSDP"
    if kind not in ("fsdp", "fsdp2"):
        return undescribed(f"verl's engine {kind}", "no library here has its parallelism")
    if (count(engine.get("ulysses_sequence_parallel_size")) or 1) > 1:
        return undescribed(f"{name} with sequence parallelism (Ulysses)", "FSDP here has none")
    devices, nodes = trainer.get("devices"), trainer.get("num_nodes")
    if size not in (-1, None, devices):
        return undescribed(f"{name} over groups of {size} GPUs", "plans shard over all GPUs or over those of a node")
    sharding = "hybrid_shard" if size == devices and nodes != 1 else "full_shard"
    return fully_sharded(sharding, offloads=any(engine.get(part) is True for part in _OFFLOADS), name=name)


def _sum(*parts: object) -> int | None:
    numbers = [part for part in parts if type(part) is int]
    return sum(numbers) if numbers else None
