"""A process group of any size in one process: collectives return at once and move no data."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["fake_process_group"]


@contextmanager
def fake_process_group(world: int, rank: int) -> Iterator[None]:
    """Be rank `rank` of `world` processes inside the block."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend

    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
