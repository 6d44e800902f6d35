"""Step: every data-parallel rank reads its own share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.scripts.adapt.imports import add_import
from smp_advisor.scripts.adapt.v1.loader import Shards, shard_loaders

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["shard_data"]


def shard_data(draft: Draft) -> None:
    """Shares by the ranks of the process group, one for each group that divides a sample's work."""
    shared = [
        f"tsm.state.{name}_parallel_degree"
        for name, planned in (("tensor", draft.target.tensor_parallel), ("context", draft.target.context_parallel))
        if planned
    ]
    # Ranks that divide a layer or a sequence between them read the same samples.
    group = shared[0] if len(shared) == 1 else f"({' * '.join(shared)})"
    division = f" // {group}" if shared else ""
    before = draft.module
    shard_loaders(
        draft,
        Shards(
            size=f"dist.get_world_size(){division}",
            rank=f"dist.get_rank(){division}",
            drop_all=False,
            drop_any=True,
        ),
    )
    if draft.module is not before and "dist." in draft.module.code:
        add_import(draft, "import torch.distributed as dist", local="dist")
