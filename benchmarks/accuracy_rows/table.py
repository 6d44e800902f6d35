"""Tables of measured runs: kind of file, rows, and selection of scored rows."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Row", "SkippedError", "Table", "TableError", "TableKind", "read_table", "without_column"]

TableKind = Literal["throughput", "memory", "known_good", "max_batch"]

# Columns that only one kind of table has. The name of a file does not matter.
_SIGNATURES: dict[TableKind, frozenset[str]] = {
    "throughput": frozenset({"step_time_s", "tokens_per_s_per_gpu", "plan_kind"}),
    "memory": frozenset({"rank_or_stage", "memory_gib_per_gpu", "mem_class", "plan_kind"}),
    "known_good": frozenset({"sharded_data_parallel_degree", "instances", "batch_semantics"}),
    "max_batch": frozenset({"max_batch_per_gpu_native", "instance_type"}),
}

_EMPTY = frozenset({"", "null", "none given", "n/a", "-"})


class TableError(Exception):
    """A file that is not a table of measured runs."""


class SkippedError(Exception):
    """A row that cannot be expressed. The message is the reason in the count."""


@dataclass(frozen=True)
class Row:
    """One row of a table, with typed access to its columns. Empty and missing values are None."""

    values: Mapping[str, str]

    def text(self, column: str) -> str:
        """Text of a column in lower case; empty without a value."""
        value = (self.values.get(column) or "").strip()
        return "" if value.lower() in _EMPTY else value.lower()

    def number(self, column: str) -> float | None:
        """Number of a column."""
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    def positive(self, column: str) -> float | None:
        """Positive number of a column, else None."""
        value = self.number(column)
        return value if value is not None and value > 0 else None

    def count(self, column: str) -> int | None:
        """Whole number of a column; None below 1."""
        value = self.number(column)
        return round(value) if value is not None and value >= 1 else None

    def flag(self, column: str) -> bool | None:
        """Boolean of a column; None without a value."""
        text = self.text(column)
        if not text:
            return None
        return text.split()[0].strip(",;()") in {"true", "yes", "on", "1", "each", "full"}

    @property
    def scorable(self) -> bool:
        """Whether the row is judged and all stages have the same plan."""
        return self.judged and self.text("plan_kind") in {"", "uniform"}

    @property
    def judged(self) -> bool:
        """Whether the row is verified and complete, with at most one small inference."""
        return self.text("verified") == "yes" and self.text("quality") in {"a", "b"}


@dataclass(frozen=True)
class Table:
    """One file."""

    path: Path
    kind: TableKind
    rows: tuple[Row, ...]
    users_code: bool = False
    """Whether the runs are of users' code on AWS (tables in a folder ``aws``), which are never pooled with others."""


def without_column(table: Table, column: str) -> Table:
    """The table without the values of a column."""
    return replace(table, rows=tuple(Row({**row.values, column: ""}) for row in table.rows))


def read_table(path: Path) -> Table:
    """Read one file. Its columns determine its kind."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = frozenset(reader.fieldnames or ())
            rows = tuple(Row({key: value or "" for key, value in row.items() if key}) for row in reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TableError(f"{path} cannot be read as a CSV table: {error}.") from error
    for kind, signature in _SIGNATURES.items():
        if signature <= columns:
            return Table(path, kind, rows, users_code=path.resolve().parent.name == "aws")
    raise TableError(
        f"{path} is not a table of measured runs: it has the columns of none of {', '.join(_SIGNATURES)} "
        "(see the README next to the published measurements)."
    )
