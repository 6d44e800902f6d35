"""SMP v1 with PyTorch."""

from smp_advisor.libraries.library import Library
from smp_advisor.libraries.smp_v1.controls import CONTROLS, SmpV1Controls
from smp_advisor.libraries.smp_v1.layout import layout
from smp_advisor.libraries.smp_v1.mismatches import cluster_mismatches, model_mismatches
from smp_advisor.libraries.smp_v1.plan import SmpV1Plan
from smp_advisor.libraries.smp_v1.space import space

__all__ = ["LIBRARY"]

LIBRARY = Library(
    name="smp-v1",
    package=__name__,
    plan=SmpV1Plan,
    layout=layout,
    stack="smp-v1",
    space=space,
    cluster_mismatches=cluster_mismatches,
    model_mismatches=model_mismatches,
    launcher="mpi",
    default_precision="fp16",
    half_precision="fp16",
    default_attention="eager",
    smdistributed=True,
    script="smp_step",
    training_settings=frozenset({"loss"}),
    restricts_families=True,
    shard_field="sharded_data_parallel_degree",
    shards_beside=("pipeline_parallel_degree", "tensor_parallel_degree"),
    controls=CONTROLS,
    control_codec=SmpV1Controls(),
    reported=(
        "tensor_parallel_degree",
        "pipeline_parallel_degree",
        "sharded_data_parallel_degree",
        "shard_optimizer_state",
        "activation_checkpointing",
        "offload_activations",
        "batch_size",
        "microbatches",
        "active_microbatches",
    ),
    alternatives=(
        "tensor_parallel_degree",
        "pipeline_parallel_degree",
        "sharded_data_parallel_degree",
        "shard_optimizer_state",
        "activation_checkpointing",
        "offload_activations",
        "microbatches",
    ),
)
