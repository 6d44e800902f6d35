"""Rows of many plans that are alike for a term: it is computed for one of each, and indexed."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy import ndarray

from smp_advisor.core.elementwise import anywhere
from smp_advisor.costs.constants import are_overridden
from smp_advisor.costs.world import in_flight, stage_kinds
from smp_advisor.libraries.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from smp_advisor.core.elementwise import Floats
    from smp_advisor.costs.world import World
    from smp_advisor.workload.model import Model

SCHEDULE = ("batch_samples", "microbatches", "active_microbatches", "simple_pipeline")
"""Columns of the schedule. Most terms read figures that many schedules share, such as the samples of a microbatch."""
OFFLOADING = ("offload_activations", "activation_loading_horizon")
"""Columns of the copies to the host, which no other work reads."""

_LEAST_ROWS = 256
"""Rows from which a term takes longer than finding the different ones."""
_LEAST_GAIN = 1.25


class Distinct(NamedTuple):
    """One row of each kind, and the kind of each row; None if every row is its own."""

    layout: Layout
    kinds: NDArray[np.intp] | None

    def all_rows(self, values: Floats) -> Floats:
        """Return the values of all rows from those of the kinds, in the last axis."""
        if self.kinds is None or type(values) is not ndarray or values.shape[-1] == 1:
            return values
        result: Floats = values.take(self.kinds, axis=-1)
        return result


def distinct(layout: Layout, by: Sequence[Floats], *, but: Sequence[str] = SCHEDULE) -> Distinct:
    """Rows that differ in columns of the layout, except `but`, or in the figures `by` that are read in their place."""
    columns = {name: column for name, column in vars(layout).items() if type(column) is ndarray}
    rows = len(next(iter(columns.values()), ()))
    if rows < _LEAST_ROWS:
        return Distinct(layout, None)
    read = [column for name, column in columns.items() if name not in but]
    # The figures of a schedule depend on each other: few of their combinations exist.
    codes, count = _codes([_ranks(_codes([of for of in by if type(of) is ndarray], rows)[0])[0], *read], rows)
    first = np.full(count, -1, dtype=np.intp)
    first[codes] = np.arange(rows)
    present = first >= 0
    chosen = first[present]
    if _LEAST_GAIN * len(chosen) > rows:
        return Distinct(layout, None)
    kinds = np.empty(count, dtype=np.intp)
    kinds[present] = np.arange(len(chosen))
    # `dataclasses.replace` takes as long as some of the terms.
    reduced = object.__new__(Layout)
    reduced.__dict__.update({name: vars(layout)[name] for name in _FIELDS})
    reduced.__dict__.update({name: _number(column[chosen]) for name, column in columns.items()})
    return Distinct(reduced, kinds[codes])


_FIELDS = tuple(f.name for f in fields(Layout))


def distinct_memory(model: Model, layout: Layout, degree: int) -> Distinct:
    """Return the rows that differ in memory, which the layout keeps: memory and the time of copies have the same."""
    memory: tuple[Model, Distinct] | None = vars(layout).get("memory")
    if memory is None or memory[0] is not model:
        memory = vars(layout)["memory"] = model, distinct(layout, held(model, layout, degree))
    return memory[1]


@dataclass(frozen=True, slots=True)
class One:
    """One plan, equal to the plans that are alike for a term; calls with it can be cached."""

    read: tuple[object, ...]
    layout: Layout = field(compare=False)
    world: World = field(compare=False)


def one(layout: Layout, world: World, by: Sequence[Floats], *, of_blocks: bool = False) -> One | None:
    """The plan of a layout of numbers, by all columns but the schedule; None for several plans or other constants.

    `of_blocks`: by the columns that passes of blocks read.
    """
    if are_overridden() or any(type(column) is ndarray for column in vars(layout).values()):
        return None
    return One(((_read_by_blocks if of_blocks else _read)(layout), *by), layout, world)


BLOCKS = (
    "state_bytes", "stack", "cudnn_attention", "tensor_parallel_degree", "context_parallel_degree",
    "expert_parallel_degree", "sequence_parallel", "shard_level", "checkpoint_layers", "checkpoint_period",
    "selective_recomputation", "keeps_products",
)  # fmt: skip
"""Columns that decide the passes of a block and of the head, next to the samples and the placement."""

_read = attrgetter(*(name for name in _FIELDS if name not in SCHEDULE))
_read_by_blocks = attrgetter(*BLOCKS)


def held(model: Model, layout: Layout, degree: int) -> list[Floats]:
    """Figures of the schedule that memory reads: samples and microbatches at a time, and whether gradients are new."""
    limited = anywhere(layout.depth_bounds_activations)
    flights = [in_flight(layout, stage.index) for stage in stage_kinds(model, degree)[: None if limited else 1]]
    samples = layout.batch_samples / layout.microbatches
    return [samples, layout.microbatches == 1, layout.simple_pipeline, *flights]


def _number(column: NDArray[Any]) -> Any:
    return column[0].item() if len(column) == 1 else column


def _codes(columns: Sequence[NDArray[Any]], rows: int) -> tuple[NDArray[np.int64], int]:
    """Code of each row, which rows with equal columns share, and a limit of the codes."""
    codes, count = np.zeros(rows, dtype=np.int64), 1
    for column in columns:
        ranks, different = _ranks(column)
        codes, count = codes * different + ranks, count * different
        if count > _MOST_CODES * rows:
            codes, count = _ranks(codes)
    return codes, count


_MOST_CODES = 8
"""Codes per row up to which a table of them is faster than sorting."""


_FEW = 12


def _ranks(column: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    """Rank of each value among the different ones, and their number."""
    if column.dtype == np.bool_:
        return column.astype(np.int64), 2
    whole = column.astype(np.int64)
    least = whole.min()
    size = int(whole.max() - least) + 1
    if size > _MOST_CODES * len(whole) or (column.dtype.kind == "f" and (whole != column).any()):
        values, ranks = np.unique(column, return_inverse=True)
        return ranks, len(values)
    whole -= least
    if size <= _FEW:
        return whole, size
    used = np.zeros(size, dtype=np.int64)
    used[whole] = 1
    rank = used.cumsum()
    return (rank - 1)[whole], int(rank[-1])
