"""Models, clusters and plans that the cost tests share."""

from typing import Any

from smp_advisor.cluster import Cluster
from smp_advisor.libraries import Plan
from smp_advisor.workload import Job, Model

P4D = "ml.p4d.24xlarge"


def gpt(
    layers: int = 48, hidden: int = 7168, heads: int = 64, vocab: int = 50_000, activation: str | None = None
) -> Model:
    """A GPT-2 shape; the default is AWS's 30 B row."""
    return Model.from_shape(
        layers=layers, hidden=hidden, heads=heads, vocab=vocab, max_positions=2048, activation=activation
    )


def row_30b(**changes: Any) -> tuple[Model, Cluster, Job, Plan]:
    """AWS's 30 B reference configuration, with changes."""
    settings = {"tensor_parallel_degree": 8, "shard_optimizer_state": True, "prescaled_batch": True, "fp16": True}
    plan = Plan(**{**settings, "activation_checkpointing": "each", "batch_size": 32, **changes})
    return gpt(), Cluster(P4D, 16), Job(sequence_length=512), plan


def a100s(usable_gib: float, *, gpus: int = 8, nodes: int = 1) -> Cluster:
    """Nodes of GPUs like an A100 with any memory."""
    return Cluster.custom(
        gpu="NVIDIA A100 80GB", usable_gpu_memory_gib=usable_gib, peak_tflops=312, gpus_per_node=gpus, nodes=nodes,
        intra_node_gb_per_s=600, inter_node_gbps=400,
    )  # fmt: skip
