"""Time of the host: kernels and collectives that it launches for one microbatch of one block.

Launches are asynchronous, so the GPU waits for the host only where a block's kernels take less time than their
launches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.costs.constants import constant, gpu_constant
from smp_advisor.elementwise import maximum, where

if TYPE_CHECKING:
    from smp_advisor.cluster.instance import Instance
    from smp_advisor.elementwise import Floats
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.block import Block
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.kernels import Kernels
    from smp_advisor.workload.model import Model
    from smp_advisor.workload.stack import Stack

__all__ = ["HostSeconds", "host_seconds", "optimizer_host_seconds"]

_CASTS = 3.0
"""Kernels that autocast adds to a product: casts of its input, weight and bias."""


@dataclass(frozen=True, slots=True)
class HostSeconds:
    """Seconds in which the host launches the work of one microbatch, shape (n,) each."""

    forward: Floats
    backward: Floats


def host_seconds(
    block: Block, kernels: Kernels, attention_launches: Floats, layout: Layout, instance: Instance, stack: Stack
) -> HostSeconds:
    """Seconds of the host for one block.

    Parameters
    ----------
    kernels
        The block's kernels in the stack's form.
    attention_launches
        Kernels of attention's core in a forward pass, shape (n,).
    """
    experts = max((matmul.experts for matmul in block.matmuls), default=1)
    local = maximum(experts / layout.expert_parallel_degree, 1.0)
    launches = kernels.products + kernels.launches + attention_launches + kernels.expert_launches * local
    if layout.state_bytes.cast_bytes > 0:
        launches = launches + _CASTS * kernels.products
    pace = gpu_constant("host_pace", instance.gpu)
    per_kernel = pace * stack.launch_share * constant("time.launch_seconds")
    collectives = (
        where(layout.tensor_parallel_degree > 1, block.all_reduces, 0)
        + where(layout.context_parallel_degree > 1, len(block.attentions), 0)
        + where((layout.expert_parallel_degree > 1) & (experts > 1), 2, 0)
    )
    exchanges = pace * constant("time.collective_launch_seconds") * collectives
    # A unit's parameters are gathered before, and freed after, each of its passes.
    units = pace * stack.unit_share * where(layout.shard_level == 3, constant("time.unit_seconds"), 0.0)
    return HostSeconds(
        forward=launches * per_kernel + exchanges + units,
        backward=kernels.backward_launches * launches * per_kernel + exchanges + units,
    )


_PER_TENSOR = {"loop": 11.0, "foreach": 0.5, "fused": 0.1, "backward": 11.0}
"""Kernels of Adam per parameter tensor, with its share of clipping. As a loop: decay, two averages of two operations,
root, quotient, sum, update, norm and scale (torch.optim.adamw, _single_tensor_adamw). ``foreach`` runs each operation
for some dozens of tensors at once, ``fused`` all operations."""
_TENSORS_OF_NORMS = 4


def optimizer_host_seconds(model: Model, layout: Layout, instance: Instance, job: Job, stack: Stack) -> Floats:
    """Seconds in which the host launches the optimizer's kernels, a lower limit of the optimizer step.

    Parameters that FSDP shards are one tensor per unit. Megatron, DeepSpeed and SMP v1 update one flat buffer if they
    shard the optimizer's state.
    """
    form = job.optimizer_step if job.optimizer_step != "auto" else stack.optimizer
    tensors = sum(group.count * (2 * group.block.separate.products + _TENSORS_OF_NORMS) for group in model.groups)
    of_units = where(layout.shard_level == 3, model.layer_count, 0)
    count = where(layout.shard_level == 0, tensors, of_units) / layout.pipeline_parallel_degree
    pace = gpu_constant("host_pace", instance.gpu)
    return count * _PER_TENSOR[form] * pace * constant("time.launch_seconds")
