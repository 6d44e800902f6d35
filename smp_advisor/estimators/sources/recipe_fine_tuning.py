"""HyperPod recipes of LLM fine-tuning (``llmft_*``): FSDP of accelerate, with or without an adapter of PEFT.

Source: aws/sagemaker-hyperpod-recipes, 2631995 (2026-06-23).
"""

from __future__ import annotations

import re
from typing import Any

from smp_advisor.estimators.configuration import Configuration, Setting
from smp_advisor.estimators.sources.deepspeed import strategy_of_deepspeed
from smp_advisor.estimators.sources.plain_tables import count, plain_of, section
from smp_advisor.estimators.strategy import Strategy, fully_sharded, undescribed
from smp_advisor.reading.values import Mapping

__all__ = ["configuration_of_fine_tuning", "is_fine_tuning", "model_name_of", "set_batch"]


def is_fine_tuning(recipe: Mapping) -> bool:
    """Whether a recipe is one of LLM fine-tuning."""
    training = recipe.get("training_config")
    return isinstance(training, Mapping) and isinstance(training.get("training_args"), Mapping)


def configuration_of_fine_tuning(recipe: Mapping) -> Configuration:
    """Read a recipe of LLM fine-tuning."""
    configuration = Configuration("recipe", "The fine-tuning recipe", recipe.span)
    data = plain_of(recipe)
    trainer = section(data, "trainer")
    arguments, model = (
        section(data, "training_config", "training_args"),
        section(data, "training_config", "model_config"),
    )
    configuration.settings["processes_per_host"] = Setting(trainer.get("devices"))
    configuration.settings["instance_count"] = Setting(trainer.get("num_nodes"))
    configuration.use(
        _strategy(arguments.get("strategy")).assuming("The precision is bf16, because the recipe has none.")
    )
    values = configuration.hyperparameters
    values["precision"] = Setting("bf16")
    values["max_seq_length"] = Setting(arguments.get("max_len"))
    values["activation_checkpointing"] = Setting("each" if arguments.get("gradient_checkpointing") else "none")
    set_batch(configuration, arguments.get("micro_train_batch_size"), arguments.get("train_batch_size"), trainer)
    values["model_id"] = Setting(model_name_of(model.get("model_name_or_path"), data))
    if str(arguments.get("trainer_type")).lower() == "dpo":
        configuration.settings["trains_on_preferences"] = Setting(value=True)
    peft = section(model, "peft_config")
    if "lora" in str(peft.get("peft_type")).lower():
        configuration.settings["adapter"] = Setting("qlora_4bit" if model.get("load_in_4bit") else "lora")
        configuration.settings["adapter_rank"] = Setting(peft.get("r"))
        configuration.settings["adapter_targets"] = Setting(str(peft.get("target_modules")))
        configuration.settings["adapter_dropout"] = Setting(peft.get("lora_dropout", 0.0))
    return configuration


def _strategy(options: object) -> Strategy:
    if own := section(options, "fsdp_config"):
        return fully_sharded(own.get("sharding_strategy", "FULL_SHARD"), offloads=own.get("cpu_offload") is True)
    if config := section(options, "deepspeed_config"):
        return strategy_of_deepspeed(config)
    return undescribed("The strategy", "the recipe has neither fsdp_config nor deepspeed_config")


def set_batch(configuration: Configuration, per_gpu: object, total: object, trainer: dict[str, Any]) -> None:
    """Set the batch per GPU and the accumulation that makes the batch of a step, if they divide."""
    batch, devices, nodes = count(per_gpu), count(trainer.get("devices")), count(trainer.get("num_nodes"))
    if batch is None:
        return
    configuration.hyperparameters["batch_size"] = Setting(batch)
    steps, remainder = divmod(count(total) or 0, batch * (devices or 1) * (nodes or 1))
    if devices and nodes and steps and not remainder:
        configuration.hyperparameters["gradient_accumulation_steps"] = Setting(steps)


def model_name_of(path: object, data: dict[str, Any]) -> str:
    """Name of the model: its path on the hub, or the name of the run, whose dots are dashes."""
    if isinstance(path, str) and path.strip():
        return path
    name = str(section(data, "run").get("name", ""))
    return re.sub(r"(?<=\d)-(?=\d)", ".", name.replace("-dot-", "."))
