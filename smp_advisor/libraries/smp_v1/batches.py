"""Prescaled batches of SMP v1: one batch per tensor-parallel group."""

from __future__ import annotations

from smp_advisor.libraries.families import supports_prescaled_batch

__all__ = ["takes_prescaled_batch"]


def takes_prescaled_batch(family: str, sequence_length: int, tensor_parallel_degree: int, optimize: str) -> bool:
    """Whether ``prescaled_batch`` can be on: the rule of the search, sliders and comparisons.

    The family's distributed form must support it, ``optimize`` must be ``"speed"``, and the tensor parallel degree must
    divide the sequence (SMP documentation, prescaled batch). A degree of 1 needs no prescaling.
    """
    divides = sequence_length % tensor_parallel_degree == 0
    return optimize == "speed" and divides and supports_prescaled_batch(family)
