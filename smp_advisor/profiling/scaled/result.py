"""What the scaled copy showed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Comparison", "Reduction", "ScaledRun"]


@dataclass(frozen=True, slots=True)
class Reduction:
    """One dimension of the model and of its copy."""

    name: str
    full: int
    copy: int

    def __str__(self) -> str:
        return f"{self.name} {self.full:,} → {self.copy:,}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of the copy: what was predicted for it, and what its real steps took."""

    figure: str
    predicted: float
    measured: float
    predicted_by: str

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        if not self.measured:
            return 1.0 if not self.predicted else float("inf")
        return self.predicted / self.measured


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaledRun:
    """Real training steps of a scaled copy: proof that the model trains, and a check of what is predicted for it."""

    name: str
    how: str
    """How the copy came about: by configuration, by truncating repeated blocks, or the whole model."""
    reductions: tuple[Reduction, ...]
    """What was reduced; what is not here is the model's own."""
    parameter_count: int
    """Of the copy, tied ones once."""
    precision: str
    """How it was computed, for people."""
    optimizer: str
    losses: tuple[float, ...]
    """Of the steps, each the mean over its microbatches; all steps train on the same batch."""
    microbatches: tuple[int, ...]
    """Samples of each microbatch of a step."""
    partial_microbatches: tuple[int, ...]
    """The same for a last partial batch, which was trained on too."""
    partial_loss: float
    sequence: int
    """Tokens a sample; 1 where there is no sequence."""
    inputs: str
    trained: int
    """Parameters (tensors) that got a gradient."""
    without_gradient: tuple[str, ...]
    """Trainable ones that got none."""
    frozen: int
    """Parameters (tensors) that are not to be trained."""
    tied: tuple[tuple[str, ...], ...]
    """Groups of names that stand for one parameter, still one after training."""
    checkpointed: int
    """Blocks whose activations were recomputed in the backward pass."""
    recomputed: bool
    """Whether each of them ran its forward pass a second time in the backward pass."""
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]
    """What differs from the plan, or could not be done, and why."""
    seconds: float
    step_seconds: float
    """Of the last whole step on this machine: that it ran, not how fast a GPU is."""

    @property
    def finite(self) -> bool:
        """Whether every loss was a number."""
        return all(abs(loss) < float("inf") for loss in (*self.losses, self.partial_loss))

    @property
    def falling(self) -> bool:
        """Whether the loss fell on the batch that all steps trained on; with dropout not at every step."""
        return len(self.losses) > 1 and min(self.losses[1:]) < self.losses[0]

    @property
    def ok(self) -> bool:
        """Whether the copy trains: its losses are finite and fall, and every parameter gets a gradient."""
        return self.finite and self.falling and not self.without_gradient and (self.recomputed or not self.checkpointed)

    @property
    def summary(self) -> str:
        """The copy in one line."""
        size = f"{self.parameter_count / 1e6:.3g} M parameters"
        lowest = min(self.losses)
        last = "" if lowest == self.losses[-1] else f" (last {self.losses[-1]:.4g})"
        loss = f"loss {self.losses[0]:.4g} → {lowest:.4g}{last} in {len(self.losses)} steps"
        said = "trains" if self.ok else "does not train as it should"
        return f"A copy of {self.name} with {size} {said}: {loss}."

    @property
    def findings(self) -> tuple[tuple[str, str], ...]:
        """What was checked, and what was found."""
        rows = [
            ("Reduced", ", ".join(map(str, self.reductions)) or "nothing: the whole model ran"),
            ("Copied", self.how),
            ("Loss", ", ".join(f"{loss:.4g}" for loss in self.losses) + f"; {self._loss_words}"),
            ("Gradients", self._gradient_words),
            ("Precision", self.precision),
            ("Microbatches", self._batch_words),
            ("Checkpointing", self._checkpointing_words),
            ("Tied weights", "; ".join(" = ".join(group) for group in self.tied) or "none"),
            *((f"Predicted {one.figure}", _comparison_words(one)) for one in self.comparisons),
            *(("Note", note) for note in self.notes),
        ]
        return tuple(rows)

    @property
    def _loss_words(self) -> str:
        if not self.finite:
            return "not a number in some steps"
        return "falling" if self.falling else "not falling"

    @property
    def _gradient_words(self) -> str:
        frozen = f"; {self.frozen} are frozen" if self.frozen else ""
        if not self.without_gradient:
            return f"on each of {self.trained} parameters{frozen}"
        shown = ", ".join(self.without_gradient[:5]) + (", …" if len(self.without_gradient) > 5 else "")
        return f"none on {len(self.without_gradient)} of {self.trained + len(self.without_gradient)}: {shown}{frozen}"

    @property
    def _batch_words(self) -> str:
        if len(self.microbatches) == 1:
            return f"one of {self.microbatches[0]}; a last partial batch of {sum(self.partial_microbatches)} ran, too"
        even = len(set(self.partial_microbatches)) == 1 and len(self.partial_microbatches) == len(self.microbatches)
        last = f"a last partial batch of {sum(self.partial_microbatches)} as {_plus(self.partial_microbatches)}"
        advice = (
            "" if even else ", which are not equal: SMP needs equal ones, so let the loader drop it (drop_last=True)"
        )
        return f"a batch of {sum(self.microbatches)} as {_plus(self.microbatches)}; {last}{advice}"

    @property
    def _checkpointing_words(self) -> str:
        if not self.checkpointed:
            return "off"
        if self.recomputed:
            return f"{self.checkpointed} blocks, each run once more in the backward pass"
        return f"{self.checkpointed} blocks, but not each was run once more in the backward pass"

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ScaledRun:
        """The inverse of `as_dict`, also after a way through JSON."""
        given = dict(values)
        given["reductions"] = tuple(Reduction(**one) for one in given["reductions"])
        given["comparisons"] = tuple(Comparison(**one) for one in given["comparisons"])
        given["tied"] = tuple(tuple(group) for group in given["tied"])
        for name in ("losses", "microbatches", "partial_microbatches", "without_gradient", "notes"):
            given[name] = tuple(given[name])
        return cls(**given)

    def as_html(self) -> str:
        """For a notebook."""
        from smp_advisor.profiling.showing import box, table

        time = f"<p>{escape(self._time_words)}</p>"
        return box(self.summary, table(self.findings), time, ok=self.ok)

    @property
    def _time_words(self) -> str:
        return (
            f"Ran for {self.seconds:.1f} s on this machine, a step {self.step_seconds:.2g} s: proof that it runs, no "
            "measure of a GPU."
        )

    def _repr_html_(self) -> str:
        return self.as_html()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001 (IPython's own form)
        # What a saved notebook keeps beside the HTML, and what a terminal shows.
        printer.text("..." if cycle else str(self))

    def __str__(self) -> str:
        lines = [f"  {name}: {text}" for name, text in self.findings]
        return "\n".join([self.summary, *lines, self._time_words])


def _comparison_words(one: Comparison) -> str:
    if one.predicted == one.measured:
        return f"{one.predicted:,.0f} by {one.predicted_by}, the same measured"
    return f"{one.predicted:,.0f} by {one.predicted_by}, {one.measured:,.0f} measured ({one.ratio - 1:+.2%})"


def _plus(numbers: tuple[int, ...]) -> str:
    return " + ".join(map(str, numbers))
