"""Time of copies between GPU and host that compute does not hide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.costs.activations import offloaded_activation_bytes
from smp_advisor.costs.constants import constant
from smp_advisor.costs.partition import stage_kinds
from smp_advisor.costs.state import owned_parameters, vocabulary_shards
from smp_advisor.elementwise import anywhere, largest, maximum, minimum, where

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.state import LocalParameters
    from smp_advisor.costs.world import World
    from smp_advisor.elementwise import Floats
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.model import Model


__all__ = ["activation_copy_seconds", "state_copy_seconds"]


def state_copy_seconds(
    cluster: Cluster, layout: Layout, world: World, local: LocalParameters, compute: Floats
) -> Floats:
    """Seconds of copies of state in host memory that compute does not hide.

    Every microbatch copies the shard of the parameters to the GPU twice, for the forward and the backward pass, and its
    gradients to the host.
    """
    if not anywhere(layout.offload_state):
        return 0.0
    state = layout.state_bytes
    moved = (2 * state.parameter_bytes + state.gradient_bytes) * owned_parameters(local, layout, world)
    seconds = layout.microbatches * moved / (cluster.instance.host_link_gb_per_s * 1e9)
    exposed: Floats = maximum(seconds - constant("time.overlap") * compute, 0.0)
    return where(layout.offload_state, exposed, 0.0)


def activation_copy_seconds(
    model: Model, cluster: Cluster, layout: Layout, world: World, degree: int, compute: Floats
) -> Floats:
    """Seconds of copies of activations to the host and back that compute does not hide.

    The libraries' own offloading copies next to compute. PyTorch's ``offload_wrapper`` copies while the GPU waits
    (``save_on_cpu`` without its own stream), and what is saved outside the checkpointed blocks as well: the head's
    weight and two fp32 tensors of logits.
    """
    if not anywhere(layout.offload_activations):
        return 0.0
    moved = largest([offloaded_activation_bytes(model, layout, world, stage) for stage in stage_kinds(model, degree)])
    # Host memory has room for one round of microbatches in flight. Every microbatch of the step is copied through it.
    rounds = layout.microbatches / maximum(minimum(layout.active_microbatches, layout.microbatches), 1)
    link = cluster.instance.host_link_gb_per_s * 1e9
    seconds = 2 * moved * rounds / link
    exposed: Floats = maximum(seconds - constant("time.overlap") * compute, 0.0)
    if not anywhere(layout.blocking_offload):
        return exposed
    blocking = seconds + 2 * layout.microbatches * _saved_head_bytes(model, layout, world) / link
    return where(layout.blocking_offload & layout.offload_activations, blocking, exposed)


def _saved_head_bytes(model: Model, layout: Layout, world: World) -> Floats:
    """Bytes that the backward pass of a microbatch needs from the head and the loss."""
    columns = model.head.outputs / vocabulary_shards(model, layout)
    rows = world.microbatch_tokens if model.head.per_token else world.microbatch_samples
    return columns * (world.bytes_per_element * model.shape.hidden + 2 * 4 * rows)
