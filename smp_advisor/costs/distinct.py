"""Rows of many plans that are alike for a term: it is computed for one of each, and indexed."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

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


Values = TypeVar("Values")


class Distinct(NamedTuple):
    """One row of each kind, which rows these are, and the kind of each row; None if every row is its own."""

    layout: Layout
    chosen: NDArray[np.intp] | None = None
    kinds: NDArray[np.intp] | None = None

    def of_kinds(self, values: Values) -> Values:
        """Return the values of the kinds from those of all rows."""
        return _taken(values, self.chosen)

    def all_rows(self, values: Values) -> Values:
        """Return the values of all rows from those of the kinds."""
        return _taken(values, self.kinds)


def _taken(values: Values, rows: NDArray[np.intp] | None) -> Values:
    """Take rows of the last axis, in every array of a structure."""
    kind: Any = type(values)
    parts: Any = values
    if rows is None or kind in (bool, int, float):
        return values
    if kind is ndarray:
        parts = parts if parts.shape[-1] == 1 else parts.take(rows, axis=-1)
    elif kind is dict:
        parts = {name: _taken(part, rows) for name, part in parts.items()}
    elif kind in (list, tuple):
        parts = kind(_taken(part, rows) for part in parts)
    else:
        names = getattr(kind, "_fields", None) or kind.__dataclass_fields__
        parts = kind(**{name: _taken(getattr(parts, name), rows) for name in names})
    return cast("Values", parts)


def distinct(
    layout: Layout, by: Sequence[Floats], *, but: Sequence[str] = SCHEDULE, only: Sequence[str] = ()
) -> Distinct:
    """Rows that differ in the columns `only`, or in all `but` some, or in the figures `by` that are read instead."""
    if vars(layout).get("single"):
        return Distinct(layout)
    columns = {name: column for name, column in vars(layout).items() if type(column) is ndarray}
    rows = len(next(iter(columns.values()), ()))
    if rows < _LEAST_ROWS:
        return Distinct(layout)
    if not only and "codes" not in vars(layout):  # of the columns that all terms read
        common = [column for name, column in columns.items() if name not in (*SCHEDULE, *OFFLOADING)]
        vars(layout)["codes"] = _codes(common, (np.zeros(rows, dtype=np.int64), 1))
    read = only or [name for name in (*SCHEDULE, *OFFLOADING) if name not in but]
    start = (np.zeros(rows, dtype=np.int64), 1) if only else vars(layout)["codes"]
    codes, count = _codes([c for c in (*by, *map(columns.get, read)) if type(c) is ndarray], start)
    first = np.full(count, -1, dtype=np.intp)
    first[codes] = np.arange(rows)
    present = first >= 0
    chosen = first[present]
    if _LEAST_GAIN * len(chosen) > rows:
        return Distinct(layout)
    kinds = np.empty(count, dtype=np.intp)
    kinds[present] = np.arange(len(chosen))
    # `dataclasses.replace` takes as long as some of the terms.
    reduced = object.__new__(Layout)
    reduced.__dict__.update({name: vars(layout)[name] for name in _FIELDS})
    reduced.__dict__.update({name: _number(column[chosen]) for name, column in columns.items()})
    if not only:
        reduced.__dict__["codes"] = (start[0][chosen], start[1])
    return Distinct(reduced, chosen, kinds[codes])


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
    stored = vars(layout)
    if "single" not in stored:
        stored["single"] = not any(type(column) is ndarray for column in stored.values())
    if are_overridden() or not stored["single"]:
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


_Codes = tuple["NDArray[np.int64]", int]
"""Code of each row, which rows with equal columns share, and a limit of the codes."""


def _codes(columns: Sequence[NDArray[Any]], start: _Codes) -> _Codes:
    """Return the codes of rows by columns, from those of others that are known."""
    codes, count = start
    for column in columns:
        ranks, different = _ranks(column)
        codes, count = codes * different + ranks, count * different
        if count > _MOST_CODES * len(codes):
            codes, count = _ranks(codes)
    return codes, count


_MOST_CODES, _MOST_VALUES = 8, 64
"""Codes per row that are kept, and values per row up to which a table of them is faster than sorting."""


_FEW = 12


def _ranks(column: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """Rank of each value among the different ones, and their number."""
    if column.dtype == np.bool_:
        return column, 2
    whole = column.astype(np.int64, copy=False)
    least = int(whole.min())
    size = int(whole.max()) - least + 1
    if size > _MOST_VALUES * len(column) or (column.dtype.kind == "f" and (whole != column).any()):
        values, ranks = np.unique(column, return_inverse=True)
        return ranks, len(values)
    ranks = whole - least
    if size <= _FEW:
        return ranks, size
    used = np.zeros(size, dtype=np.bool_)
    used[ranks] = True
    present = np.flatnonzero(used)
    rank = np.empty(size, dtype=np.int64)  # read at present values alone
    rank[present] = np.arange(len(present))
    return rank[ranks], len(present)
