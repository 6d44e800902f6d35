"""Rank of the plans that fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from smp_advisor.libraries.layout import Layout

    Floats = NDArray[np.float64]

__all__ = [
    "NEAR_BEST",
    "OBJECTIVES",
    "TECHNIQUE_GAIN",
    "TECHNIQUE_PROBABILITY",
    "Objective",
    "Scores",
    "combinations",
    "order",
    "techniques",
]

Objective = Literal["throughput", "cost", "headroom", "simplicity"]
OBJECTIVES: tuple[str, ...] = get_args(Objective)

NEAR_BEST = 0.03
"""Plans within this share of the best count as equal: among them the fewest techniques win, then the most headroom
(AWS, model-parallel best practices: if a subset of the techniques is enough, more techniques do not help)."""

TECHNIQUE_GAIN = 0.05
"""Least gain in speed for which a plan uses one more technique."""

TECHNIQUE_PROBABILITY = 0.75
"""Least probability that plans with more techniques are faster at all."""

_SLOWEST_SHARE = 0.5
"""`headroom` and `simplicity` look only at plans with at least this share of the best throughput."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Values by which n plans are ranked, arrays of shape (n,)."""

    tokens_per_second: Floats
    usd_per_token: Floats
    """Depends on throughput alone within a cluster; infinite if no price is known."""
    headroom: Floats
    """Share of usable memory that is free, at the point estimate."""
    techniques: NDArray[np.int64]
    tokens_per_step: NDArray[np.int64]


_COMBINATION = (
    "tensor_parallel_degree",
    "pipeline_parallel_degree",
    "context_parallel_degree",
    "expert_parallel_degree",
    "shard_degree",
    "shard_level",
    "prefetched_units",
    "checkpoint_layers",
    "offload_activations",
)


def techniques(layout: Layout) -> NDArray[np.int64]:
    """Number of memory-saving techniques of each plan, shape (n,).

    Tensor, pipeline, context and expert parallelism, sharding (of the optimizer state or of everything), activation
    checkpointing, grouping of checkpoints, offloading.
    """
    parts = (
        layout.tensor_parallel_degree > 1,
        layout.pipeline_parallel_degree > 1,
        layout.context_parallel_degree > 1,
        layout.expert_parallel_degree > 1,
        (layout.shard_level > 0) & (layout.shard_degree != 1),
        layout.checkpoint_layers != 0,
        np.abs(layout.checkpoint_layers - 0.5) > 0.5,  # contiguous or groups rather than none or each
        layout.offload_activations,
    )
    total = np.zeros(len(layout), dtype=np.int64)
    for part in parts:
        total += part
    return total


def combinations(layout: Layout) -> NDArray[np.int64]:
    """A number for each plan's combination of techniques, shape (n,).

    Offloading counts only if it moves something: activations of a microbatch that waits.
    """
    waits = ((layout.pipeline_parallel_degree > 1) & (layout.microbatches > 1)) | layout.offload_running
    columns = [getattr(layout, name).astype(np.int64) for name in _COMBINATION]
    columns[-1] = columns[-1] * waits
    number = np.zeros(len(layout), dtype=np.int64)
    for column in columns:
        low = column.min(initial=0)
        number = number * (int(column.max(initial=0) - low) + 1) + (column - low)
    return number


def order(scores: Scores, objective: Objective, doubt: Mapping[int, float] | None = None) -> NDArray[np.intp]:
    """Rows from best to worst; deterministic (ties keep the order of enumeration).

    ``throughput``: tokens per second. ``cost``: USD per token. ``headroom``: free memory, among plans at least half as
    fast as the fastest. ``simplicity``: fewest techniques, among the same. Plans within 3 % of the best value are
    equal, and among equals fewer techniques win, then more headroom, then the smaller batch. For ``throughput`` and
    ``cost``, each technique must also gain at least 5 %, and be faster with a probability of at least 75 %: plans with
    fewer techniques whose best is closer to the fastest come first.

    Parameters
    ----------
    doubt
        Share by which the fastest plan must beat the fastest plan of each smaller number of techniques to be faster
        with this probability. None: no doubt.
    """
    speed = scores.tokens_per_second
    if objective in ("headroom", "simplicity"):
        slow = speed < _SLOWEST_SHARE * speed.max()
    else:
        slow = np.zeros(len(speed), dtype=np.bool_)
    if objective == "simplicity":
        return np.lexsort((-speed, scores.techniques, slow))
    value = {"throughput": speed, "cost": 1 / scores.usd_per_token, "headroom": scores.headroom}[objective]
    best = value[~slow].max()
    near = ~slow & (value >= best * (1 - NEAR_BEST))
    if objective != "headroom":
        near |= _simpler(value, scores.techniques, near, doubt or {})
    # Near the best: fewest techniques, most headroom, value. Below: by value alone.
    fewest = np.where(near, scores.techniques, 0)
    # Rounded, so that values that differ in the last bits only are equal.
    roomiest = np.where(near, -np.round(scores.headroom, 3), 0.0)
    smallest = np.where(near, scores.tokens_per_step, 0)
    return np.lexsort((-speed, -value, smallest, roomiest, fewest, ~near, slow))


def _simpler(
    value: Floats, techniques: NDArray[np.int64], near: NDArray[np.bool_], doubt: Mapping[int, float]
) -> NDArray[np.bool_]:
    """Plans with so few techniques that further ones do not gain enough, shape (n,); none if all techniques do."""
    fewest, best = int(techniques[near].min()), value.max()
    for count in range(fewest):
        same = techniques == count
        top = value[same].max(initial=0.0)
        if top >= best * min((1 - TECHNIQUE_GAIN) ** (fewest - count), 1 - doubt.get(count, 0.0)):
            simpler: NDArray[np.bool_] = same & (value >= top * (1 - NEAR_BEST))
            return simpler
    return np.zeros(len(value), dtype=np.bool_)
