"""Optimizers and their state per trained parameter."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["OPTIMIZERS", "Optimizer", "OptimizerName"]

OptimizerName = Literal["adam", "adam-8bit", "lion", "sgd", "plain-sgd", "adafactor"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """State of one optimizer."""

    label: str
    """Display name."""
    moments: int
    """State values per parameter."""
    quantized: bool = False
    """Whether each value takes one byte in any training precision."""
    steps: tuple[Literal["foreach", "fused"], ...] = ()
    """Forms of ``torch.optim`` that update many parameters together (PyTorch 2.5)."""
    paged: bool = False
    """Whether bitsandbytes has a form with pageable state."""

    def moment_bytes(self, element_bytes: float = 4.0) -> float:
        """Bytes of state per parameter, where an unquantized value takes `element_bytes`."""
        return self.moments * (1.0 if self.quantized else element_bytes)


OPTIMIZERS: Mapping[OptimizerName, Optimizer] = MappingProxyType(
    {
        "adam": Optimizer(label="Adam", moments=2, steps=("foreach", "fused"), paged=True),
        # Dettmers et al. 2022, arXiv 2110.02861. Block-wise scales, not counted, add 2/1024.
        "adam-8bit": Optimizer(label="Adam with 8-bit state", moments=2, quantized=True, paged=True),
        # Chen et al. 2023, arXiv 2302.06675: momentum only.
        "lion": Optimizer(label="Lion", moments=1, paged=True),
        "sgd": Optimizer(label="SGD with momentum", moments=1, steps=("foreach", "fused")),
        "plain-sgd": Optimizer(label="SGD without momentum", moments=0, steps=("foreach", "fused")),
        # Shazeer and Stern 2018, arXiv 1804.04235: a row and a column per matrix, less than a thousandth of its size.
        "adafactor": Optimizer(label="Adafactor", moments=0, steps=("foreach",)),
    }
)
"""Every optimizer of `Job.optimizer`, by name."""
