"""HyperPod recipes of every kind: SMP v2 (to 1.3.3), LLM fine-tuning, verl, NeMo, Amazon Nova, evaluation.

Source: aws/sagemaker-hyperpod-recipes, 2631995 (2026-06-23). Adapters have the defaults of AWS's training adapter:
aws/sagemaker-hyperpod-training-adapter-for-nemo 1.4.0, ``conf/config_schemas.py`` (BaseModelPeftConfig) and
``collections/model/sagemaker_base_model.py`` (get_lora_config, get_quantization_config). Read on 2026-11-22.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.arguments.amounts import digits_as_number
from smp_advisor.cluster.table import instances
from smp_advisor.core.files import table
from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.configuration import (
    SHARDS,
    Configuration,
    Setting,
    Strategy,
    constant,
    count,
    fully_sharded,
    inner_table,
    plain_of,
    section,
    strategy_of_deepspeed,
    undescribed,
)
from smp_advisor.estimators.documents import resolve, unwrapped
from smp_advisor.estimators.terms import gpus_of
from smp_advisor.libraries.library import library_with
from smp_advisor.review.reading.values import Collection, Constant, Mapping
from smp_advisor.workload.adapter import Adapter

if TYPE_CHECKING:
    from smp_advisor.workload.adapter import AdapterTargets

_FORMS: dict[str, Any] = table("smp_advisor.estimators", "data/forms.toml")

_RANK, _DROPOUT = 32, 0.1
_TARGETS: dict[frozenset[str], AdapterTargets] = {
    frozenset({"q_proj", "k_proj", "v_proj", "o_proj"}): "attention",
    frozenset({"q_proj", "v_proj"}): "query-value",
    frozenset(f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")): "all-linear",
}


def adapter_of(configuration: Configuration, inferred: list[str]) -> Adapter | None:
    """Return the low-rank adapter that a recipe trains; None without one. Adds a sentence for each default."""
    kind = configuration.get("adapter")
    if not isinstance(kind, str) or "lora" not in kind.lower():
        return None
    bits: Literal[16, 8, 4] = 4 if "4bit" in kind.lower() else 8 if "8bit" in kind.lower() else 16
    if "adapter_rank" not in configuration.settings:
        inferred.append(f"The adapter's rank is {_RANK}, the default of AWS's training adapter.")
    dropout = configuration.get("adapter_dropout", _DROPOUT)
    modules = configuration.get("adapter_targets")
    names = frozenset(re.findall(r"\b\w+_proj\w*", str(modules)))
    if modules != "all-linear" and names not in _TARGETS:
        why = f"no estimate has one on only {', '.join(sorted(names))}" if names else "AWS's training adapter does so"
        inferred.append(f"The adapter is on all linear products, because {why}.")
    return Adapter(
        rank=configuration.get("adapter_rank", _RANK),
        targets=_TARGETS.get(names, "all-linear"),
        base_bits=bits,
        double_quantization=bits == 4,
        dropout=not isinstance(dropout, int | float) or dropout > 0,
        upcast=bits < 16 and configuration.get("adapter_upcast", False) is True,
    )


_OF_PEFT = {"peft_type": "adapter", "rank": "adapter_rank", "dropout": "adapter_dropout"}
_OF_PEFT |= {"target_modules": "adapter_targets"}


def _what_it_is(recipe: Mapping) -> str:
    """Return the kind of a YAML file of HyperPod that is no recipe, and what to paste instead."""
    keys, listed = recipe.entries.keys(), getattr(recipe.get("defaults"), "items", [])
    bases = ", ".join(str(item.value) for item in listed if isinstance(item, Constant) and item.value != "_self_")
    if {"callbacks", "resume"} & keys and bases:
        return (
            f"it is a checkpointless configuration, which only changes {bases}: paste {bases}.yaml, which has"
            " the model and the trainer; what checkpointless recovery adds is not checked"
        )
    kinds = (row["text"] for row in _FORMS["no_recipes"].values() if keys & set(row["keys"]))
    text = next(kinds, "a recipe is a mapping with trainer and model")
    return text.format(on_top=f" on top of {bases}" if bases else "")


def configuration_of_smp_recipe(recipe: Mapping) -> Configuration:
    """Read a recipe: parameters of SMP v2 by their names there."""
    configuration = Configuration("recipe", "The recipe", recipe.span)
    trainer, model = inner_table(recipe, "trainer"), inner_table(recipe, "model")
    if trainer is None or model is None:
        raise AdvisorError(f"The text is not a recipe: {_what_it_is(recipe)}.")
    configuration.tables |= {"trainer": trainer, "model": model}
    configuration.take(trainer, "devices", "processes_per_host")
    configuration.take(trainer, "num_nodes", "instance_count")
    for key, name in _FORMS["recipe_parameters"].items():
        configuration.take_single(model, key, configuration.parameters, name)
    for key in _FORMS["recipe_settings"]:
        configuration.take_single(model, key, configuration.hyperparameters, _FORMS["recipe_names"].get(key, key))
    precision = trainer.entries.get("precision")
    if precision is not None and isinstance(precision.value, Constant):
        # Lightning's names of precisions
        text = str(precision.value.value).removesuffix("-mixed")
        setting = Setting({"16": "fp16", "32": "fp32"}.get(text, text), precision.span, trainer, "precision")
        configuration.hyperparameters["precision"] = setting
    peft = inner_table(model, "peft")
    for key, name in _OF_PEFT.items() if constant(peft, "peft_type") is not None else ():
        configuration.take(peft, key, name)
    configuration.take(inner_table(model, "dpo"), "enabled", "trains_on_preferences")
    used = recipe.get("use_smp_model")
    if not isinstance(used, Constant):
        configuration.library = None  # NeMo's own recipes, and those for Trainium
        return configuration
    # SMP v2 divides the model over shard_degree GPUs either way: the training adapter always passes the degrees to it
    # (aws/sagemaker-hyperpod-training-adapter-for-nemo 1.4.0, collections/parts/fsdp_strategy.py, _setup_smp_config).
    configuration.library = library_with(smdistributed=True, launcher="torchrun", divides_model=True).name
    for name in ("modelparallel", "torch_distributed"):
        configuration.settings[name] = Setting(value=True, span=recipe.span)
    configuration.put("replaces_model", used.value is True, recipe, "use_smp_model")
    if used.value is not True:
        configuration.hyperparameters.pop("fp8", None)  # has no effect without the library's model
    return configuration


def configuration_of_fine_tuning(recipe: Mapping) -> Configuration:
    configuration = Configuration("recipe", "The fine-tuning recipe", recipe.span)
    data = plain_of(recipe)
    arguments = section(data, "training_config", "training_args")
    model = section(data, "training_config", "model_config")
    trainer = section(data, "trainer")
    configuration.set(processes_per_host=trainer.get("devices"), instance_count=trainer.get("num_nodes"))
    strategy = undescribed("The strategy", "the recipe has neither fsdp_config nor deepspeed_config")
    if own := section(arguments, "strategy", "fsdp_config"):
        strategy = fully_sharded(own.get("sharding_strategy", "FULL_SHARD"), offloads=own.get("cpu_offload") is True)
    elif config := section(arguments, "strategy", "deepspeed_config"):
        strategy = strategy_of_deepspeed(config)
    configuration.use(strategy.assuming("The precision is bf16, because the recipe has none."))
    _set_batch(configuration, arguments.get("micro_train_batch_size"), arguments.get("train_batch_size"))
    configuration.set_hyperparameters(
        precision="bf16",
        max_seq_length=arguments.get("max_len"),
        activation_checkpointing="each" if arguments.get("gradient_checkpointing") else "none",
        model_id=_model_name(model.get("model_name_or_path"), data),
    )
    if str(arguments.get("trainer_type")).lower() == "dpo":
        configuration.set(trains_on_preferences=True)
    peft = section(model, "peft_config")
    if "lora" in str(peft.get("peft_type")).lower():
        configuration.set(
            adapter="qlora_4bit" if model.get("load_in_4bit") else "lora",
            adapter_rank=peft.get("r"),
            adapter_targets=str(peft.get("target_modules")),
            adapter_dropout=peft.get("lora_dropout", 0.0),
        )
    return configuration


def _set_batch(configuration: Configuration, per_gpu: object, total: object) -> None:
    """Set the batch per GPU and the accumulation that makes the batch of a step, if they divide."""
    batch, devices = count(per_gpu), count(configuration.get("processes_per_host"))
    nodes = count(configuration.get("instance_count"))
    if batch is None:
        return
    configuration.set_hyperparameters(batch_size=batch)
    steps, remainder = divmod(count(total) or 0, batch * (devices or 1) * (nodes or 1))
    if devices and nodes and steps and not remainder:
        configuration.set_hyperparameters(gradient_accumulation_steps=steps)


def _model_name(path: object, data: dict[str, Any]) -> str:
    """Return the name of the model: its path on the hub, or the name of the run, whose dots are dashes."""
    if isinstance(path, str) and path.strip():
        return path
    name = str(section(data, "run").get("name", ""))
    return re.sub(r"(?<=\d)-(?=\d)", ".", name.replace("-dot-", "."))


_OFFLOADS = ("param_offload", "optimizer_offload", "offload_policy")


_OF_SFT = {"data": {"micro_batch_size_per_gpu": 4, "train_batch_size": 256, "max_length": 1024}}
"""Defaults of ``sft_trainer.yaml`` of verl 0.5."""


def take_verl_command(configuration: Configuration, words: list[str]) -> None:
    """Take the options of a command of verl, ``python -m verl.trainer.main_ppo data.max_length=512``."""
    settings: dict[str, Any] = {}
    for name, value in (word.lstrip("+").split("=", 1) for word in words if "=" in word and "$" not in word):
        *path, last = name.split(".")
        table = settings
        for part in path:
            table = table.setdefault(part, {})
        number = digits_as_number(value)
        table[last] = {"true": True, "false": False}.get(value.lower(), number)
    if "actor_rollout_ref" in settings:
        engine = "fsdp" if "megatron" not in " ".join(words) else "megatron"
        settings["actor_rollout_ref"].setdefault("actor", {}).setdefault("strategy", engine)
    else:
        settings["data"] = _OF_SFT["data"] | settings.get("data", {})
        model = settings.setdefault("model", {})
        model.setdefault("path", model.get("partial_pretrain"))
        model.setdefault("enable_gradient_checkpointing", True)
        settings["engine"] = {"strategy": model.get("strategy", "fsdp2"), **model.get("fsdp_config", {})}
    nodes, devices = configuration.get("instance_count"), configuration.get("processes_per_host")
    settings.setdefault("trainer", {}).setdefault("nnodes", nodes)
    settings["trainer"].setdefault("n_gpus_per_node", devices or gpus_of(configuration)[1])
    configuration.set(read_with=("Options that the command does not pass have the defaults of verl.",))
    take_verl(configuration, {"training_config": settings})


def take_verl(configuration: Configuration, data: dict[str, Any]) -> None:
    """Take the settings of verl: of the trained model, which is the actor in reinforcement learning."""
    training, trainer = section(data, "training_config"), section(data, "trainer")
    samples, roles = section(training, "data"), section(training, "actor_rollout_ref")
    own = section(training, "trainer")
    devices = trainer.get("devices", own.get("n_gpus_per_node"))
    nodes = trainer.get("num_nodes", own.get("nnodes"))
    configuration.set(processes_per_host=devices, instance_count=nodes)
    if roles:
        actor, model = section(roles, "actor"), section(roles, "model")
        engine = {**section(actor, "fsdp_config"), "strategy": actor.get("strategy")}
        engine["ulysses_sequence_parallel_size"] = actor.get("ulysses_sequence_parallel_size", 1)
        per_gpu, total = actor.get("ppo_micro_batch_size_per_gpu"), actor.get("ppo_mini_batch_size")
        lengths = (samples.get("max_prompt_length"), samples.get("max_response_length"))
        length = sum(part for part in lengths if type(part) is int) or None
        configuration.title += " (actor)"
        configuration.set(shares_gpus="the rollout engine and the reference model")
    else:
        engine, model = section(training, "engine"), section(training, "model")
        per_gpu, total = samples.get("micro_batch_size_per_gpu"), samples.get("train_batch_size")
        length = samples.get("max_length")
    strategy = _verl_strategy(engine, devices, nodes)
    tokens, per_sample = count(samples.get("max_token_len_per_gpu")), count(length)
    if samples.get("use_dynamic_bsz") is True and not roles and tokens and per_sample:
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
    _set_batch(configuration, per_gpu, total)
    configuration.set_hyperparameters(
        precision="bf16",
        max_seq_length=length,
        activation_checkpointing="each" if model.get("enable_gradient_checkpointing") else "none",
        model_id=_model_name(model.get("path"), data),
    )
    if states:
        configuration.set(state_precision="16-bit")
    if count(rank := model.get("lora_rank")):
        targets = str(model.get("target_modules"))
        configuration.set(adapter="lora", adapter_rank=rank, adapter_targets=targets, adapter_dropout=0.0)
    if "dpo" in str(section(data, "run").get("name", "")).lower():
        configuration.set(trains_on_preferences=True)


def _verl_strategy(engine: dict[str, Any], devices: object, nodes: object) -> Strategy:
    target = str(engine.get("_target_", "")).rpartition(".")[2]
    kind, size = str(engine.get("strategy") or target or "without a name"), engine.get("fsdp_size", -1)
    name = "FSDP2" if kind == "fsdp2" else "FSDP"
    if kind.removesuffix("2") != SHARDS:
        return undescribed(f"verl's engine {kind}", "no library here has its parallelism")
    if (count(engine.get("ulysses_sequence_parallel_size")) or 1) > 1:
        return undescribed(f"{name} with sequence parallelism (Ulysses)", "FSDP here has none")
    if size not in (-1, None, devices):
        return undescribed(f"{name} over groups of {size} GPUs", "plans shard over all GPUs or over those of a node")
    sharding = "hybrid_shard" if size == devices and nodes != 1 else "full_shard"
    return fully_sharded(sharding, offloads=any(engine.get(part) is True for part in _OFFLOADS), name=name)


_MEGATRON = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


def configuration_of_recipe(table: Mapping) -> Configuration:
    recipe = table
    for name in ("recipes", "recipe"):
        recipe = inner_table(recipe, name) or recipe
    configuration = _of_kind(recipe)
    if configuration is None:
        inner_recipe = unwrapped(table)
        resolve(inner_recipe)
        configuration = configuration_of_smp_recipe(inner_recipe)
    for place in (table, recipe):
        if "instance_type" in place.entries:
            configuration.take(place, "instance_type")
    _instance(configuration, recipe)
    return configuration


def _of_kind(recipe: Mapping) -> Configuration | None:
    """Configuration of a recipe of another kind than SMP v2; None for that kind."""
    run, trainer, keys = inner_table(recipe, "run"), inner_table(recipe, "trainer"), recipe.entries.keys()
    kind = str(constant(run, "model_type"))
    if run is None and trainer is None:
        return None
    if {"evaluation", "llm_as_judge", "eval_metrics_config"} & keys and "schedule" not in keys:
        return _without_plan(recipe, "The evaluation recipe", "Evaluation", "it trains no model")
    if kind.startswith("amazon.nova"):
        why = "AWS publishes neither its shape nor its parallelism"
        return _without_plan(recipe, "The recipe of Amazon Nova", "Amazon Nova", why)
    if kind == "mtrl" or {"rollout", "rl"} <= keys:
        why = "a service of AWS runs the training and the rollouts, and the recipe has no parallelism"
        return _without_plan(recipe, "The multi-turn RL recipe", "Multi-turn reinforcement learning", why)
    if (strategy := inner_table(recipe, "strategy")) is not None and trainer is not None:
        values = {name: constant(strategy, name) for name in _MEGATRON}
        degrees = ", ".join(f"{name} {value}" for name, value in values.items() if value not in (None, 1))
        name = f"Megatron-Core of NeMo ({degrees or 'one GPU per model'})"
        return _without_plan(recipe, "The NeMo recipe", name, "no library here has its parallelism")
    if inner_table(inner_table(recipe, "training_config"), "training_args") is not None:
        resolve(recipe)
        return configuration_of_fine_tuning(recipe)
    if kind == "verl":
        resolve(recipe)
        take_verl(configuration := Configuration("recipe", "The verl recipe", recipe.span), plain_of(recipe))
        return configuration
    return None


def _without_plan(recipe: Mapping, title: str, name: str, why: str) -> Configuration:
    configuration = Configuration("recipe", title, recipe.span)
    configuration.use(undescribed(name, why))
    if (trainer := inner_table(recipe, "trainer")) is not None:
        configuration.take(trainer, "devices", "processes_per_host")
        configuration.take(trainer, "num_nodes", "instance_count")
    elif (run := inner_table(recipe, "run")) is not None and isinstance(run.get("replicas"), Constant):
        configuration.take(run, "replicas", "instance_count")
    return configuration


def _instance(configuration: Configuration, recipe: Mapping) -> None:
    """The instance, whose names in HyperPod have no ``ml.``; else the first of the supported ones with these GPUs."""
    setting = configuration.settings.get("instance_type")
    if setting is not None and isinstance(setting.value, str) and not setting.value.startswith("ml."):
        configuration.settings["instance_type"] = replace(setting, value=f"ml.{setting.value}")
    supported = recipe.get("instance_types")
    if setting is not None or not isinstance(supported, Collection) or configuration.strategy is None:
        return
    names = [item.value for item in supported.items if isinstance(item, Constant) and isinstance(item.value, str)]
    devices = configuration.get("processes_per_host")
    machines = {machine.name: machine for machine in instances()}
    for name in names:
        if name in machines and machines[name].gpus == devices:
            configuration.settings["instance_type"] = Setting(name, recipe.entries["instance_types"].span)
            if len(names) > 1:
                configuration.strategy = configuration.strategy.assuming(
                    f"The instance is {name}, the first of {len(names)} that the recipe supports with {devices} GPUs."
                )
            return
