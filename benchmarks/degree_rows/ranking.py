"""Predicted order of sharding groups, next to what published runs report."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smp_advisor.cluster import Cluster
from smp_advisor.costs.evaluate import memory_columns, seconds_columns
from smp_advisor.costs.uncertainty import plan_kinds, spreads
from smp_advisor.libraries.layout import Layout
from smp_advisor.libraries.state_bytes import fully_sharded, smp_v1
from smp_advisor.workload import Job, Model

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DEGREES", "Comparison", "Verdict", "comparisons", "every_pair", "verdict_of"]

DEGREES = (8, 16, 32, 64, 128, 256, 512)
_BOTH = 1.96 * math.sqrt(2)
"""Half width of a 95 % interval of the difference of two runs of one source, in standard deviations of one run."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One published comparison of two sizes of sharding group."""

    id: str
    source: str
    locator: str
    claim: str
    instance: str
    nodes: int
    model: dict[str, Any]
    sequence: int
    precision: str
    smaller: int
    larger: int
    micro: int
    steps: int
    assumed: tuple[str, ...]
    date: str
    checkpointing: bool = True
    mics: bool = False
    """Whether the smaller groups are MiCS's."""
    level: int = 3
    """Sharding level."""
    efa: bool = True
    """False for another network of the same rate."""
    in_fit: bool = False
    """Whether the constants are fitted to these runs too."""
    factor: float | None = None
    """Printed throughput of the smaller group over that of the larger; None if only an order is printed."""
    at_most: float | None = None
    """Largest ratio that the source reports."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A predicted comparison."""

    factor: float
    """Predicted throughput of the smaller group over that of the larger."""
    interval: float
    """Ratio from which two predictions of one source differ with 95 % probability."""

    @property
    def word(self) -> str:
        """Whether the prediction agrees that the smaller group is faster.

        A ratio within the interval is no evidence either way, whatever its direction.
        """
        if abs(math.log(self.factor)) <= math.log(self.interval):
            return f"not distinguishable, {'same' if self.factor >= 1 else 'opposite'} order"
        return "agrees" if self.factor > 1 else "contradicts"


@cache
def comparisons() -> tuple[Comparison, ...]:
    """All published comparisons."""
    text = (Path(__file__).parent / "data" / "comparisons.toml").read_text(encoding="utf-8")
    entries = tomllib.loads(text)["comparison"]
    return tuple(Comparison(**{**entry, "assumed": tuple(entry["assumed"])}) for entry in entries)


def _seconds(
    model: Model,
    cluster: Cluster,
    job: Job,
    degrees: Sequence[int],
    micro: int,
    steps: int,
    *,
    checkpointing: bool,
    mics: bool = False,
    level: int = 3,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Step times by degree, whether each fits, and the interval of a comparison."""
    layout = Layout.of_columns(
        fully_sharded(job) if level == 3 else smp_v1(job),
        rows=len(degrees),
        shard_level=level,
        shard_degree=np.array(degrees),
        prefetched_units=2,
        batch_samples=micro * steps,
        microbatches=steps,
        checkpoint_layers=int(checkpointing),
        two_level_gather=mics & (np.array(degrees) < cluster.gpus),
        replicas_reduced_once=mics,
    )
    seconds = sum(seconds_columns(model, cluster, job, layout).values(), np.zeros(len(degrees)))
    fits = memory_columns(model, cluster, job, layout).margin > 0
    kind = str(plan_kinds(layout, cluster)[0])
    return np.asarray(seconds), np.broadcast_to(fits, len(degrees)), math.exp(_BOTH * spreads(job.stack, kind)[1])


def verdict_of(comparison: Comparison) -> Verdict:
    """Prediction of a published comparison."""
    job = Job(
        sequence_length=comparison.sequence,
        precision="fp16" if comparison.precision == "fp16" else "bf16",
        attention="eager" if comparison.precision == "fp16" else "fused",
    )
    model = Model.from_shape(**{"max_positions": max(2048, comparison.sequence), **comparison.model})
    cluster = Cluster(comparison.instance, comparison.nodes)
    if not comparison.efa:
        cluster = Cluster(replace(cluster.instance, efa=False), comparison.nodes)
    seconds, _, interval = _seconds(
        model,
        cluster,
        job,
        (comparison.smaller, comparison.larger),
        comparison.micro,
        comparison.steps,
        checkpointing=comparison.checkpointing,
        mics=comparison.mics,
        level=comparison.level,
    )
    return Verdict(factor=float(seconds[1] / seconds[0]), interval=interval)


_SHAPES = {
    "7B": {"layers": 32, "hidden": 4096, "heads": 32, "vocab": 32_000, "family": "llama"},
    "30B": {"layers": 48, "hidden": 7168, "heads": 56, "vocab": 50_257, "family": "gpt2"},
}
_BATCHES = ((2, 1), (8, 1), (8, 4))


def every_pair(instance: str, nodes: int = 64, *, mics: bool = False) -> dict[str, list[tuple[int, int, Verdict]]]:
    """Every pair of sharding groups of 8 to 512 GPUs that fit, by model and batch: (smaller, larger, verdict).

    Parameters
    ----------
    mics
        Whether the groups are those of MiCS (SMP v1), not of FSDP's hybrid strategies.
    """
    half = "fp16" if instance.startswith("ml.p3") else "bf16"
    job = Job(sequence_length=2048, precision=half, attention="eager" if half == "fp16" else "fused")
    cluster = Cluster(instance, nodes)
    result: dict[str, list[tuple[int, int, Verdict]]] = {}
    for name, shape in _SHAPES.items():
        model = Model.from_shape(**shape, max_positions=2048)
        for micro, steps in _BATCHES:
            seconds, fits, interval = _seconds(
                model, cluster, job, DEGREES, micro, steps, checkpointing=True, mics=mics
            )
            rows = [row for row in range(len(DEGREES)) if fits[row]]
            result[f"{name}, batch {micro} x {steps}"] = [
                (DEGREES[i], DEGREES[j], Verdict(factor=float(seconds[j] / seconds[i]), interval=interval))
                for i, j in combinations(rows, 2)
            ]
    return result
