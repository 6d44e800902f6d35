"""Changes that make a model fit, with their memory and their speed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.cluster.cluster import Cluster
from smp_advisor.costs.memory import GIB
from smp_advisor.guidance import ranges
from smp_advisor.guidance.wording import gib, plural
from smp_advisor.libraries.registry import get_library
from smp_advisor.sizing.best_plan import best_on
from smp_advisor.sizing.cluster_size import ClusterSize
from smp_advisor.sizing.figures import time_and_cost
from smp_advisor.sizing.places import AUTO, COUNTS, suitable
from smp_advisor.sizing.table import table_html, table_lines
from smp_advisor.uninterrupted import uninterrupted
from smp_advisor.workload.adapter import Adapter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pandas as pd

    from smp_advisor.guidance.library_candidates import Request
    from smp_advisor.sizing.question import Question

__all__ = ["WayOut", "WaysOut", "ways_out"]

Change = Literal["setting", "library", "nodes", "instance", "batch", "optimizer", "sequence", "adapter"]

_LARGER_BY = (2, 4, 8, 16, 32, 64)
"""Multiples of the cluster that are tried."""
_MOST_COUNTS = 16
"""Numbers of nodes tried between the last multiple that does not fit and the first that does."""
_LEAST_NODE_GIB = 300
"""GPU memory of a node that is tried for a model that fits nowhere near: 8 A100 with 40 GB and more."""
_SHORTEST = 128
"""Tokens of the shortest sequence that is tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WayOut:
    """One change after which a plan fits."""

    change: Change
    """Kind of the change, in the order of `WaysOut.ways`."""
    words: str
    """The change in words: ``11 nodes``, ``a sequence of 1,024 tokens``."""
    size: ClusterSize
    """The best plan after the change, on its cluster."""


@dataclass(frozen=True, kw_only=True)
class WaysOut:
    """Changes after which a model fits, each by itself: first those that train the same, then smaller runs."""

    request: Request = field(repr=False)
    nearest_gib: float | None
    """GiB per GPU of the plan that is nearest to fitting; None if the library has no plan at all."""
    ways: tuple[WayOut, ...] = field(repr=False)

    def to_frame(self) -> pd.DataFrame:
        """One row per change: memory, speed, days and cost of the best plan after it."""
        with uninterrupted():
            import pandas as pd

        return pd.DataFrame([_row(way, self.nearest_gib) for way in self.ways])

    def of(self, change: Change) -> WayOut | None:
        """The first change of a kind; None if none of them makes the model fit."""
        return next((way for way in self.ways if way.change == change), None)

    @property
    def words(self) -> str:
        """The changes other than more nodes in one phrase: ``2 x ml.p5.48xlarge (54.9 GiB), LoRA (20.1 GiB)``."""
        return ", ".join(f"{way.words} ({_memory(way)})" for way in self.ways if way.change != "nodes")

    def __str__(self) -> str:
        return "\n".join(table_lines(self._table()))

    def __repr__(self) -> str:
        return str(self)

    def _table(self) -> list[tuple[str, ...]]:
        return [_TITLES, *map(self._cells, self.ways)]

    def _cells(self, way: WayOut) -> tuple[str, ...]:
        now = way.size.estimate
        if now is None:
            return (way.words, "", "", "")
        return (way.words, _memory(way), ranges.token_rate(now), time_and_cost(self.request.model, now)[1])

    def _repr_html_(self) -> str:
        return f'<div class="smp-ways">{table_html(self._table())}</div>'


_TITLES = ("change that fits", "memory per GPU", "speed (95 %)", "cost (95 %)")


def _memory(way: WayOut) -> str:
    return "" if way.size.estimate is None else gib(way.size.estimate.needed_gib)


def _row(way: WayOut, nearest: float | None) -> dict[str, Any]:
    now = way.size.estimate
    return {
        "change": way.change,
        "what": way.words,
        "instance": way.size.cluster.instance.name,
        "nodes": way.size.cluster.nodes,
        "library": way.size.library,
        "needed_gib": None if now is None else now.needed_gib,
        "saved_gib": None if now is None or nearest is None else nearest - now.needed_gib,
        "fit_probability": None if now is None else now.fit_probability,
        "tokens_per_second": way.size.tokens_per_second,
        "days": way.size.days,
        "usd": way.size.usd,
        "global_batch": None if now is None else now.global_batch_size,
    }


def ways_out(question: Question, nearest_gib: float | None) -> WaysOut:
    """Every change that makes a model fit, each by itself; the smallest of its kind.

    Checkpointing, offloading and all degrees are part of every search: only fixed ones are changes.

    Parameters
    ----------
    question
        The request on its cluster.
    nearest_gib
        Memory of the plan that is nearest to fitting.
    """
    # As where the library is chosen: if nothing fits, libraries count that may run on the instance.
    here = question.having(unlisted=True)
    ways = [way for tries in _TRIES for way in tries(here)] or list(_anywhere(question))
    return WaysOut(request=question.request, nearest_gib=nearest_gib, ways=tuple(ways))


def _best_on(question: Question, cluster: Cluster) -> ClusterSize:
    """The best plan on a cluster, which is not searched if all its memory together cannot hold the parameters."""
    job = question.request.job
    bits = 16 if job.adapter is None else job.adapter.base_bits
    memory = cluster.gpus * cluster.instance.usable_gpu_memory_gib
    if question.request.model.parameter_count * bits / 8 > memory * GIB:
        return ClusterSize(cluster=cluster, library=question.library, job=job, estimate=None)
    return best_on(question, cluster)


def _here(question: Question) -> ClusterSize:
    return _best_on(question, question.request.cluster)


def _settings(question: Question) -> Iterator[WayOut]:
    """Fixed settings that are freed: the first that is enough by itself, else all."""
    fixed = question.request.pins
    for name in sorted(fixed):
        size = _here(question.having(pins={key: value for key, value in fixed.items() if key != name}))
        if size.fits:
            yield WayOut(change="setting", words=f"{name} not fixed", size=size)
            return
    if len(fixed) > 1 and (size := _here(question.having(pins={}))).fits:
        yield WayOut(change="setting", words="no fixed settings", size=size)


def _libraries(question: Question) -> Iterator[WayOut]:
    if question.library == AUTO:
        return
    size = _here(replace(question, library=AUTO))
    if size.fits and size.library != question.library:
        yield WayOut(change="library", words=f"library={size.library!r}", size=size)


def _nodes(question: Question) -> Iterator[WayOut]:
    """The smallest number of nodes that fits."""
    here = question.request.cluster
    if question.library != AUTO and not get_library(question.library).divides_model:
        return

    def on(nodes: int) -> ClusterSize:
        return _best_on(question, Cluster(here.instance, nodes))

    enough = next((size for factor in _LARGER_BY if (size := on(here.nodes * factor)).fits), None)
    if enough is None:
        return
    # Upwards, because whether a number of nodes fits depends on its divisors: some larger ones do not.
    last = enough.cluster.nodes
    least = max(here.nodes, last // 2) + 1
    step = max(1, (last - least) // _MOST_COUNTS)
    enough = next((size for nodes in range(least, last, step) if (size := on(nodes)).fits), enough)
    yield WayOut(change="nodes", words=plural(enough.cluster.nodes, "node"), size=enough)


def _instances(question: Question) -> Iterator[WayOut]:
    """The instance type with the lowest cost per token on which as many nodes are enough."""
    here = question.request.cluster
    memory = here.instance.usable_gpu_memory_gib * here.instance.gpus
    types = suitable(question.library)
    larger = [machine for machine in types if machine.usable_gpu_memory_gib * machine.gpus > memory]
    listed = question.having(unlisted=False)
    sizes = (_best_on(listed, Cluster(machine, here.nodes)) for machine in larger)
    yield from _cheapest((size for size in sizes if size.fits), lambda size: size.usd)


def _anywhere(question: Question) -> Iterator[WayOut]:
    """The cluster with the lowest price per hour on which the model fits, of any type and size, in any library."""
    free = replace(question, library=AUTO)
    smallest = (
        next((size for nodes in COUNTS if (size := _best_on(free, Cluster(machine, nodes))).fits), None)
        for machine in suitable(AUTO)
        if machine.usable_gpu_memory_gib * machine.gpus >= _LEAST_NODE_GIB
    )
    yield from _cheapest((size for size in smallest if size is not None), lambda size: size.cluster.usd_per_hour)


def _cheapest(fitting: Iterable[ClusterSize], price: Callable[[ClusterSize], float | None]) -> Iterator[WayOut]:
    size = min(fitting, key=lambda size: price(size) or math.inf, default=None)
    if size is not None:
        yield WayOut(change="instance", words=size.name, size=size)


def _batches(question: Question) -> Iterator[WayOut]:
    """The largest of the global batches divided by a power of two."""
    batch = question.request.job.global_batch_size or 1
    while batch % 2 == 0:
        batch //= 2
        size = _here(question.training(global_batch_size=batch))
        if size.fits:
            yield WayOut(change="batch", words=f"a global batch of {plural(batch, 'sample')}", size=size)
            return


def _optimizers(question: Question) -> Iterator[WayOut]:
    job = question.request.job
    if (
        job.optimizer == "adam"
        and job.adapter is None
        and (size := _here(question.training(optimizer="adam-8bit"))).fits
    ):
        yield WayOut(change="optimizer", words="8-bit Adam", size=size)


def _sequences(question: Question) -> Iterator[WayOut]:
    """The longest of the sequences divided by a power of two."""
    length = question.request.job.sequence_length
    while not question.request.model.fixed_sequence_length and length % 2 == 0 and length > _SHORTEST:
        length //= 2
        size = _here(question.training(sequence_length=length))
        if size.fits:
            yield WayOut(change="sequence", words=f"a sequence of {length:,} tokens", size=size)
            return


def _adapters(question: Question) -> Iterator[WayOut]:
    """LoRA, or QLoRA if LoRA does not fit, in a library that has adapters."""
    request, library = question.request, question.library
    present = request.job.adapter
    if not request.model.reads_tokens or (present is not None and present.quantized):
        return
    adapters = _ADAPTERS if present is None else {"QLoRA": replace(present, base_bits=4)}
    if library != AUTO and not get_library(library).adapters:
        question = replace(question, library=AUTO)
    for title, adapter in adapters.items():
        size = _here(question.training(adapter=adapter))
        if size.fits:
            yield WayOut(change="adapter", words=f"{title} of rank {adapter.rank}", size=size)
            return


_ADAPTERS = {
    "LoRA": Adapter(rank=16, targets="all-linear"),
    "QLoRA": Adapter(rank=16, targets="all-linear", base_bits=4),
}
_TRIES = (_settings, _libraries, _nodes, _instances, _batches, _optimizers, _sequences, _adapters)
"""Kinds of changes in their order: first those that train the same model in the same way."""
