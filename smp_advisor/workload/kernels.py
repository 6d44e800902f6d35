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
    Kernels(elements=8, split_elements=2, products=0, launches=2, expert_launches=0, backward_traffic=2.0,
    backward_launches=2.0)
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
    backward_traffic: float = 2.0
    """Traffic of the backward pass relative to that of the forward pass."""
    backward_launches: float = 2.0
    """Kernels of the backward pass per kernel of the forward pass: each product has two, each element-wise operation
    one or two, and gradients of parameters are accumulated."""

    def __add__(self, more: Kernels) -> Kernels:
        return Kernels(
            elements=self.elements + more.elements,
            split_elements=self.split_elements + more.split_elements,
            products=self.products + more.products,
            launches=self.launches + more.launches,
            expert_launches=self.expert_launches + more.expert_launches,
            backward_traffic=_mean(
                (self.backward_traffic, self.elements + self.split_elements),
                (more.backward_traffic, more.elements + more.split_elements),
            ),
            backward_launches=_mean(
                (self.backward_launches, self.products + self.launches),
                (more.backward_launches, more.products + more.launches),
            ),
        )


def _mean(*weighted: tuple[float, float]) -> float:
    """Mean of values, each with its weight; the first value if all are equal or without weight."""
    values, total = {value for value, _ in weighted}, sum(weight for _, weight in weighted)
    if len(values) == 1 or total <= 0:
        return weighted[0][0]
    return sum(value * weight for value, weight in weighted) / total


NOTHING = Kernels()
"""No kernel."""
