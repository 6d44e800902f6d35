"""Time of attention's core on one GPU: scores, softmax and the product with the values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.costs.attention_rates import share_of_peak
from smp_advisor.costs.constants import constant
from smp_advisor.costs.products import product_seconds
from smp_advisor.costs.rates import memory_bandwidth, peak_flops
from smp_advisor.elementwise import anywhere, inverted, where

if TYPE_CHECKING:
    from smp_advisor.cluster.instance import Instance
    from smp_advisor.costs.world import World
    from smp_advisor.elementwise import Floats
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.block import Attention, Block
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.stack import Stack

__all__ = ["AttentionSeconds", "attention_seconds"]

_LAUNCHES = {"separate": 10, "fused-softmax": 6, "fused": 2}
"""Kernels of the forward pass. Separate: two products, three copies of queries, keys and values, scale, mask, softmax,
dropout, and the copy that joins the heads (transformers, eager_attention_forward). Fused softmax: scale, mask and
softmax are one, and heads need no copies (Megatron-LM, DotProductAttention). Fused: the kernel and one for its
statistics."""


@dataclass(frozen=True, slots=True)
class AttentionSeconds:
    """Seconds of one microbatch, and kernels, shape (n,) each."""

    forward: Floats
    backward: Floats
    launches: Floats
    """Of the forward pass."""

    def __add__(self, more: AttentionSeconds) -> AttentionSeconds:
        return AttentionSeconds(
            self.forward + more.forward, self.backward + more.backward, self.launches + more.launches
        )


def attention_seconds(
    block: Block, layout: Layout, world: World, instance: Instance, job: Job, stack: Stack
) -> AttentionSeconds:
    """Seconds of all attentions of a block."""
    total = AttentionSeconds(0.0, 0.0, 0.0)
    for attention in block.attentions:
        total = total + _seconds(attention, layout, world, instance, job, stack)
    return total


def _seconds(
    attention: Attention, layout: Layout, world: World, instance: Instance, job: Job, stack: Stack
) -> AttentionSeconds:
    if job.attention != "eager" and attention.fusible:
        return _fused(attention, layout, world, instance, job, stack)
    products = _score_products(attention, layout, world, instance, job)
    divided = layout.tensor_parallel_degree > 1
    if not anywhere(divided):
        return _stored(attention, layout, world, instance, stack.eager, products)
    # Layers that tensor parallelism divides are the library's own, which have a fused form of every attention.
    own = (
        _stored(attention, layout, world, instance, stack.divided.eager, products)
        if job.attention == "eager"
        else _fused(attention, layout, world, instance, job, stack.divided)
    )
    if not anywhere(inverted(divided)):
        return own
    stored = _stored(attention, layout, world, instance, stack.eager, products)
    return AttentionSeconds(
        where(divided, own.forward, stored.forward),
        where(divided, own.backward, stored.backward),
        where(divided, own.launches, stored.launches),
    )


def _fused(
    attention: Attention, layout: Layout, world: World, instance: Instance, job: Job, stack: Stack
) -> AttentionSeconds:
    """Seconds of one fused kernel, from its arithmetic only.

    Its backward pass recomputes the scores and has five products for two (Dao 2023, arXiv 2307.08691).
    """
    keys = attention.keys_per_query(world.sequence_length)
    # A causal kernel computes half of the square. A window limits it to a band.
    reach = min(attention.window or keys, keys)
    pairs = reach * (1 - reach / (2 * keys)) if attention.causal else float(reach)
    flops = 4 * attention.heads / layout.tensor_parallel_degree * attention.head_dim * world.microbatch_tokens * pairs
    peak = peak_flops(instance, job)

    def rate(kernel_stack: Stack, *, backward: bool) -> Floats:
        share = share_of_peak(
            kernel_stack.fused,
            instance.gpu,
            attention.head_dim,
            reach,
            causal=attention.causal,
            of="backward" if backward else "forward",
        )
        return peak * share

    forward, backward = (
        flops
        / (
            where(layout.tensor_parallel_degree > 1, rate(stack.divided, backward=of), rate(stack, backward=of))
            if stack.divided_by
            else rate(stack, backward=of)
        )
        for of in (False, True)
    )
    return AttentionSeconds(forward, 2.5 * backward, _LAUNCHES["fused"])


def _score_passes(attention: Attention, kernels: str) -> float:
    """How often the scores are read or written in a forward pass, in elements of the training dtype.

    The products write and read them. Fused, scale, mask and softmax read and write them once. As separate operations,
    scale and mask do so, too, and a softmax in fp32 writes 4 bytes and casts them back.
    """
    dropout = 2.5 if attention.dropout else 0.0
    if kernels == "fused-softmax":
        return 4 + dropout
    return 2 + 2 + 2 + (6 if attention.scores_in_fp32 else 2) + dropout


def _score_products(attention: Attention, layout: Layout, world: World, instance: Instance, job: Job) -> Floats:
    """Seconds of the products of queries with keys and of scores with values."""
    rows = world.sequence_length / layout.context_parallel_degree
    keys = float(attention.keys_per_query(world.sequence_length))
    width = float(attention.head_dim)
    copies = attention.heads / layout.tensor_parallel_degree * world.microbatch_samples
    return product_seconds(rows, keys, width, copies, instance, job, world.bytes_per_element) + product_seconds(
        rows, width, keys, copies, instance, job, world.bytes_per_element
    )


def _stored(
    attention: Attention, layout: Layout, world: World, instance: Instance, kernels: str, products: Floats
) -> AttentionSeconds:
    """Seconds of two products and of the element-wise operations on the scores between them."""
    heads = attention.heads / layout.tensor_parallel_degree
    keys = attention.keys_per_query(world.sequence_length)
    scores = heads * world.microbatch_tokens * keys * world.bytes_per_element
    moved = constant("time.score_passes") * _score_passes(attention, kernels) * scores
    if kernels == "separate":
        # Queries, keys and values of every head are copied for the product, and the heads are joined after it.
        moved = moved + 8 * heads * attention.head_dim * world.microbatch_tokens * world.bytes_per_element
    seconds = moved / memory_bandwidth(instance) + products
    return AttentionSeconds(seconds, 2 * seconds, _LAUNCHES[kernels])
