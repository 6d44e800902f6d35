"""Results of a rehearsal."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.rehearsal.degrees import Degrees
from smp_advisor.profiling.result_html import NotebookResult, box, table

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Problem", "Rehearsal", "StageSlots"]

TOLERANCE = 1e-4
"""Maximum relative difference of loss and gradients in fp32, which allows for a different summation order."""

_SHARDING = {
    "none": "full replicas",
    "optimizer": "optimizer state sharded",
    "full": "parameters sharded (FSDP)",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A property of the model, its loss or its data that breaks the planned job."""

    kind: str
    """Cause in two or three words: ``sum loss``."""
    text: str
    parameter: str = ""
    """Name of the parameter with the largest difference; empty if the problem is in no single parameter."""
    rank: int | None = None
    """First rank with the problem; None if one process has it already."""
    line: str = ""
    """The user's file and line; empty if unknown."""

    def __str__(self) -> str:
        details = [
            f"parameter {self.parameter}" if self.parameter else "",
            "" if self.rank is None or self.text.startswith(f"Rank {self.rank} ") else f"first at rank {self.rank}",
            self.line,
        ]
        details = [detail for detail in details if detail]
        return f"{self.text} ({'; '.join(details)})" if details else self.text


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSlots:
    """Forward and backward passes of one pipeline stage."""

    order: tuple[str, ...]
    """Passes in the order that PyTorch ran them: ``F0 F1 B0 ...``."""
    expected: tuple[str, ...]
    """Passes in the order of the cost model."""
    in_flight: int
    expected_in_flight: int

    @property
    def same(self) -> bool:
        """Whether order and microbatches in flight agree."""
        return self.order == self.expected and self.in_flight == self.expected_in_flight


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsal(NotebookResult):
    """The plan's parallelism on local processes, compared with one process that trains the same batch."""

    name: str
    degrees: Degrees
    planned: str
    """The plan's degrees, as text for the user."""
    reductions: tuple[str, ...]
    """Reduced dimensions of the copy."""
    divided: str
    """Products divided by tensor parallelism, as text; empty without it."""
    stages: tuple[StageSlots, ...]
    """Empty without a pipeline."""
    stage_blocks: tuple[int, ...]
    """Number of blocks of each stage."""
    loss: float | None
    """None if the ranks did not complete the step; `problems` has the cause."""
    single_loss: float
    gradient_difference: float | None
    """Largest relative difference: norm of the difference over norm of the gradient, per parameter."""
    worst_parameter: str
    parameter_difference: float | None
    """Largest relative difference of the parameters after one optimizer step."""
    parameters_compared: int
    parameter_elements: tuple[int, ...]
    """Parameter elements per rank, after sharding and tensor parallelism."""
    optimizer_elements: tuple[int, ...]
    """Elements of optimizer state per rank."""
    not_rehearsed: tuple[str, ...]
    """Parts of the plan that were not rehearsed, one sentence each."""
    samples: int = 1
    """Samples per microbatch."""
    checkpointed: bool = False
    """Whether blocks were recomputed in the backward pass."""
    entire_loss: float | None = None
    """Loss of all samples in one pass of one process; None if it is not comparable."""
    problems: tuple[Problem, ...] = ()
    """Properties of the model, its loss or its data that break the planned job."""
    notes: tuple[str, ...] = ()
    """Requirements of the model that break nothing, one sentence each."""

    @property
    def completed(self) -> bool:
        """Whether every rank completed the step."""
        return self.loss is not None

    @property
    def same_loss(self) -> bool:
        """Whether both runs have the same loss."""
        if self.loss is None:
            return False
        return abs(self.loss - self.single_loss) <= TOLERANCE * max(1.0, abs(self.single_loss))

    @property
    def same_gradients(self) -> bool:
        """Whether every parameter has the same gradient and the same update."""
        return _is_small(self.gradient_difference) and _is_small(self.parameter_difference)

    @property
    def same_schedule(self) -> bool:
        """Whether every stage runs its passes in the order of the cost model."""
        return self.completed and all(stage.same for stage in self.stages)

    @property
    def ok(self) -> bool:
        """Whether loss, gradients and schedule agree, and nothing that breaks the job was found."""
        return self.same_loss and self.same_gradients and self.same_schedule and not self.problems

    @property
    def summary(self) -> str:
        """The rehearsal in one line."""
        problems = " ".join(map(str, self.problems))
        if self.loss is None:
            return f"{self.degrees.world} processes ({self.degrees}) did not complete a step. {problems}"
        checks = (
            ("loss", self.same_loss),
            ("gradients", _is_small(self.gradient_difference)),
            ("parameters after a step", _is_small(self.parameter_difference)),
            ("order of the pipeline", self.same_schedule),
        )
        different = ", ".join(label for label, same in checks if not same)
        outcome = f"do not agree with one process ({different})" if different else "agree with one process"
        if math.isnan(self.loss) and math.isnan(self.single_loss):
            outcome = "have NaN, as one process has"
        losses = f"loss {self.loss:.6g} and {self.single_loss:.6g}"
        return f"{self.degrees.world} processes ({self.degrees}) {outcome}: {losses}. {problems}".rstrip()

    @property
    def findings(self) -> tuple[tuple[str, str], ...]:
        """Label and text of each check."""
        samples = f"{self.samples} sample{'s' if self.samples > 1 else ''} each"
        rows = [
            *(("Problem", str(problem)) for problem in self.problems),
            ("Planned", self.planned),
            ("Rehearsed", f"{self.degrees} of {samples}{', blocks recomputed' if self.checkpointed else ''}"),
            *self._compared,
        ]
        if self.entire_loss is not None:
            rows.append(("Entire batch", f"loss {self.entire_loss:.7g} in one pass of one process"))
        if self.divided:
            rows.append(("Tensor parallelism", f"divided {self.divided}"))
        for number, stage in enumerate(self.stages):
            comparison = "same as the cost model" if stage.same else f"the cost model has {' '.join(stage.expected)}"
            blocks = self.stage_blocks[number]
            count = f"{blocks} block{'s' if blocks > 1 else ''}"
            schedule = f"{' '.join(stage.order)}; {stage.in_flight} microbatches in flight"
            rows.append((f"Stage {number}", f"{count}; {schedule}; {comparison}"))
        if self.degrees.data > 1 and self.completed:
            elements = (
                f"{_range(self.parameter_elements)} parameters, {_range(self.optimizer_elements)} of optimizer state"
            )
            rows.append(("Data parallelism", f"{_SHARDING[self.degrees.sharding]}; {elements} per rank"))
        rows.append(("Reduced", ", ".join(self.reductions) or "nothing"))
        rows += [("Note", sentence) for sentence in self.notes]
        return (*rows, *(("Not rehearsed", sentence) for sentence in self.not_rehearsed))

    @property
    def _compared(self) -> list[tuple[str, str]]:
        """Loss and gradients next to those of one process."""
        if self.loss is None or self.gradient_difference is None or self.parameter_difference is None:
            return [("Loss", f"{self.single_loss:.7g} in one process; the ranks did not complete the step")]
        gradients = (
            f"{self.parameters_compared} parameters, largest relative difference {self.gradient_difference:.1e} "
            f"({self.worst_parameter}); {self.parameter_difference:.1e} after an optimizer step"
        )
        return [("Loss", f"{self.loss:.7g} ({self.single_loss:.7g} in one process)"), ("Gradients", gradients)]

    def as_dict(self) -> dict[str, Any]:
        """Convert to plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Rehearsal:
        """Inverse of `as_dict`, also after a JSON round trip."""
        fields = dict(values)
        fields["degrees"] = Degrees(**fields["degrees"])
        fields["stages"] = tuple(
            StageSlots(**(stage | {"order": tuple(stage["order"]), "expected": tuple(stage["expected"])}))
            for stage in fields["stages"]
        )
        for name in (
            "reductions",
            "stage_blocks",
            "parameter_elements",
            "optimizer_elements",
            "not_rehearsed",
            "notes",
        ):
            fields[name] = tuple(fields.get(name, ()))
        fields["problems"] = tuple(Problem(**problem) for problem in fields.get("problems", ()))
        return cls(**fields)

    def as_html(self) -> str:
        """HTML form for a notebook."""
        return box(self.summary, table(self.findings), ok=self.ok)

    _repr_pretty_ = NotebookResult._repr_pretty_

    def __str__(self) -> str:
        return "\n".join([self.summary, *(f"  {name}: {text}" for name, text in self.findings)])


def _is_small(difference: float | None) -> bool:
    return difference is not None and difference <= TOLERANCE


def _range(numbers: tuple[int, ...]) -> str:
    distinct = sorted(set(numbers))
    return f"{distinct[0]:,}" if len(distinct) == 1 else f"{distinct[0]:,} to {distinct[-1]:,}"
