"""Mixture of experts: a router sends each token to some of many feed-forward layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.workload.block import Matmul
from smp_advisor.workload.kernels import Kernels
from smp_advisor.workload.part import Part

if TYPE_CHECKING:
    from smp_advisor.workload.activation import Activation

__all__ = ["gated_experts"]


def gated_experts(
    hidden: int, ffn: int, function: Activation, experts: int, experts_per_token: int, *, clamped: bool = False
) -> Part:
    """Router and gated experts (Jiang et al. 2024, arXiv 2401.04088).

    Each of a token's experts saves a copy of the token and the expert's output, in addition to the tensors of a gated
    layer. Tensor parallelism divides every expert and replicates the router.

    Parameters
    ----------
    clamped
        Whether router and experts have biases, and both projections are clamped before a gate of separate operations
        (gpt-oss). Its code then saves the joint product, the clamped gate and its sigmoid, both factors, their product.
    """
    uses = experts_per_token
    saved = 7 if clamped else function.saved + 3
    biases = experts * (2 * ffn + hidden + 1) if clamped else 0
    return Part(
        split_parameters=3 * hidden * ffn * experts,
        replicated_parameters=hidden * experts + biases,
        matmuls=(
            Matmul(name="router", inputs=hidden, outputs=experts),
            Matmul(
                name="expert up and gate",
                inputs=hidden,
                outputs=2 * ffn,
                split="column",
                experts=experts,
                weights_per_token=uses,
                gate_outputs=ffn,
            ),
            Matmul(
                name="expert down",
                inputs=ffn,
                outputs=hidden,
                split="row",
                experts=experts,
                weights_per_token=uses,
            ),
        ),
        split_elements=saved * ffn * uses,
        replicated_elements=2 * hidden * uses,
        separate_expert_elements=hidden * uses,
        weight_split_elements=ffn * uses,
        weight_replicated_elements=hidden * uses,
        unfused_split_elements=function.unfused_saved * ffn * uses,
        # Gather, weight, scatter. A loop over the experts selects, projects, activates, weights and adds for each of
        # them (transformers, modeling_mixtral.py). Grouped code has one call per product, with a kernel, the slices of
        # its operands and a hook of its gradient per expert, and about 60 kernels to choose experts, balance their
        # loads, and sort, exchange and restore tokens (Megatron-Core: router.py, token_dispatcher.py). Read from the
        # code, not measured.
        separate=Kernels(
            elements=7 * hidden * uses,
            split_elements=(function.traffic + 3 + function.unfused_traffic) * ffn * uses,
            products=1,
            launches=8,
            expert_launches=10,
        ),
        fused=Kernels(
            elements=7 * hidden * uses,
            split_elements=3 * ffn * uses,
            products=1,
            launches=60,
            expert_launches=8,
        ),
    )
