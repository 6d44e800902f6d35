"""What a local run showed."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["LocalRun", "losses_in"]

_LOSS = re.compile(r"\bloss\b[\"']?\s*[:=]?\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)\b", re.IGNORECASE)

_LABELS = {
    "process": (
        "Run as a process on this machine, with its own Python and packages: not SageMaker's container. The model "
        "parallel library is not here; what this checks is the script, its options, its data and its loss."
    ),
    "container": "Run in SageMaker's own container by the SDK's local mode, on this machine.",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalRun:
    """A training script's run on this machine.

    Shows itself in a notebook; `ok` says whether it ended as it should.
    """

    script: str
    how: Literal["process", "container"]
    why_no_container: str = ""
    """What SageMaker's local mode would have needed."""
    processes: int = 1
    steps: int | None = None
    """Optimizer steps after which it was ended; None for the script's own end."""
    command: str
    """The shell line that would run the same."""
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str]
    """What SageMaker's container adds to the script's environment."""
    folder: str
    """Stands for ``/opt/ml``: models, outputs and checkpoints lie in it."""
    seconds: float
    peak_bytes: int
    """Most memory that all its processes held together."""
    losses: tuple[float, ...] = ()
    """Read from lines of the log such as ``loss 3.21``."""
    log: tuple[str, ...] = ()
    """Its last lines."""
    error: str = ""
    """What was wrong, one sentence and the last lines of the log; empty if nothing."""

    @property
    def ok(self) -> bool:
        """Whether it ended as it should."""
        return not self.error

    @property
    def label(self) -> str:
        """What kind of run this was, plainly."""
        why = self.why_no_container
        return f"{_LABELS[self.how]} No container was started: {why}." if why else _LABELS[self.how]

    @property
    def summary(self) -> str:
        """The run in one line."""
        if self.error:
            return self.error.partition("\n")[0]
        count = f"{self.processes} processes" if self.processes > 1 else "one process"
        what = "ran to its end" if self.steps is None else f"ran for {self.steps} optimizer steps"
        loss = ""
        if len(self.losses) > 1:
            loss = f"; loss {self.losses[0]:.4g} at first, {self.losses[-1]:.4g} at last"
        return f"{self.script} {what}: {count}, {self.seconds:.1f} s{loss}."

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"variables": dict(self.variables)}

    def as_html(self) -> str:
        """For a notebook; everything from the script escaped."""
        from smp_advisor.profiling.showing import box, details, table

        return box(
            self.summary,
            f"<p>{_escaped(self.label)}</p>",
            details("What the script was given", table(self.variables.items(), ("variable", "value"))),
            details("The same from a shell", f"<pre>{_escaped(self.command)}</pre>"),
            details(
                "The last lines of its log", f"<pre>{_escaped(chr(10).join(self.log[-40:]))}</pre>", shown=not self.ok
            ),
            ok=self.ok,
        )

    def _repr_html_(self) -> str:
        return self.as_html()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001 (IPython's own form)
        # What a saved notebook keeps beside the HTML, and what a terminal shows.
        printer.text("..." if cycle else str(self))

    def __str__(self) -> str:
        return f"{self.error or self.summary}\n{self.label}"


def losses_in(lines: Iterable[str]) -> tuple[float, ...]:
    """Losses that a log names."""
    return tuple(float(found[1]) for line in lines if (found := _LOSS.search(line)))


def _escaped(text: str) -> str:
    from html import escape

    return escape(text)
