"""Memory of one traced rank, next to that of the cost model's formulas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.profiling.result_html import NotebookResult, box, table

if TYPE_CHECKING:
    from smp_advisor.libraries.plan import Plan

__all__ = ["CategoryMemory", "TracedRank"]

_TOLERANCE = 0.1
"""Relative difference that the summary calls agreement."""
_SHOWN_GIB = 0.005


@dataclass(frozen=True, kw_only=True, slots=True)
class CategoryMemory:
    """Memory of one category at the peak, GiB."""

    name: str
    """A category of `StageMemory` without its unit, or ``inputs``."""
    formula_gib: float
    traced_gib: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedRank(NotebookResult):
    """Peak memory of one GPU, traced operator by operator on the full model in the plan's own layout.

    Both totals are allocated tensors: without the memory that the allocator reserves, and without the CUDA context.
    """

    name: str
    """The model's."""
    plan: Plan
    stage: int
    """Pipeline stage, from 0."""
    stages: int
    rank: int
    """Global rank, the first of the stage."""
    world: int
    """GPUs of the job."""
    phase: str
    """Part of the step with the peak: ``forward``, ``backward`` or ``optimizer``."""
    categories: tuple[CategoryMemory, ...]
    expressed: tuple[str, ...]
    """How PyTorch expressed the plan, one phrase each."""
    not_traced: tuple[str, ...]
    """Parts of the plan that the trace left out or replaced, one sentence each."""
    operations: int
    needed_gib: float = 0.0
    """Memory that the GPU must have for the traced tensors, with fragmentation and CUDA context."""
    usable_gib: float = 0.0
    """Memory that a process can use on the GPU."""

    @property
    def traced_gib(self) -> float:
        """Traced peak of allocated memory."""
        return sum(category.traced_gib for category in self.categories)

    @property
    def formula_gib(self) -> float:
        """The cost model's estimate of the same memory."""
        return sum(category.formula_gib for category in self.categories)

    @property
    def difference(self) -> float:
        """Traced over formula, minus 1."""
        return self.traced_gib / self.formula_gib - 1 if self.formula_gib else 0.0

    @property
    def fits(self) -> bool:
        """Whether the traced tensors fit, with fragmentation and CUDA context."""
        return self.needed_gib <= self.usable_gib

    @property
    def agrees(self) -> bool:
        """Whether formula and trace differ by at most 10 %."""
        return abs(self.difference) <= _TOLERANCE

    @property
    def summary(self) -> str:
        """The comparison in one line."""
        place = f", stage {self.stage} of {self.stages}" if self.stages > 1 else ""
        over = f" The trace needs {self.needed_gib:.1f} GiB, over the {self.usable_gib:.1f} GiB available."
        text = f"{self.name}{place}: {self.comparison} ({100 * self.difference:+.1f} %)."
        return text if self.fits else text + over

    @property
    def comparison(self) -> str:
        """Both totals: "formula 16.4, traced 15.0 GiB per GPU"."""
        return f"formula {_amount(self.formula_gib)}, traced {_amount(self.traced_gib)} GiB per GPU"

    @property
    def findings(self) -> tuple[tuple[str, str], ...]:
        """Label and text of each part of the result."""
        rows = [("Peak", f"{_PHASES[self.phase]}, rank {self.rank:,} of {self.world:,} GPUs")]
        outcome = "fits" if self.fits else "does not fit"
        needed = f"{self.needed_gib:.1f} of {self.usable_gib:.1f} GiB usable, with fragmentation and CUDA context"
        rows.append(("Needed", f"{needed}: {outcome}"))
        rows += [("Layout", phrase) for phrase in self.expressed]
        return (*rows, *(("Not traced", sentence) for sentence in self.not_traced))

    @property
    def rows(self) -> tuple[tuple[str, str, str, str], ...]:
        """Category, formula, trace and difference in GiB, as text; categories without memory are left out."""
        shown = [row for row in self.categories if max(row.formula_gib, row.traced_gib) >= _SHOWN_GIB]
        entries = [(row.name.replace("_", " "), row.formula_gib, row.traced_gib) for row in shown]
        entries.append(("total", self.formula_gib, self.traced_gib))
        return tuple((name, f"{a:.2f}", f"{b:.2f}", f"{b - a:+.2f}") for name, a, b in entries)

    def as_html(self) -> str:
        """HTML form for a notebook."""
        return box(self.summary, table(self.rows, _HEADS), table(self.findings))

    _repr_pretty_ = NotebookResult._repr_pretty_

    def __str__(self) -> str:
        lines = [f"  {name:<16}{a:>10}{b:>10}{c:>12}" for name, a, b, c in (_TEXT_HEADS, *self.rows)]
        return "\n".join([self.summary, *lines, *(f"  {label}: {text}" for label, text in self.findings)])


_HEADS = ("Memory at the peak", "Formula, GiB", "Traced, GiB", "Difference, GiB")
_TEXT_HEADS = ("GiB per GPU", "formula", "traced", "difference")
_PHASES = {"forward": "in the forward pass", "backward": "in the backward pass", "optimizer": "in the optimizer step"}


def _amount(gib: float) -> str:
    return f"{gib:.1f}" if gib >= 1 else f"{gib:.3f}"
