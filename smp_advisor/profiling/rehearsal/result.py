"""What a rehearsal showed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.rehearsal.degrees import Degrees

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Rehearsal", "StageSlots"]

TOLERANCE = 1e-4
"""Relative, of loss and gradients in fp32: sums in another order differ by less."""

_SHARDING = {
    "none": "whole replicas",
    "optimizer": "optimizer state divided",
    "full": "parameters divided (FSDP)",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSlots:
    """One pipeline stage's passes."""

    order: tuple[str, ...]
    """``F0 F1 B0 ...``: as PyTorch ran them."""
    expected: tuple[str, ...]
    """As the cost model has them."""
    in_flight: int
    expected_in_flight: int

    @property
    def same(self) -> bool:
        """Whether order and count agree."""
        return self.order == self.expected and self.in_flight == self.expected_in_flight


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsal:
    """The plan's parallelism on local processes, against one process that trains the same batch."""

    name: str
    degrees: Degrees
    planned: str
    """The plan's own degrees, for people."""
    reductions: tuple[str, ...]
    """What was reduced to get the copy."""
    divided: str
    """What tensor parallelism divided; empty without it."""
    stages: tuple[StageSlots, ...]
    """Empty without a pipeline."""
    stage_blocks: tuple[int, ...]
    """Blocks of each stage."""
    loss: float
    single_loss: float
    gradient_difference: float
    """Largest over the parameters: length of the difference over length of the gradient."""
    worst_parameter: str
    parameter_difference: float
    """The same for the parameters after one optimizer step."""
    parameters_compared: int
    held: tuple[int, ...]
    """Elements of parameters that each rank keeps after sharding and division."""
    optimizer_held: tuple[int, ...]
    """Elements of optimizer state that each rank keeps."""
    not_rehearsed: tuple[str, ...]
    """What of the plan this could not show, each in a sentence."""
    seconds: float

    @property
    def same_loss(self) -> bool:
        """Whether both lose the same."""
        return abs(self.loss - self.single_loss) <= TOLERANCE * max(1.0, abs(self.single_loss))

    @property
    def same_gradients(self) -> bool:
        """Whether every parameter gets the same gradient and takes the same step."""
        return self.gradient_difference <= TOLERANCE and self.parameter_difference <= TOLERANCE

    @property
    def same_schedule(self) -> bool:
        """Whether every stage runs its passes in the order of the cost model's schedule."""
        return all(stage.same for stage in self.stages)

    @property
    def ok(self) -> bool:
        """Whether loss, gradients and schedule agree."""
        return self.same_loss and self.same_gradients and self.same_schedule

    @property
    def summary(self) -> str:
        """The rehearsal in one line."""
        said = "agree with one process" if self.ok else "do not agree with one process"
        return (
            f"{self.degrees.world} processes ({self.degrees}) {said}: loss {self.loss:.6g} and {self.single_loss:.6g}."
        )

    @property
    def findings(self) -> tuple[tuple[str, str], ...]:
        """What was checked, and what was found."""
        gradients = (
            f"of {self.parameters_compared} parameters, farthest {self.gradient_difference:.1e} on "
            f"{self.worst_parameter}; after an optimizer step {self.parameter_difference:.1e}"
        )
        rows = [
            ("Planned", self.planned),
            ("Rehearsed", str(self.degrees)),
            ("Loss", f"{self.loss:.7g}, in one process {self.single_loss:.7g}"),
            ("Gradients", gradients),
        ]
        if self.divided:
            rows.append(("Tensor parallelism", f"divided {self.divided}"))
        for number, stage in enumerate(self.stages):
            agrees = "as the cost model" if stage.same else f"the cost model says {' '.join(stage.expected)}"
            blocks = self.stage_blocks[number]
            words = f"{blocks} block{'s' if blocks > 1 else ''}"
            held = f"{words}; {' '.join(stage.order)}; {stage.in_flight} in flight"
            rows.append((f"Stage {number}", f"{held}; {agrees}"))
        if self.degrees.data > 1:
            words = _SHARDING[self.degrees.sharding]
            held = f"ranks hold {_list(self.held)} parameters, {_list(self.optimizer_held)} of state"
            rows.append(("Data parallelism", f"{words}; {held}"))
        rows.append(("Reduced", ", ".join(self.reductions) or "nothing"))
        return (*rows, *(("Not rehearsed", sentence) for sentence in self.not_rehearsed))

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Rehearsal:
        """The inverse of `as_dict`, also after a way through JSON."""
        given = dict(values)
        given["degrees"] = Degrees(**given["degrees"])
        given["stages"] = tuple(
            StageSlots(**(one | {"order": tuple(one["order"]), "expected": tuple(one["expected"])}))
            for one in given["stages"]
        )
        for name in ("reductions", "stage_blocks", "held", "optimizer_held", "not_rehearsed"):
            given[name] = tuple(given[name])
        return cls(**given)

    def as_html(self) -> str:
        """For a notebook."""
        from smp_advisor.profiling.showing import box, table

        return box(self.summary, table(self.findings), ok=self.ok)

    def _repr_html_(self) -> str:
        return self.as_html()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001 (IPython's own form)
        # What a saved notebook keeps beside the HTML, and what a terminal shows.
        printer.text("..." if cycle else str(self))

    def __str__(self) -> str:
        return "\n".join([self.summary, *(f"  {name}: {text}" for name, text in self.findings)])


def _list(numbers: tuple[int, ...]) -> str:
    distinct = sorted(set(numbers))
    return f"{distinct[0]:,}" if len(distinct) == 1 else f"{distinct[0]:,} to {distinct[-1]:,}"
