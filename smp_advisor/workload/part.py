"""The contribution of one layer to a block. Parts add up to a block."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from smp_advisor.workload.block import Block, SavedActivations
from smp_advisor.workload.kernels import NOTHING, Kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.workload.block import Attention, Matmul

__all__ = ["Part", "assemble"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Parameters, work and saved tensors of one layer, per token where they depend on tokens.

    In Megatron's scheme, tensor parallelism divides "split" figures. Every rank has "replicated" figures in full.
    """

    split_parameters: int = 0
    replicated_parameters: int = 0
    matmuls: tuple[Matmul, ...] = ()
    attentions: tuple[Attention, ...] = ()
    split_elements: float = 0
    """Elements of the training dtype that autograd saves."""
    replicated_elements: float = 0
    split_bytes: float = 0
    """Saved bytes that do not depend on the dtype."""
    replicated_bytes: float = 0
    unfused_split_elements: float = 0
    eager_split_elements: float = 0
    """Additional elements that eager attention saves."""
    half_replicated_bytes: float = 0
    """Additional bytes saved in half precision."""
    autocast_replicated_bytes: float = 0
    """Additional bytes saved under autocast over fp32 parameters."""
    separate_expert_elements: float = 0
    """Of `replicated_elements`, outputs of experts that are saved to be weighted."""
    weight_split_elements: float = 0
    """Of `split_elements`, those that only gradients of weights need: inputs of products."""
    weight_replicated_elements: float = 0
    separate: Kernels = NOTHING
    """Kernels as the model's own PyTorch code writes them."""
    fused: Kernels = NOTHING
    """Kernels where element-wise operations of a group share one."""


def assemble(kind: str, hidden: int, parts: Sequence[Part], *, all_reduces: int = 2, input_tensors: int = 1) -> Block:
    """Sum parts into a block."""

    def total(name: str) -> float:
        return sum(float(getattr(part, name)) for part in parts)

    replicated = sum(part.replicated_parameters for part in parts)
    return Block(
        kind=kind,
        hidden=hidden,
        parameters=replicated + sum(part.split_parameters for part in parts),
        replicated_parameters=replicated,
        matmuls=tuple(matmul for part in parts for matmul in part.matmuls),
        attentions=tuple(attention for part in parts for attention in part.attentions),
        saved=SavedActivations(**{field.name: total(field.name) for field in fields(SavedActivations)}),
        separate=sum((part.separate for part in parts), NOTHING),
        fused=sum((part.fused for part in parts), NOTHING),
        all_reduces=all_reduces,
        input_tensors=input_tensors,
    )
