"""Example inputs of a model at any size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ExampleInputs"]


@dataclass(frozen=True, kw_only=True)
class ExampleInputs:
    """Example inputs of a model at any size."""

    make: Callable[[int, int], Any]
    """Tensors for (batch, sequence), by name or by position; on the meta device unless the user supplied them."""
    has_sequence: bool
    longest: int
    """Maximum tokens per sample; 0 for no limit."""
    description: str
    """Text for the user: ``input_ids, labels (inferred)``."""

    @property
    def is_inferred(self) -> bool:
        """Whether the user supplied none of it: only inferred inputs may get other forms and sizes."""
        return self.description.endswith("(inferred)")
