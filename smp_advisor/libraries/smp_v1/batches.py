"""Whether a tensor-parallel group of SMP v1 takes one batch for all its ranks."""

from __future__ import annotations

from smp_advisor.libraries.families import supports_prescaled_batch

__all__ = ["takes_prescaled_batch"]


def takes_prescaled_batch(family: str, sequence_length: int, tensor_parallel_degree: int, optimize: str) -> bool:
    """Whether ``prescaled_batch`` can be on: the one rule for search, sliders and comparisons.

    The family's distributed form must take it, ``optimize`` must be ``"speed"``, and the tensor parallel degree must
    divide the sequence (SMP documentation, prescaled batch). A degree of 1 leaves nothing to prescale.
    """
    divides = sequence_length % tensor_parallel_degree == 0
    return optimize == "speed" and divides and supports_prescaled_batch(family)
