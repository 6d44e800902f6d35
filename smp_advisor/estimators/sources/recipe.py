"""HyperPod recipes: YAML, read as plain data only."""

from __future__ import annotations

import re
from typing import Any

import yaml

from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.configuration import Configuration, Gap, Setting, why_not
from smp_advisor.estimators.sources.peft import read_peft
from smp_advisor.libraries.registry import library_with
from smp_advisor.reading.source import Span
from smp_advisor.reading.values import Collection, Constant, Entry, Mapping, Unknown, Value

__all__ = ["configuration_of_recipe", "yaml_table"]

_LARGEST = 200_000
_MOST_NODES = 10_000
"""Values and keys of a recipe; an alias counts with all of its values."""
_LONGEST_NUMBER = 40
_DEEPEST = 40
_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
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
_WRAPPERS = ("recipes", "training_config", "recipe")


def yaml_table(text: str) -> Mapping:
    """Read YAML text as a table with places.

    Raises
    ------
    AdvisorError
        Where it is not YAML of plain data, or no mapping.
    """
    if len(text) > _LARGEST:
        raise AdvisorError(f"The text is longer than {_LARGEST:,} characters, too long for a recipe.")
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            loader.nodes = 0
            value = _value(node, loader, 0) if node is not None else None
        finally:
            loader.dispose()
    except AdvisorError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise AdvisorError(f"The recipe is not valid YAML{where} ({problem}): paste the complete file.") from None
    if not isinstance(value, Mapping):
        raise AdvisorError("The text is not a recipe: a recipe is a mapping with trainer and model.")
    return value


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """Counts the nodes of a text while it is read, and again with its aliases followed."""

    nodes = 0
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.count()
        self.depth += 1
        if self.depth > _DEEPEST:
            raise AdvisorError(f"The recipe is nested more than {_DEEPEST} levels deep: paste only one recipe.")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def count(self) -> None:
        self.nodes += 1
        if self.nodes > _MOST_NODES:
            raise AdvisorError(
                f"The recipe has more than {_MOST_NODES:,} values, aliases included: paste only one recipe."
            )


def _value(node: yaml.Node, loader: _Loader, depth: int) -> Value:
    loader.count()
    if depth > _DEEPEST:
        raise yaml.YAMLError  # a cyclic alias, or a text that is slow on purpose
    if not str(node.tag).startswith("tag:yaml.org,2002:") or ":python" in str(node.tag):
        raise yaml.constructor.ConstructorError(None, None, f"the tag {node.tag} is not plain data", node.start_mark)
    span = Span(node.start_mark.index, node.end_mark.index)
    if isinstance(node, yaml.MappingNode):
        table = Mapping({}, span)
        for key, inner in node.value:
            value = _value(inner, loader, depth + 1)
            name = loader.construct_object(key) if isinstance(key, yaml.ScalarNode) else None
            value_span = Span(inner.start_mark.index, inner.end_mark.index)
            key_span = Span(key.start_mark.index, key.end_mark.index)
            table.entries[name] = Entry(value, Span(key_span.start, value_span.end), value_span, key_span)
        return table
    if isinstance(node, yaml.SequenceNode):
        return Collection([_value(inner, loader, depth + 1) for inner in node.value], span)
    if node.tag.endswith((":int", ":float")) and len(node.value) > _LONGEST_NUMBER:
        raise yaml.constructor.ConstructorError(None, None, "a number is too long", node.start_mark)
    return Constant(loader.construct_object(node), span)


def configuration_of_recipe(table: Mapping) -> Configuration:
    """Read a recipe: parameters of SMP v2 by their names there."""
    recipe = _unwrapped(table)
    configuration = Configuration("recipe", "The recipe", recipe.span)
    trainer, model = recipe.get("trainer"), recipe.get("model")
    if not isinstance(trainer, Mapping) or not isinstance(model, Mapping):
        raise AdvisorError("The text is not a recipe: a recipe is a mapping with trainer and model.")
    _resolve(recipe)
    configuration.tables |= {"trainer": trainer, "model": model}
    configuration.take(trainer, "devices", "processes_per_host")
    configuration.take(trainer, "num_nodes", "instance_count")
    configuration.take(table, "instance_type")
    _instance(configuration)
    for key, name in _PARAMETERS.items():
        _move(configuration, configuration.parameters, model, key, name)
    for name in ("hybrid_shard_degree", "tensor_parallel_degree", "context_parallel_degree", "expert_parallel_degree"):
        if name in configuration.parameters and configuration.parameters[name].value is None:
            del configuration.parameters[name]
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
    if used.value is not True:
        configuration.settings["replaces_model"] = Setting(value=False, span=recipe.entries["use_smp_model"].span)
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


def _instance(configuration: Configuration) -> None:
    """HyperPod instance types have no ``ml.``."""
    setting = configuration.settings.get("instance_type")
    if setting is not None and isinstance(setting.value, str) and not setting.value.startswith("ml."):
        configuration.settings["instance_type"] = Setting(
            f"ml.{setting.value}", setting.span, setting.table, setting.key
        )


def _unwrapped(table: Mapping) -> Mapping:
    for name in _WRAPPERS:
        inner = table.get(name)
        if isinstance(inner, Mapping):
            return _unwrapped(inner)
    return table


def _resolve(recipe: Mapping) -> None:
    """Replace references such as ``${.sibling}`` and ``${recipes.trainer.precision}`` with their values."""

    def visit(table: Mapping, depth: int) -> None:
        for entry in table.entries.values():
            if isinstance(entry.value, Mapping) and depth < _DEEPEST:
                visit(entry.value, depth + 1)
            elif isinstance(entry.value, Constant) and isinstance(entry.value.value, str):
                entry.value = _referred(recipe, table, entry.value)

    visit(recipe, 0)


def _referred(recipe: Mapping, table: Mapping, value: Constant) -> Value:
    match = _REFERENCE.fullmatch(str(value.value).strip())
    if match is None:
        reference = _REFERENCE.search(str(value.value))
        return value if reference is None else Unknown(f"it refers to {reference.group(0)}")
    visited: set[str] = set()
    path, home = match.group(1), table
    while path not in visited:
        visited.add(path)
        owner: Value | None = home if path.startswith(".") else recipe
        parts = path.removeprefix(".").split(".")
        if not path.startswith(".") and parts[0] in _WRAPPERS:
            parts = parts[1:]
        for part in parts[:-1]:
            owner = owner.get(part) if isinstance(owner, Mapping) else None
        target = owner.get(parts[-1]) if isinstance(owner, Mapping) else None
        if not isinstance(target, Constant):
            break
        again = _REFERENCE.fullmatch(str(target.value).strip())
        if again is None:
            return Constant(target.value, value.span)
        path, home = again.group(1), owner if isinstance(owner, Mapping) else recipe
    return Unknown(f"it refers to {match.group(0)}")
