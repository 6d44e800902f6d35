"""Which model families a library's techniques cover."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources

__all__ = [
    "supported_families",
    "supports",
    "supports_prescaled_batch",
    "supports_tensor_parallelism",
    "tensor_parallel_families",
]

_FILES = {"smp-v1": "smp_v1_models.toml", "smp-v2": "smp_v2_models.toml"}


@cache
def _table(library: str) -> dict[str, list[str]]:
    text = resources.files("smp_advisor.library").joinpath(f"data/{_FILES[library]}").read_text("utf-8")
    return tomllib.loads(text)


def supported_families(technique: str, library: str) -> tuple[str, ...]:
    """Families (transformers ``model_type``) that a library applies a technique to out of the box.

    Parameters
    ----------
    technique
        ``tensor_parallel``, ``context_parallel``, ``expert_parallel``, ``fp8`` or ``prescaled_batch``.
    library
        A library that has none of them covers no family.
    """
    return tuple(_table(library).get(technique, ())) if library in _FILES else ()


def supports(family: str, technique: str, library: str) -> bool:
    """Whether a library applies a technique to a family out of the box.

    Examples
    --------
    >>> supports("mixtral", "expert_parallel", "smp-v2")
    True
    """
    return family in supported_families(technique, library)


def tensor_parallel_families(library: str = "smp-v1") -> tuple[str, ...]:
    """Families that a library distributes out of the box (transformers ``model_type``)."""
    return supported_families("tensor_parallel", library)


def supports_tensor_parallelism(family: str, library: str = "smp-v1") -> bool:
    """Whether a library divides this family's layers without a user's registration; otherwise it leaves them whole."""
    return supports(family, "tensor_parallel", library)


def supports_prescaled_batch(family: str, library: str = "smp-v1") -> bool:
    """Whether the family's distributed form takes a batch for the whole tensor-parallel group."""
    return supports(family, "prescaled_batch", library)
