"""A plan of SMP v2 as the override of a HyperPod recipe."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml

from smp_advisor.errors import ExportError
from smp_advisor.export import checks, header
from smp_advisor.export.cluster_job import cluster_facts

if TYPE_CHECKING:
    from smp_advisor.export.cluster_job import ClusterJob
    from smp_advisor.workload.model import Model

__all__ = ["recipe_override"]


def recipe_override(job: ClusterJob, model: Model, sequence_length: int) -> str:
    """The keys of a recipe that differ with the plan, the model and the cluster, as YAML.

    Raises
    ------
    ExportError
        The plan is not one of SMP v2, the model is of another family than the recipes', or the plan is not expected to
        run.
    """
    content, facts = job.launch, cluster_facts()["recipe"]
    plan, machine = content.plan, content.cluster.instance
    checks.sagemaker_instance(content.cluster)
    if not (content.library.smdistributed and content.torchrun):
        raise ExportError(
            f"HyperPod recipes that train a model from its shape use SMP v2, not {content.library.title}: set"
            " library='smp-v2', or export a Kubernetes or Slurm job."
        )
    if model.family not in facts["model_types"]:
        raise ExportError(
            f"HyperPod recipes train {', '.join(facts['model_types'])}, not {model.family}: choose one of these"
            " families, or export the estimator."
        )
    if plan.gradient_accumulation_steps > 1:
        raise ExportError(
            f"HyperPod recipes accumulate no gradients, and the plan does over {plan.gradient_accumulation_steps}"
            " batches: set gradient_accumulation_steps=1."
        )
    if job.objection:
        raise ExportError(f"A recipe cannot stop a job that is not expected to train: {job.objection}")
    shape, configuration = model.shape, json.loads(model.config_json or "{}")
    parameters = {
        facts["parameters"][name]: value for name, value in plan.parameters.items() if name in facts["parameters"]
    }
    settings = plan.hyperparameters
    override: dict[str, Any] = {
        "run": {"name": job.name},
        "instance_type": machine.name.removeprefix("ml."),
        "trainer": {
            "devices": machine.gpus,
            "num_nodes": content.cluster.nodes,
            "precision": {"fp16": 16, "fp32": 32}.get(str(settings["precision"]), "bf16"),
            "max_steps": content.run.steps,
        },
        "use_smp_model": True,
        "distributed_backend": settings["distributed_backend"],
        "model": {
            "model_type": facts["model_types"][model.family],
            "train_batch_size": settings["batch_size"],
            **parameters,
            "activation_checkpointing": settings["activation_checkpointing"] != "none",
            "offload_activations": bool(settings["offload_activations"]),
            "sharding_strategy": settings["sharding_strategy"],
            "delayed_param": bool(settings["delayed_parameter_initialization"]),
            "fp8": bool(settings["fp8"]),
            "max_context_width": sequence_length,
            "num_hidden_layers": shape.layers,
            "hidden_size": shape.hidden,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "intermediate_size": shape.ffn,
            "vocab_size": shape.vocab,
        },
    }
    for key in ("num_local_experts", "num_experts_per_tok", "rope_theta"):
        if key in configuration:
            override["model"][key] = configuration[key]
    if job.options.data is not None:
        override["model"]["data"] = {"train_dir": job.options.data, "use_synthetic_data": False}
    head = [
        *header.summary_lines(content),
        "# Merge it over the recipe of this model family; keys that it does not have stay those of the recipe.",
    ]
    body = yaml.safe_dump(override, sort_keys=False, allow_unicode=True, width=120)
    return "\n".join(head) + f"\n{body}"
