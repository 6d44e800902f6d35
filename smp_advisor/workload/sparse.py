"""Mixture of experts: a router sends each token through some of many feed-forward layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.workload.block import Matmul
from smp_advisor.workload.part import Part

if TYPE_CHECKING:
    from smp_advisor.workload.activation import Activation

__all__ = ["gated_experts"]


def gated_experts(hidden: int, ffn: int, function: Activation, *, experts: int, chosen: int) -> Part:
    """Router and gated experts of which each token passes `chosen` (Jiang et al. 2024, arXiv 2401.04088).

    Keeps a copy of the token and the expert's output for every expert chosen, beside what a gated layer keeps. Every
    expert is divided by tensor parallelism; the router is replicated.
    """
    return Part(
        split_parameters=3 * hidden * ffn * experts,
        replicated_parameters=hidden * experts,
        matmuls=(
            Matmul(name="router", inputs=hidden, outputs=experts),
            Matmul(
                name="expert up and gate",
                inputs=hidden,
                outputs=2 * ffn,
                split="column",
                experts=experts,
                weights_per_token=chosen,
            ),
            Matmul(
                name="expert down",
                inputs=ffn,
                outputs=hidden,
                split="row",
                experts=experts,
                weights_per_token=chosen,
            ),
        ),
        split_elements=(function.kept + 3) * ffn * chosen,
        replicated_elements=2 * hidden * chosen,
        weight_split_elements=ffn * chosen,
        weight_replicated_elements=hidden * chosen,
        unfused_split_elements=function.unfused_kept * ffn * chosen,
        # Gather, weigh, scatter.
        traffic_elements=7 * hidden * chosen,
        split_traffic_elements=(function.traffic + 3) * ffn * chosen,
        unfused_split_traffic_elements=function.unfused_traffic * ffn * chosen,
    )
