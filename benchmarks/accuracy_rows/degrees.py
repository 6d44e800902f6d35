"""Parallel degrees and batches of a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .table import SkippedError

if TYPE_CHECKING:
    from .table import Row

__all__ = ["Degrees", "degrees_of", "shard_level"]

_LEVELS = {"": 0, "none": 0, "zero1": 1, "zero2": 2, "zero3": 3, "hybrid": 3}
_MOST_SAMPLES = 16


@dataclass(frozen=True)
class Degrees:
    """Parallel degrees and batches of a row. Missing ones are inferred from the others."""

    tensor: int
    pipeline: int
    context: int
    replicas: int
    micro_batch: int
    microbatches: int
    chunks: int


def degrees_of(row: Row, gpus: int, gpus_per_node: int) -> Degrees:
    """Degrees of a row.

    A missing tensor-parallel degree is the part of the model-parallel size that fits in one node; the pipeline has the
    remaining factor. Without a pipeline, a missing microbatch is the replica's full batch, up to 16 samples. With a
    pipeline, it is one sample, as in Megatron-LM's runs, or with fully sharded stages (PyTorch's own pipeline) the
    batch divided by the number of stages.
    """
    context, replicas = row.count("cp") or 1, row.count("dp")
    tensor, pipeline = row.count("tp"), row.count("pp")
    if tensor is None or pipeline is None:
        if not replicas:
            raise SkippedError("parallel degrees not given")
        size = gpus // (replicas * context)
        tensor = tensor or (size // pipeline if pipeline else min(size, gpus_per_node))
        pipeline = pipeline or size // max(tensor, 1)
    replicas = replicas or gpus // (tensor * pipeline * context)
    if tensor * pipeline * context * replicas != gpus:
        raise SkippedError("product of the parallel degrees is not the number of GPUs")
    micro, count, total = row.count("micro_batch"), row.count("num_microbatches"), row.count("global_batch")
    per_replica = total / replicas if total else None
    if micro is None:
        if per_replica is None:
            raise SkippedError("batch not given")
        if count is None and pipeline > 1:
            count = pipeline if shard_level(row) == 3 else max(1, round(per_replica))
        micro = min(max(1, round(per_replica / (count or 1))), _MOST_SAMPLES)
    if count is None:
        count = max(1, round(per_replica / micro)) if per_replica else 1
    return Degrees(tensor, pipeline, context, replicas, micro, count, row.count("vpp") or 1)


def shard_level(row: Row) -> int:
    """Level of sharding of a row."""
    name = row.text("shard_class")
    if name not in _LEVELS:
        raise SkippedError(f"sharding {name!r}")
    return _LEVELS[name]
