"""The steps for PyTorch alone: replicas with DistributedDataParallel, or shards with FSDP, started by torchrun."""

from __future__ import annotations
