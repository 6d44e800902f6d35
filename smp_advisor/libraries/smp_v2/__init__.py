"""SMP v2, which is based on PyTorch FSDP."""

from smp_advisor.libraries.library import SHARDED_SETTINGS, Library
from smp_advisor.libraries.smp_v2.follow_ups import follow_ups
from smp_advisor.libraries.smp_v2.layout import layout
from smp_advisor.libraries.smp_v2.mismatches import cluster_mismatches, model_mismatches
from smp_advisor.libraries.smp_v2.plan import SmpV2Plan
from smp_advisor.libraries.smp_v2.space import space

__all__ = ["LIBRARY"]

_CONTROLS = (
    "hybrid_shard_degree",
    "tensor_parallel_degree",
    "context_parallel_degree",
    "expert_parallel_degree",
    "activation_checkpointing",
    "offload_activations",
    "batch_size",
    "gradient_accumulation_steps",
)

LIBRARY = Library(
    name="smp-v2",
    package=__name__,
    plan=SmpV2Plan,
    layout=layout,
    stack="smp-v2",
    space=space,
    cluster_mismatches=cluster_mismatches,
    model_mismatches=model_mismatches,
    smdistributed=True,
    # With tensor parallelism, ``fully_shard`` is used, which also shards divided tensors.
    flat_parameters=lambda plan: plan.tensor_parallel_degree == 1,
    adapters=True,
    training_settings=SHARDED_SETTINGS,
    inferred_family="llama",
    restricts_families=True,
    shard_field="hybrid_shard_degree",
    shards_beside=("tensor_parallel_degree", "expert_parallel_degree"),
    follow_ups=follow_ups,
    controls=_CONTROLS,
    alternatives=tuple(name for name in _CONTROLS if name != "batch_size"),
)
