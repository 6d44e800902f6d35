"""Which model families the library's tensor parallelism covers."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources

__all__ = ["supports_prescaled_batch", "supports_tensor_parallelism", "tensor_parallel_families"]


@cache
def _table() -> dict[str, list[str]]:
    text = resources.files("smp_advisor.library").joinpath("data/smp_v1_models.toml").read_text("utf-8")
    return tomllib.loads(text)


def tensor_parallel_families() -> tuple[str, ...]:
    """Families that SMP v1 distributes out of the box (transformers ``model_type``)."""
    return tuple(_table()["tensor_parallel"])


def supports_tensor_parallelism(family: str) -> bool:
    """Whether SMP v1 divides this family's layers without a user's registration; otherwise it leaves them whole."""
    return family in _table()["tensor_parallel"]


def supports_prescaled_batch(family: str) -> bool:
    """Whether the family's distributed form takes a batch for the whole tensor-parallel group."""
    return family in _table()["prescaled_batch"]
