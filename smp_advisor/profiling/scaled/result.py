"""Result of training the scaled copy."""

from __future__ import annotations

from dataclasses import dataclass

from smp_advisor.core.tables import Shown
from smp_advisor.profiling.parts import Agreement  # noqa: TC001 (read from the annotation when results are restored)

_EXPLOSION = 10.0
"""Rise of the loss, over its first value, that no sound start has: CLIP's goes from 0.69 to 3.3 in two steps."""
_SMALLEST_LOSS = 1e-3
"""First value for which a loss that starts nearer to 0 counts."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """One dimension of the model that is smaller in the copy."""

    name: str
    full: int
    copy: int

    def __str__(self) -> str:
        return f"{self.name} {self.full:,} → {self.copy:,}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaledRun(Shown):
    """Real training steps of a scaled copy: whether the model trains, and a check of the predictions."""

    name: str
    reductions: tuple[Reduction, ...]
    """Reduced dimensions; all others are unchanged."""
    parameter_count: int
    """Parameters of the copy; tied parameters count once."""
    losses: tuple[float, ...]
    """Loss of each step, in fp32; all steps train on the same batch."""
    sequence: int
    """Tokens per sample; 1 if there is no sequence."""
    inputs: str
    trained: int
    """Number of parameter tensors with a gradient."""
    without_gradient: tuple[str, ...]
    """Names of trainable parameters without a gradient."""
    frozen: int
    """Number of frozen parameter tensors."""
    tied: tuple[tuple[str, ...], ...]
    """Groups of names of the same parameter that are still tied after training."""
    comparisons: tuple[Agreement, ...]
    notes: tuple[str, ...]
    """Differences from the job, and why."""
    returns_loss: bool = True
    """Whether the model returns a loss; if not, the mean of its outputs was trained."""
    unused: tuple[str, ...] = ()
    """Those of `without_gradient` whose layers do not run in the forward pass."""

    @property
    def finite(self) -> bool:
        """Whether every loss is finite."""
        return all(abs(loss) < float("inf") for loss in self.losses)

    @property
    def exploding(self) -> bool:
        """Whether the loss rises by many times its first value: within two steps, it need not fall."""
        first = self.losses[0]
        return self.losses[-1] - first > _EXPLOSION * max(abs(first), _SMALLEST_LOSS)

    @property
    def problems(self) -> tuple[str, ...]:
        """Reasons why the copy does not train, as text; empty if it does."""
        checks = (
            ("the loss is not a number in some steps", not self.finite),
            ("the loss explodes", self.returns_loss and self.finite and self.exploding),
            (f"gradients are {self._gradient_text}", bool(set(self.without_gradient) - set(self.unused))),
        )
        return tuple(text for text, failed in checks if failed)

    @property
    def ok(self) -> bool:
        """Whether the copy trains: its losses are finite and do not explode, and layers that run get gradients."""
        return not self.problems

    @property
    def summary(self) -> str:
        """The result in one line."""
        size = f"{self.parameter_count / 1e6:.3g} M parameters"
        is_partial = self.problems == (f"gradients are {self._gradient_text}",)
        outcome = "trains" if self.ok else "trains only in part" if is_partial else "does not train correctly"
        gradients = () if set(self.without_gradient) - set(self.unused) else (self._gradient_text,)
        return (
            f"A copy of {self.name} with {size} {outcome}: {'; '.join((self._loss_text, *gradients, *self.problems))}."
        )

    @property
    def findings(self) -> tuple[tuple[str, str], ...]:
        """Label and text of each check."""
        rows = [
            ("Reduced", ", ".join(map(str, self.reductions)) or "nothing: the full model ran"),
            ("Loss", self._loss_text),
            ("Gradients", self._gradient_text),
            ("Tied weights", "; ".join(" = ".join(group) for group in self.tied) or "none"),
        ]
        for row in self.comparisons:
            measured = f"{row.measured:,.0f} measured ({row.ratio - 1:+.2%})"
            measured = "equal to the measurement" if row.predicted == row.measured else measured
            rows.append((f"Predicted {row.figure}", f"{row.predicted:,.0f} by {row.against}, {measured}"))
        return (*rows, *(("Note", note) for note in self.notes))

    @property
    def _loss_text(self) -> str:
        steps = f"{len(self.losses)} steps"
        if not self.returns_loss:
            return f"{steps} with the mean of its outputs, because it returns no loss"
        return f"loss {self.losses[0]:.4g} → {self.losses[-1]:.4g} in {steps}"

    @property
    def _gradient_text(self) -> str:
        frozen = f"; {self.frozen} are frozen" if self.frozen else ""
        if not self.without_gradient:
            return f"all {self.trained} parameters have a gradient{frozen}"
        shown = ", ".join(self.without_gradient[:5]) + (", …" if len(self.without_gradient) > 5 else "")
        unused = len(self.unused)
        which = (
            f"; the layers of {'these' if unused == len(self.without_gradient) else f'{unused} of these'} do not run"
        )
        total = self.trained + len(self.without_gradient)
        return f"missing for {len(self.without_gradient)} of {total}: {shown}{which if unused else ''}{frozen}"

    def __str__(self) -> str:
        return "\n".join([self.summary, *(f"  {label}: {text}" for label, text in self.findings)])
