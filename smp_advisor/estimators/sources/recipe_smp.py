"""HyperPod recipes up to 1.3.3, and their custom models: SMP v2 with its degrees in the model."""

from __future__ import annotations

from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.configuration import Configuration, Gap, Setting, why_not
from smp_advisor.estimators.sources.peft import read_peft
from smp_advisor.libraries.registry import library_with
from smp_advisor.reading.values import Constant, Mapping

__all__ = ["configuration_of_smp_recipe"]

_PARAMETERS = {
    "shard_degree": "hybrid_shard_degree",
    "tensor_model_parallel_degree": "tensor_parallel_degree",
    "expert_model_parallel_degree": "expert_parallel_degree",
    "context_parallel_degree": "context_parallel_degree",
    "activation_loading_horizon": "activation_loading_horizon",
}
"""Names in a recipe and those of the library."""
_SETTINGS = (
    "train_batch_size",
    "activation_checkpointing",
    "offload_activations",
    "delayed_param",
    "sharding_strategy",
    "fp8",
)
_SHAPE = {
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_width",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_key_value_heads",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_context_width": "max_context_width",
    "model_type": "model_type",
    "num_local_experts": "num_local_experts",
    "num_experts_per_tok": "num_experts_per_tok",
}


def configuration_of_smp_recipe(recipe: Mapping) -> Configuration:
    """Read a recipe: parameters of SMP v2 by their names there."""
    configuration = Configuration("recipe", "The recipe", recipe.span)
    trainer, model = recipe.get("trainer"), recipe.get("model")
    if not isinstance(trainer, Mapping) or not isinstance(model, Mapping):
        raise AdvisorError("The text is not a recipe: a recipe is a mapping with trainer and model.")
    configuration.tables |= {"trainer": trainer, "model": model}
    configuration.take(trainer, "devices", "processes_per_host")
    configuration.take(trainer, "num_nodes", "instance_count")
    for key, name in _PARAMETERS.items():
        _move(configuration, configuration.parameters, model, key, name)
    for key in _SETTINGS:
        _move(configuration, configuration.hyperparameters, model, key, key)
    for key, name in _SHAPE.items():
        _move(configuration, configuration.hyperparameters, model, key, name)
    _precision(configuration, trainer)
    read_peft(configuration, model)
    configuration.take(_table(model, "dpo"), "enabled", "trains_on_preferences")
    used = recipe.get("use_smp_model")
    if not isinstance(used, Constant):
        configuration.library = None  # NeMo's own recipes, and those for Trainium
        return configuration
    # SMP v2 divides the model over shard_degree GPUs either way: the training adapter always passes the degrees to it
    # (aws/sagemaker-hyperpod-training-adapter-for-nemo 1.4.0, collections/parts/fsdp_strategy.py, _setup_smp_config).
    configuration.library = library_with(smdistributed=True, launcher="torchrun", divides_model=True).name
    configuration.settings["modelparallel"] = Setting(value=True, span=recipe.span)
    configuration.settings["torch_distributed"] = Setting(value=True, span=recipe.span)
    configuration.settings["replaces_model"] = Setting(
        used.value is True, recipe.entries["use_smp_model"].span, recipe, "use_smp_model"
    )
    if used.value is not True:
        configuration.hyperparameters.pop("fp8", None)  # has no effect without the library's model
    return configuration


def _move(configuration: Configuration, into: dict[str, Setting], table: Mapping, key: str, name: str) -> None:
    entry = table.entries.get(key)
    if entry is None:
        return
    if isinstance(entry.value, Constant):
        if entry.value.value is not None:
            into[name] = Setting(entry.value.value, entry.span, table, key)
    else:
        why = why_not(entry.value, "it is not a single value")
        configuration.gaps.append(Gap(name, why, entry.span))


def _precision(configuration: Configuration, trainer: Mapping) -> None:
    """Lightning's names of precisions as those of plans."""
    precision = trainer.entries.get("precision")
    if precision is not None and isinstance(precision.value, Constant):
        text = str(precision.value.value).removesuffix("-mixed")
        configuration.hyperparameters["precision"] = Setting(
            {"16": "fp16", "32": "fp32"}.get(text, text), precision.span, trainer, "precision"
        )


def _table(table: Mapping, key: str) -> Mapping | None:
    inner = table.get(key)
    return inner if isinstance(inner, Mapping) else None
