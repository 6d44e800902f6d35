"""Models that DDP replicates, and objects of Accelerate: the calls that make them."""

from __future__ import annotations

__all__ = ["ACCELERATORS", "REPLICATING"]

REPLICATING = ("torch.nn.parallel.DistributedDataParallel",)
ACCELERATORS = ("accelerate.Accelerator", "accelerate.accelerator.Accelerator")
