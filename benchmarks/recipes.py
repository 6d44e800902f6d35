"""Compare recommendations with AWS's HyperPod recipes: pre-training and full fine-tuning with SMP v2.

    python benchmarks/recipes.py FOLDER

FOLDER has the recipes of aws/sagemaker-hyperpod-recipes at the commit before c0c8a28 (later ones have no SMP v2). Each
recipe's plan is estimated, and the advisor recommends a plan with the recipe's global batch and with a free one.
Where the recipe's plan fits with a probability of less than 95 %, plans with that probability count: AWS knows that its
plan runs, the cost model does not. The exit status is 1 if a recipe's plan does not fit, if a recommendation has less
than 0.98 of the speed of the recipe's plan by the cost model, or if it communicates over more nodes without a gain of
5 %.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

sys.path.insert(0, str(Path(__file__).parent.parent))

from smp_advisor.advice.recommendation import advise
from smp_advisor.cluster import Cluster
from smp_advisor.costs import Estimate, estimate
from smp_advisor.costs.world import World
from smp_advisor.libraries import Plan
from smp_advisor.libraries.layout import layout_of
from smp_advisor.search.rank import communication_span
from smp_advisor.workload import Job, Model

__all__ = ["Comparison", "Recipe", "compare", "main", "read_recipes"]

LEAST_SHARE = 0.98
LEAST_GAIN = 1.05
USUAL_PROBABILITY = 0.95
_FAMILIES = {"llama_v3": "llama", "mistral": "mistral", "mixtral": "mixtral"}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe as a request and a plan."""

    name: str
    model: Model
    cluster: Cluster
    job: Job
    plan: Plan


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A recommendation next to the recipe's plan."""

    recipe: Recipe
    batch: Literal["fixed", "free"]
    aws: Estimate
    chosen: Estimate
    aws_nodes: int
    """Nodes over which the widest group of the recipe's plan communicates."""
    nodes: int

    @property
    def share(self) -> float:
        """Speed of the recommendation over that of the recipe's plan."""
        return self.chosen.tokens_per_second / self.aws.tokens_per_second

    @property
    def failures(self) -> list[str]:
        """Conditions that do not hold."""
        conditions = {
            "the recipe does not fit": self.aws.fits,
            "slower": self.share >= LEAST_SHARE,
            "wider communication": self.nodes <= self.aws_nodes or self.share >= LEAST_GAIN,
        }
        return [name for name, holds in conditions.items() if not holds]


def read_recipes(folder: Path) -> list[Recipe]:
    """The recipes of SMP v2 that train all parameters and have the shape of their model."""
    recipes = []
    for path in sorted(folder.rglob("*.yaml")):
        table = yaml.safe_load(path.read_text("utf-8"))
        model = table.get("model") if isinstance(table, dict) else None
        if (
            isinstance(model, dict)
            and table.get("use_smp_model") is True
            and "num_hidden_layers" in model
            and not (model.get("peft") or {}).get("peft_type")
            and model.get("model_type") in _FAMILIES
        ):
            recipes.append(_recipe(path, table, model))
    return recipes


def _recipe(path: Path, table: dict[str, Any], model: dict[str, Any]) -> Recipe:
    family = _FAMILIES[model["model_type"]]
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    experts = ("num_local_experts", "num_experts_per_tok") if family == "mixtral" else ()
    config = {name: model[name] for name in (*names, *experts, "vocab_size")}
    sequence = model["max_context_width"]
    degrees = {
        "tensor_parallel_degree": model.get("tensor_model_parallel_degree") or 1,
        "context_parallel_degree": model.get("context_parallel_degree") or 1,
        "expert_parallel_degree": model.get("expert_model_parallel_degree") or 1,
    }
    offloads = bool(model.get("offload_activations"))
    return Recipe(
        name=path.stem.removeprefix("hf_").replace("_gpu", "").replace("deepseek_r1_distilled", "deepseek"),
        model=Model.from_config({"model_type": family, "max_position_embeddings": sequence, **config}),
        # The recipes for p4 name no instance either; 70 B with 8,192 tokens needs the GPUs with 80 GB.
        cluster=Cluster(
            "ml.p4de.24xlarge" if path.stem.startswith("p4") else "ml.p5.48xlarge", table["trainer"]["num_nodes"]
        ),
        job=Job(
            sequence_length=sequence,
            precision="bf16",
            fp8=bool(model.get("fp8")),
            training="fine-tuning" if model.get("do_finetune") else "pretraining",
            attention="fused",
        ),
        plan=Plan(
            library="smp-v2",
            precision="bf16",
            fp8=bool(model.get("fp8")),
            hybrid_shard_degree=model["shard_degree"],
            batch_size=model["train_batch_size"],
            activation_checkpointing="each" if model.get("activation_checkpointing") else False,
            offload_activations=offloads,
            sm_activation_offloading=offloads,
            delayed_parameter_initialization=bool(model.get("delayed_param")),
            **degrees,
        ),
    )


def compare(recipe: Recipe, batch: Literal["fixed", "free"]) -> Comparison:
    """Compare a recommendation with the recipe."""
    model, cluster = recipe.model, recipe.cluster
    aws = estimate(model, cluster, recipe.job, recipe.plan)
    fields = {name: getattr(recipe.job, name) for name in ("sequence_length", "fp8", "training", "attention")}
    fixed = {"global_batch_size": aws.global_batch_size} if batch == "fixed" else {}
    probability = min(USUAL_PROBABILITY, aws.fit_probability * (1 - 1e-9))
    advice = advise(
        model, cluster, library="smp-v2", precision="bf16", min_fit_probability=probability, **fields, **fixed
    )
    return Comparison(
        recipe=recipe,
        batch=batch,
        aws=aws,
        chosen=advice.estimate,
        aws_nodes=_nodes(recipe, recipe.plan),
        nodes=_nodes(recipe, advice.plan),
    )


def _nodes(recipe: Recipe, plan: Plan) -> int:
    layout = layout_of([plan], recipe.job, recipe.cluster)
    world = World.of(recipe.model, recipe.cluster, recipe.job, layout)
    return math.ceil(int(communication_span(world, layout)[0]) / recipe.cluster.instance.gpus)


def _described(value: Estimate) -> str:
    plan: Any = value.plan
    parts = [f"shard {plan.hybrid_shard_degree}"]
    degrees = {name: getattr(plan, f"{name}_parallel_degree") for name in ("tensor", "context", "expert")}
    parts += [f"{name[0]}p {degree}" for name, degree in degrees.items() if degree > 1]
    parts += ["checkpointing"] if plan.activation_checkpointing else []
    parts += ["offloading"] if plan.offload_activations else []
    return f"{', '.join(parts)}; {value.global_batch_size:,} x"


def main(folder: str) -> int:
    """Print the table."""
    recipes, failures = read_recipes(Path(folder)), 0
    print("| recipe | AWS's plan | fits | batch | recommendation | speed | nodes | |\n" + "| --- " * 8 + "|")
    for recipe in recipes:
        for batch in ("fixed", "free"):
            result = compare(recipe, batch)
            failures += bool(result.failures)
            fits = f"{result.aws.fit_probability:.2f}"
            print(
                f"| {recipe.name} | {_described(result.aws)} | {fits} | {batch} | {_described(result.chosen)} "
                f"| {result.share:.3f} | {result.nodes} (vs {result.aws_nodes}) | {', '.join(result.failures)} |"
            )
    print(f"\n{len(recipes)} recipes, {2 * len(recipes)} comparisons, {failures} with a condition that does not hold")
    return 1 if failures or not recipes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
