"""Parameters, FLOPs and saved bytes of a profile by module."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.checkpoint_choice import block_paths
from smp_advisor.profiling.result_html import NotebookResult, box, table
from smp_advisor.uninterrupted import uninterrupted
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    import pandas as pd

    from smp_advisor.profiling.result import BlockProfile, Profile

__all__ = ["ModuleRow", "ModuleTable", "module_table"]

COLUMNS = ("parameters", "forward_flops", "backward_flops", "saved_bytes")
"""Figures that the table can be sorted by."""
_HEADS = ("Module", "Count", "Parameters", "Forward FLOPs", "Backward FLOPs", "Saved", "Share of saved")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleRow:
    """Figures of equal blocks together, or of the layers outside the blocks, for one microbatch."""

    module: str
    """Path of the first block; ``outside the blocks`` for all other layers."""
    kind: str
    """Class of the block."""
    count: int
    """Number of equal blocks."""
    parameters: int
    forward_flops: int
    backward_flops: int
    saved_bytes: int
    """Saved by autograd, without activation checkpointing."""
    saved_share: float
    """Share of the saved bytes of the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleTable(NotebookResult):
    """The modules of a model: blocks that repeat, and the layers outside them. The rows add up to the model."""

    name: str
    batch: int
    sequence: int
    rows: tuple[ModuleRow, ...]

    def frame(self) -> pd.DataFrame:
        """One row per module, with counts in FLOPs and bytes."""
        with uninterrupted():
            import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows]).set_index("module")

    @property
    def _texts(self) -> list[tuple[str, ...]]:
        return [
            (
                row.module + (f" ({row.kind})" if row.kind else ""),
                f"{row.count:,}",
                format_count(row.parameters),
                f"{row.forward_flops / 1e9:,.4g} G",
                f"{row.backward_flops / 1e9:,.4g} G",
                f"{row.saved_bytes / 2**20:,.4g} MiB",
                f"{row.saved_share:.1%}",
            )
            for row in self.rows
        ]

    @property
    def _title(self) -> str:
        size = f"batch {self.batch}" + (f", {self.sequence:,} tokens" if self.sequence > 1 else "")
        return f"Modules of {self.name} ({size})"

    def as_html(self) -> str:
        """HTML form for a notebook."""
        return box(self._title, table(self._texts, _HEADS))

    _repr_pretty_ = NotebookResult._repr_pretty_

    def __str__(self) -> str:
        lines = [_HEADS, *self._texts]
        widths = [max(len(line[place]) for line in lines) for place in range(len(_HEADS))]
        texts = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in lines]
        return "\n".join([self._title, *(text.rstrip() for text in texts)])


def module_table(profile: Profile, sort: str | None = None) -> ModuleTable:
    """Table of a profile's modules; see `Profile.modules`."""
    if sort is not None and sort not in COLUMNS:
        raise ProfileError(
            f"sort must be one of {', '.join(COLUMNS)}, or None for the order of execution, not {sort!r}."
        )
    if not profile.is_traced:
        raise ProfileError(f"{profile.name} was not traced: run the trace stage of its profile.")
    size = profile.batch, profile.sequence
    saved = profile.saved_bytes(*size)
    groups: dict[BlockProfile, list[str]] = {}
    for block, path in zip(profile.blocks, block_paths(profile), strict=True):
        groups.setdefault(block, []).append(path)
    rows = [
        ModuleRow(
            module=paths[0],
            kind=block.kind,
            count=len(paths),
            parameters=len(paths) * block.parameters,
            forward_flops=len(paths) * block.forward_flops(*size),
            backward_flops=len(paths) * block.backward_flops(*size),
            saved_bytes=len(paths) * block.saved_bytes(*size),
            saved_share=len(paths) * block.saved_bytes(*size) / max(1, saved),
        )
        for block, paths in groups.items()
    ]
    outside = saved - sum(row.saved_bytes for row in rows)
    rows.append(
        ModuleRow(
            module="outside the blocks",
            kind="",
            count=1,
            parameters=profile.parameter_count - sum(row.parameters for row in rows),
            forward_flops=profile.forward_flops(*size) - sum(row.forward_flops for row in rows),
            backward_flops=profile.backward_flops(*size) - sum(row.backward_flops for row in rows),
            saved_bytes=outside,
            saved_share=outside / max(1, saved),
        )
    )
    if sort is not None:
        rows.sort(key=lambda row: -getattr(row, sort))
    return ModuleTable(name=profile.name, batch=profile.batch, sequence=profile.sequence, rows=tuple(rows))
