"""Element-wise memory traffic and kernel launches of a block, in one form of its code."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NOTHING", "Kernels"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """Work of a forward pass besides the arithmetic of its products: traffic per token, and launches.

    Attention's core (from the scores to the product with the values) is not included.

    Examples
    --------
    >>> Kernels(elements=8, launches=1) + Kernels(split_elements=2, launches=1)
    Kernels(elements=8, split_elements=2, products=0, launches=2, expert_launches=0)
    """

    elements: float = 0
    """Elements of the training dtype, read and written, that every tensor-parallel rank moves, per token."""
    split_elements: float = 0
    """Elements that tensor parallelism divides, per token."""
    products: float = 0
    """Kernels of products of weights, without those of experts."""
    launches: float = 0
    """Other kernels that the host launches."""
    expert_launches: float = 0
    """Kernels per expert on the GPU."""

    def __add__(self, more: Kernels) -> Kernels:
        return Kernels(
            elements=self.elements + more.elements,
            split_elements=self.split_elements + more.split_elements,
            products=self.products + more.products,
            launches=self.launches + more.launches,
            expert_launches=self.expert_launches + more.expert_launches,
        )


NOTHING = Kernels()
"""No kernel."""
