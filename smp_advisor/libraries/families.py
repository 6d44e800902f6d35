"""Model families that a library's techniques support."""

from __future__ import annotations

from typing import Any

from smp_advisor.libraries.registry import DEFAULT_LIBRARY, get_library

__all__ = [
    "supported_families",
    "supports",
    "supports_prescaled_batch",
    "supports_tensor_parallelism",
    "tensor_parallel_families",
]


def _families(library: str) -> dict[str, Any]:
    record = get_library(library)
    return record.table("models.toml") if record.restricts_families else {}


def supported_families(technique: str, library: str, *, adapter: bool = False) -> tuple[str, ...]:
    """Families (transformers ``model_type``) to which a library applies a technique without extra code.

    Parameters
    ----------
    technique
        ``tensor_parallel``, ``context_parallel``, ``expert_parallel``, ``fp8`` or ``prescaled_batch``.
    library
        Name of a library. The result is empty if it lacks the technique.
    adapter
        Whether an adapter (LoRA) is trained, for which a library may support less.
    """
    families = _families(library)
    if adapter and technique in families.get("with_adapter", {}):
        families = families["with_adapter"]
    return tuple(families.get(technique, ()))


def supports(family: str, technique: str, library: str, *, adapter: bool = False) -> bool:
    """Whether a library applies a technique to a family without extra code.

    Examples
    --------
    >>> supports("mixtral", "expert_parallel", "smp-v2")
    True
    """
    return family in supported_families(technique, library, adapter=adapter)


def tensor_parallel_families(library: str = DEFAULT_LIBRARY) -> tuple[str, ...]:
    """Families (transformers ``model_type``) that a library distributes without extra code."""
    return supported_families("tensor_parallel", library)


def supports_tensor_parallelism(family: str, library: str = DEFAULT_LIBRARY) -> bool:
    """Whether a library divides this family's layers without registration by the user."""
    return supports(family, "tensor_parallel", library)


def supports_prescaled_batch(family: str, library: str = DEFAULT_LIBRARY) -> bool:
    """Whether the family's distributed form accepts one batch for a tensor-parallel group."""
    return supports(family, "prescaled_batch", library)
