"""Step: give each process its own shard of the training data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.scripts.adapt.roles import loader_calls
from smp_advisor.scripts.adapt.torchrun.launch import add_dist
from smp_advisor.scripts.adapt.v1.loader import Shards, shard_loaders

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["shard_data"]


def shard_data(draft: Draft) -> None:
    """Shard the training data by rank; every process evaluates all evaluation data."""
    if not loader_calls(draft.survey):
        draft.add_todo(
            "No DataLoader was found, so every process reads the same batches: draw other batches in each process, for"
            " example with a seed that includes dist.get_rank()."
        )
        return
    shard_loaders(draft, Shards(size="dist.get_world_size()", rank="dist.get_rank()", drop_all=False))
    add_dist(draft)
