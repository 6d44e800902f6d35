"""HyperPod recipes of every kind: SMP v2 (to 1.3.3), LLM fine-tuning, verl, NeMo, Amazon Nova, evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.cluster.table import instances
from smp_advisor.estimators.configuration import Configuration, Setting
from smp_advisor.estimators.sources.recipe_fine_tuning import configuration_of_fine_tuning, is_fine_tuning
from smp_advisor.estimators.sources.recipe_smp import configuration_of_smp_recipe
from smp_advisor.estimators.sources.recipe_verl import configuration_of_verl
from smp_advisor.estimators.sources.yaml_values import resolve, unwrapped
from smp_advisor.estimators.strategy import Strategy, undescribed
from smp_advisor.reading.values import Collection, Constant, Mapping

if TYPE_CHECKING:
    from smp_advisor.reading.values import Value

__all__ = ["configuration_of_recipe"]

_OUTER = ("recipes", "recipe")
_MEGATRON = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


def configuration_of_recipe(table: Mapping) -> Configuration:
    """Read a recipe by its kind.

    Raises
    ------
    AdvisorError
        The text is not a recipe.
    """
    recipe = table
    for name in _OUTER:
        inner = recipe.get(name)
        recipe = inner if isinstance(inner, Mapping) else recipe
    kind = _text(_table(recipe, "run"), "model_type")
    own = _of_kind(kind, recipe)
    if own is None:
        inner_recipe = unwrapped(table)
        resolve(inner_recipe)
        configuration = configuration_of_smp_recipe(inner_recipe)
        configuration.take(table, "instance_type")
    else:
        configuration = own
        for place in (table, recipe):
            if "instance_type" in place.entries:
                configuration.take(place, "instance_type")
    _instance(configuration, recipe)
    return configuration


def _of_kind(kind: str, recipe: Mapping) -> Configuration | None:
    """Configuration of a recipe of another kind than SMP v2; None for that kind."""
    if not any(isinstance(recipe.get(name), Mapping) for name in ("run", "trainer")):
        return None
    if {
        "evaluation",
        "llm_as_judge",
        "eval_metrics_config",
    } & recipe.entries.keys() and "schedule" not in recipe.entries:
        return _without_plan(recipe, "The evaluation recipe", "Evaluation", "it trains no model")
    if kind.startswith("amazon.nova"):
        return _without_plan(
            recipe, "The recipe of Amazon Nova", "Amazon Nova", "AWS publishes neither its shape nor its parallelism"
        )
    if kind == "mtrl" or ("rollout" in recipe.entries and "rl" in recipe.entries):
        return _without_plan(
            recipe, "The multi-turn RL recipe", "Reinforcement learning of Amazon Nova", "AWS publishes no shape of it"
        )
    if isinstance(recipe.get("strategy"), Mapping) and isinstance(recipe.get("trainer"), Mapping):
        degrees = [
            f"{name} {value.value}"
            for name in _MEGATRON
            if isinstance(value := _table(recipe, "strategy").get(name), Constant) and value.value not in (None, 1)
        ]
        name = f"Megatron-Core of NeMo ({', '.join(degrees) or 'one GPU per model'})"
        return _without_plan(recipe, "The NeMo recipe", name, "no library here has its parallelism")
    if is_fine_tuning(recipe):
        resolve(recipe)
        return configuration_of_fine_tuning(recipe)
    if kind == "verl":
        resolve(recipe)
        return configuration_of_verl(recipe)
    return None


def _without_plan(recipe: Mapping, title: str, name: str, why: str) -> Configuration:
    configuration = Configuration("recipe", title, recipe.span)
    strategy: Strategy = undescribed(name, why)
    configuration.use(strategy)
    trainer = recipe.get("trainer")
    if isinstance(trainer, Mapping):
        configuration.take(trainer, "devices", "processes_per_host")
        configuration.take(trainer, "num_nodes", "instance_count")
    elif isinstance(run := recipe.get("run"), Mapping) and isinstance(run.get("replicas"), Constant):
        configuration.take(run, "replicas", "instance_count")
    return configuration


def _instance(configuration: Configuration, recipe: Mapping) -> None:
    """The instance, whose names in HyperPod have no ``ml.``; else the first of the supported ones with these GPUs."""
    setting = configuration.settings.get("instance_type")
    if setting is not None and isinstance(setting.value, str) and not setting.value.startswith("ml."):
        configuration.settings["instance_type"] = Setting(
            f"ml.{setting.value}", setting.span, setting.table, setting.key
        )
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


def _table(table: Mapping, name: str) -> Mapping:
    inner = table.get(name)
    return inner if isinstance(inner, Mapping) else Mapping({})


def _text(table: Mapping, name: str) -> str:
    value: Value | None = table.get(name)
    return str(value.value) if isinstance(value, Constant) else ""
