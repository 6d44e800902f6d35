"""Which model families a library's techniques cover."""

from __future__ import annotations

from smp_advisor.libraries.registry import DEFAULT_LIBRARY, get_library

__all__ = [
    "supported_families",
    "supports",
    "supports_prescaled_batch",
    "supports_tensor_parallelism",
    "tensor_parallel_families",
]


def _families(library: str) -> dict[str, list[str]]:
    record = get_library(library)
    return record.table("models.toml") if record.restricts_families else {}


def supported_families(technique: str, library: str) -> tuple[str, ...]:
    """Families (transformers ``model_type``) that a library applies a technique to out of the box.

    Parameters
    ----------
    technique
        ``tensor_parallel``, ``context_parallel``, ``expert_parallel``, ``fp8`` or ``prescaled_batch``.
    library
        A library that has none of them covers no family.
    """
    return tuple(_families(library).get(technique, ()))


def supports(family: str, technique: str, library: str) -> bool:
    """Whether a library applies a technique to a family out of the box.

    Examples
    --------
    >>> supports("mixtral", "expert_parallel", "smp-v2")
    True
    """
    return family in supported_families(technique, library)


def tensor_parallel_families(library: str = DEFAULT_LIBRARY) -> tuple[str, ...]:
    """Families that a library distributes out of the box (transformers ``model_type``)."""
    return supported_families("tensor_parallel", library)


def supports_tensor_parallelism(family: str, library: str = DEFAULT_LIBRARY) -> bool:
    """Whether a library divides this family's layers without a user's registration."""
    return supports(family, "tensor_parallel", library)


def supports_prescaled_batch(family: str, library: str = DEFAULT_LIBRARY) -> bool:
    """Whether the family's distributed form takes a batch for the full tensor-parallel group."""
    return supports(family, "prescaled_batch", library)
