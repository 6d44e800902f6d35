"""Operators of a profile: count, FLOPs and memory traffic, by operator or by module."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.checkpoint_choice import block_paths
from smp_advisor.profiling.result_html import NotebookResult, box, details, table
from smp_advisor.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from smp_advisor.profiling.operator_log import OperatorKind
    from smp_advisor.profiling.result import BlockProfile, OperatorProfile, Profile

__all__ = ["Grouping", "OperatorRow", "OperatorTable", "operator_table"]

Grouping = Literal["operator", "module"]
COLUMNS = ("count", "flops", "bytes")
"""Figures that the table can be sorted by."""
_GROUPINGS: tuple[Grouping, ...] = ("operator", "module")
_SHOWN_ROWS = 30
_NOTE = (
    "Bytes are operands read and results written, each once. FLOPs are those of products and attention. Views and "
    "allocations run no kernel and are not counted."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorRow:
    """Equal operators in one pass of one microbatch."""

    operator: str
    """Name in PyTorch's dispatcher: ``aten.mm``."""
    kind: OperatorKind
    """``product``, ``attention``, or ``memory`` (bound by its memory traffic)."""
    phase: Literal["forward", "backward"]
    module: str = ""
    """Path of the module in the first of equal blocks; empty for the operators of all modules together."""
    blocks: int = 1
    """Number of equal blocks with this module."""
    count: int
    flops: int
    bytes: int
    share: float
    """Share of the bytes of the step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorTable(NotebookResult):
    """Operators of the forward and the backward pass of one microbatch. The rows add up to the model's step."""

    name: str
    batch: int
    sequence: int
    by: Grouping
    rows: tuple[OperatorRow, ...] = field(repr=False)

    def frame(self) -> pd.DataFrame:
        """One row per entry, with counts, FLOPs and bytes."""
        with uninterrupted():
            import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows])

    @property
    def _heads(self) -> tuple[str, ...]:
        first = ("Module", "Operator") if self.by == "module" else ("Operator",)
        return (*first, "Kind", "Pass", "Count", "FLOPs", "Bytes", "Share of bytes")

    def _text(self, row: OperatorRow) -> tuple[str, ...]:
        module = (row.module or "(model)") + (f" (× {row.blocks})" if row.blocks > 1 else "")
        return (
            *((module,) if self.by == "module" else ()),
            row.operator,
            row.kind,
            row.phase,
            f"{row.count:,}",
            f"{row.flops / 1e9:,.4g} G" if row.flops else "",
            f"{row.bytes / 2**20:,.4g} MiB",
            f"{row.share:.1%}",
        )

    @property
    def _title(self) -> str:
        size = f"batch {self.batch}" + (f", {self.sequence:,} tokens" if self.sequence > 1 else "")
        return f"Operators of {self.name} ({size})"

    def as_html(self) -> str:
        """HTML form for a notebook: the first rows, and all of them in a section that is closed at first."""
        texts = [self._text(row) for row in self.rows]
        parts = [f"<p>{_NOTE}</p>", table(texts[:_SHOWN_ROWS], self._heads)]
        if len(texts) > _SHOWN_ROWS:
            parts.append(details(f"All {len(texts)} rows", table(texts, self._heads)))
        return box(self._title, *parts)

    _repr_pretty_ = NotebookResult._repr_pretty_

    def __str__(self) -> str:
        lines = [self._heads, *map(self._text, self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in lines]
        return "\n".join([self._title, *(text.rstrip() for text in texts), _NOTE])


def operator_table(
    profile: Profile, by: Grouping, sort: str | None, batch: int | None, sequence: int | None
) -> OperatorTable:
    """Table of a profile's operators; see `Profile.operators`."""
    if by not in _GROUPINGS:
        raise ProfileError(f"by must be operator or module, not {by!r}.")
    if sort is not None and sort not in COLUMNS:
        raise ProfileError(
            f"sort must be one of {', '.join(COLUMNS)}, or None for the order of execution, not {sort!r}."
        )
    size = batch or profile.batch, sequence or profile.sequence
    sums: dict[tuple[str, str, str, str], list[int]] = {}
    blocks: dict[str, int] = {}
    for path, count, operators in _places(profile):
        for row in operators:
            module = f"{path}.{row.module}".strip(".") if by == "module" else ""
            blocks[module] = count if by == "module" else 1
            total = sums.setdefault((module, row.operator, row.kind, row.phase), [0, 0, 0])
            for place, figure in enumerate((row.count, row.flops, row.bytes)):
                total[place] += count * figure(*size)
    if not sums:
        raise ProfileError(
            f"The operators of {profile.name} were not traced: run the trace stage of its profile. Profiles from real "
            "steps of scaled copies have none."
        )
    every_byte = sum(total[2] for total in sums.values())
    rows = [
        OperatorRow(
            operator=operator,
            kind=kind,  # type: ignore[arg-type]
            phase=phase,  # type: ignore[arg-type]
            module=module,
            blocks=blocks[module],
            count=count,
            flops=flops,
            bytes=moved,
            share=moved / max(1, every_byte),
        )
        for (module, operator, kind, phase), (count, flops, moved) in sums.items()
    ]
    if sort is not None:
        rows.sort(key=lambda row: -getattr(row, sort))
    return OperatorTable(name=profile.name, batch=size[0], sequence=size[1], by=by, rows=tuple(rows))


def _places(profile: Profile) -> Iterator[tuple[str, int, tuple[OperatorProfile, ...]]]:
    """Path, number and operators of each kind of block, and of the layers outside the blocks."""
    groups: dict[BlockProfile, list[str]] = {}
    for block, path in zip(profile.blocks, block_paths(profile), strict=True):
        groups.setdefault(block, []).append(path)
    yield "", 1, profile.outside_operators
    for block, paths in groups.items():
        yield paths[0], len(paths), block.operators
