"""Plans that keep a whole replica, or a pipeline of stages, on each GPU, in the neutral form of the cost model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.costs.layout import Layout, checkpoint_layers
from smp_advisor.costs.recipe import amp, ddp, over_frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.library.plan import Plan
    from smp_advisor.workload.job import Job

__all__ = ["replicated", "smp_v1_tensorflow"]


def replicated(plans: Sequence[Plan], job: Job) -> Layout:
    """DDP, and Training Compiler, which is data-parallel too: autocast over fp32 parameters.

    What a compiled step keeps is the compiler's decision; it is taken to be what PyTorch keeps.
    """
    recipe = ddp(job) if plans and plans[0].library == "ddp" else amp(job)
    return Layout.of_columns(
        over_frozen(recipe, job),
        rows=len(plans),
        batch_samples=[p.batch_size * p.gradient_accumulation_steps for p in plans],
        microbatches=[p.gradient_accumulation_steps for p in plans],
        checkpoint_layers=[checkpoint_layers(p.activation_checkpointing) for p in plans],
    )


def smp_v1_tensorflow(plans: Sequence[Plan], job: Job) -> Layout:
    """SMP v1 with TensorFlow: a pipeline with Horovod's replicas; half precision is Keras's mixed_float16."""
    return Layout.of_columns(
        amp(job),
        rows=len(plans),
        pipeline_parallel_degree=[p.pipeline_parallel_degree for p in plans],
        batch_samples=[p.batch_size for p in plans],
        microbatches=[p.microbatches for p in plans],
        active_microbatches=[p.active_in_flight for p in plans],
        simple_pipeline=[p.pipeline == "simple" for p in plans],
        host_handover=True,
        spread_placement=[p.placement_strategy == "spread" for p in plans],
    )
