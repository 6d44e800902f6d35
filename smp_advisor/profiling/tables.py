"""Tables of a profile: figures by module, and operators with their estimated time."""

from __future__ import annotations

import dataclasses
import html
import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal

from smp_advisor.cluster.table import instance
from smp_advisor.costs.kernels import operator_seconds
from smp_advisor.errors import ProfileError
from smp_advisor.profiling.checkpoint_choice import block_paths
from smp_advisor.profiling.result_html import NotebookResult, box, details, table
from smp_advisor.uninterrupted import uninterrupted
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from smp_advisor.cluster.table import Instance
    from smp_advisor.profiling.operator_log import OperatorKind
    from smp_advisor.profiling.result import BlockProfile, OperatorProfile, Profile

__all__ = ["Grouping", "ModuleTable", "OperatorTable", "module_table", "operator_table"]

_MODULE_COLUMNS = ("parameters", "forward_flops", "backward_flops", "saved_bytes")
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
    if sort is not None and sort not in _MODULE_COLUMNS:
        raise ProfileError(
            f"sort must be one of {', '.join(_MODULE_COLUMNS)}, or None for the order of execution, not {sort!r}."
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


Grouping = Literal["operator", "module"]
COLUMNS = ("count", "flops", "bytes", "seconds")
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
    """Share of the seconds of the step; of its bytes if no instance is set."""
    seconds: float | None = None
    """Estimated time on one GPU of the instance; None without an instance."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorTable(NotebookResult):
    """Operators of the forward and the backward pass of one microbatch. The rows add up to the model's step."""

    name: str
    batch: int
    sequence: int
    by: Grouping
    rows: tuple[OperatorRow, ...] = field(repr=False)
    instance_type: str = ""
    """Instance of the estimated seconds; empty for none."""
    gpu: str = ""

    @property
    def seconds(self) -> float | None:
        """Estimated time of all operators; None without an instance."""
        return math.fsum(row.seconds or 0.0 for row in self.rows) if self.instance_type else None

    def frame(self) -> pd.DataFrame:
        """One row per entry, with counts, FLOPs, bytes and seconds."""
        with uninterrupted():
            import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows])

    @property
    def _heads(self) -> tuple[str, ...]:
        first = ("Module", "Operator") if self.by == "module" else ("Operator",)
        last = ("Estimated time", "Share of time") if self.instance_type else ("Share of bytes",)
        return (*first, "Kind", "Pass", "Count", "FLOPs", "Bytes", *last)

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
            *(() if row.seconds is None else (f"{1e3 * row.seconds:,.3g} ms",)),
            f"{row.share:.1%}",
        )

    @property
    def _title(self) -> str:
        size = f"batch {self.batch}" + (f", {self.sequence:,} tokens" if self.sequence > 1 else "")
        return f"Operators of {self.name} ({size})"

    @property
    def _note(self) -> str:
        if self.seconds is None:
            return _NOTE
        return (
            f"{_NOTE} Time is an estimate for one {self.gpu} ({self.instance_type}), {1e3 * self.seconds:,.3g} ms in "
            "total: the slower of FLOPs and bytes at the rates of the step-time model, for large products and without "
            "launches and communication."
        )

    def as_html(self) -> str:
        """HTML form for a notebook: the first rows, and all of them in a section that is closed at first."""
        texts = [self._text(row) for row in self.rows]
        parts = [f"<p>{html.escape(self._note)}</p>", table(texts[:_SHOWN_ROWS], self._heads)]
        if len(texts) > _SHOWN_ROWS:
            parts.append(details(f"All {len(texts)} rows", table(texts, self._heads)))
        return box(self._title, *parts)

    _repr_pretty_ = NotebookResult._repr_pretty_

    def __str__(self) -> str:
        lines = [self._heads, *map(self._text, self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in lines]
        return "\n".join([self._title, *(text.rstrip() for text in texts), self._note])


def operator_table(
    profile: Profile,
    by: Grouping,
    sort: str | None,
    batch: int | None,
    sequence: int | None,
    instance_type: str | None,
) -> OperatorTable:
    """Table of a profile's operators; see `Profile.operators`."""
    if by not in _GROUPINGS:
        raise ProfileError(f"by must be operator or module, not {by!r}.")
    if sort is not None and sort not in COLUMNS:
        raise ProfileError(
            f"sort must be one of {', '.join(COLUMNS)}, or None for the order of execution, not {sort!r}."
        )
    gpu = None if instance_type is None else instance(instance_type)
    if sort == "seconds" and gpu is None:
        raise ProfileError('Seconds depend on the GPU: pass instance_type="ml.p4d.24xlarge" or another instance.')
    size = batch or profile.batch, sequence or profile.sequence
    sums: dict[tuple[str, str, str, str], list[int]] = {}
    seconds: dict[tuple[str, str, str, str], float] = {}
    blocks: dict[str, int] = {}
    for path, count, operators in _places(profile):
        for row in operators:
            module = f"{path}.{row.module}".strip(".") if by == "module" else ""
            blocks[module] = count if by == "module" else 1
            key = (module, row.operator, row.kind, row.phase)
            total = sums.setdefault(key, [0, 0, 0])
            figures = [figure(*size) for figure in (row.count, row.flops, row.bytes)]
            for place, figure in enumerate(figures):
                total[place] += count * figure
            if gpu is not None:
                taken = _seconds(profile, row.kind, row.phase, figures[1], figures[2], size[1], gpu)
                seconds[key] = seconds.get(key, 0.0) + count * taken
    if not sums:
        raise ProfileError(
            f"The operators of {profile.name} were not traced: run the trace stage of its profile. Profiles from real "
            "steps of scaled copies have none."
        )
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
            share=0.0,
            seconds=seconds.get((module, operator, kind, phase)),
        )
        for (module, operator, kind, phase), (count, flops, moved) in sums.items()
    ]
    weights = [row.bytes if row.seconds is None else row.seconds for row in rows]
    every = math.fsum(weights) or 1.0
    rows = [dataclasses.replace(row, share=weight / every) for row, weight in zip(rows, weights, strict=True)]
    if sort is not None:
        rows.sort(key=lambda row: -getattr(row, sort))
    return OperatorTable(
        name=profile.name,
        batch=size[0],
        sequence=size[1],
        by=by,
        rows=tuple(rows),
        instance_type="" if gpu is None else gpu.name,
        gpu="" if gpu is None else gpu.gpu,
    )


def _seconds(profile: Profile, kind: str, phase: str, flops: int, moved: int, sequence: int, gpu: Instance) -> float:
    """Estimated time of equal operators; attention has the width and the mask of the model's first one."""
    attention = next((attention for block in profile.blocks for attention in block.attentions), None)
    return operator_seconds(
        kind,  # type: ignore[arg-type]
        flops,
        moved,
        gpu,
        fp32=profile.precision == "fp32",
        head_dim=128 if attention is None else attention.head_dim,
        keys=sequence,
        causal=attention is not None and attention.causal,
        backward=phase == "backward",
    )


def _places(profile: Profile) -> Iterator[tuple[str, int, tuple[OperatorProfile, ...]]]:
    """Path, number and operators of each kind of block, and of the layers outside the blocks."""
    groups: dict[BlockProfile, list[str]] = {}
    for block, path in zip(profile.blocks, block_paths(profile), strict=True):
        groups.setdefault(block, []).append(path)
    yield "", 1, profile.outside_operators
    for block, paths in groups.items():
        yield paths[0], len(paths), block.operators
