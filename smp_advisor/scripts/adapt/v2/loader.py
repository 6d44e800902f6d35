"""Step: give each data-parallel rank its own shard of the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.scripts.adapt.imports import add_import
from smp_advisor.scripts.adapt.v1.loader import Shards, shard_loaders

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["shard_data"]


def shard_data(draft: Draft) -> None:
    """Shard the data by rank; the ranks of one tensor-parallel or context-parallel group read the same shard."""
    shared = [
        f"tsm.state.{name}_parallel_degree"
        for name, planned in (("tensor", draft.target.tensor_parallel), ("context", draft.target.context_parallel))
        if planned
    ]
    group = shared[0] if len(shared) == 1 else f"({' * '.join(shared)})"
    division = f" // {group}" if shared else ""
    before = draft.module
    shards = Shards(size=f"dist.get_world_size(){division}", rank=f"dist.get_rank(){division}", drop_all=False)
    shard_loaders(draft, shards)
    if draft.module is not before and "dist." in draft.module.code:
        add_import(draft, "import torch.distributed as dist", local="dist")
