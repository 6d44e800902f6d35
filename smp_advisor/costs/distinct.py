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
    """One row of each kind, and the kind of each row; None if every row is its own."""

    layout: Layout
    kinds: NDArray[np.intp] | None

    def all_rows(self, values: Values) -> Values:
        """Return the values of all rows from those of the kinds, in the last axis, in every array of a structure."""
        kind: Any = type(values)
        parts: Any = values
        if self.kinds is None or kind in (bool, int, float):
            return values
        if kind is ndarray:
            parts = parts if parts.shape[-1] == 1 else parts.take(self.kinds, axis=-1)
        elif kind is dict:
            parts = {name: self.all_rows(part) for name, part in parts.items()}
        elif kind in (list, tuple):
            parts = kind(self.all_rows(part) for part in parts)
        else:
            names = getattr(kind, "_fields", None) or kind.__dataclass_fields__
            parts = kind(**{name: self.all_rows(getattr(parts, name)) for name in names})
        return cast("Values", parts)


def distinct(layout: Layout, by: Sequence[Floats], *, but: Sequence[str] = SCHEDULE) -> Distinct:
    """Rows that differ in columns of the layout, except `but`, or in the figures `by` that are read in their place."""
    if vars(layout).get("single"):
        return Distinct(layout, None)
    columns = {name: column for name, column in vars(layout).items() if type(column) is ndarray}
    rows = len(next(iter(columns.values()), ()))
    if rows < _LEAST_ROWS:
        return Distinct(layout, None)
    if "codes" not in vars(layout):  # of the columns that all terms read
        common = [column for name, column in columns.items() if name not in (*SCHEDULE, *OFFLOADING)]
        vars(layout)["codes"] = _codes(common, (np.zeros(rows, dtype=np.int64), 1))
    read = [columns[name] for name in (*SCHEDULE, *OFFLOADING) if name not in but and name in columns]
    codes, count = _codes([*(figure for figure in by if type(figure) is ndarray), *read], vars(layout)["codes"])
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
    reduced.__dict__["codes"] = (vars(layout)["codes"][0][chosen], vars(layout)["codes"][1])
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


_MOST_CODES = 8
"""Codes per row up to which a table of them is faster than sorting."""


_FEW = 12


def _ranks(column: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """Rank of each value among the different ones, and their number."""
    if column.dtype == np.bool_:
        return column, 2
    whole = column.astype(np.int64, copy=False)
    least = int(whole.min())
    size = int(whole.max()) - least + 1
    if size > _MOST_CODES * len(column) or (column.dtype.kind == "f" and (whole != column).any()):
        values, ranks = np.unique(column, return_inverse=True)
        return ranks, len(values)
    ranks = whole - least
    if size <= _FEW:
        return ranks, size
    used = np.zeros(size, dtype=np.int64)
    used[ranks] = 1
    rank = used.cumsum()
    return (rank - 1)[ranks], int(rank[-1])
