"""Results of a local run."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.profiling.result_html import NotebookResult, box, details, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["LocalRun", "losses_in"]

_LOSS = re.compile(r"\bloss\b[\"']?\s*[:=]?\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)\b", re.IGNORECASE)

_LABELS = {
    "process": (
        "Run as a process with this machine's Python and packages, not in SageMaker's container. The model parallel "
        "library is not available here. This run checks the script, its options, its data and its loss."
    ),
    "container": "Run on this machine in SageMaker's container, with the SDK's local mode.",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalRun(NotebookResult):
    """Run of a training script on this machine.

    It has a notebook display; `ok` is whether the script succeeded.
    """

    script: str
    how: Literal["process", "container"]
    why_no_container: str = ""
    """Why SageMaker's local mode was not used."""
    processes: int = 1
    steps: int | None = None
    """Optimizer steps after which it was stopped; None if it ran to its end."""
    command: str
    """Shell command for the same run."""
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str]
    """Environment variables that SageMaker's container adds."""
    folder: str
    """Replacement of ``/opt/ml``, with models, outputs and checkpoints."""
    seconds: float
    peak_bytes: int
    """Peak memory of all its processes together."""
    losses: tuple[float, ...] = ()
    """Losses read from log lines such as ``loss 3.21``."""
    log: tuple[str, ...] = ()
    """Last lines of the output."""
    notices: tuple[str, ...] = ()
    """Differences from a container, one sentence each: absolute paths, packages not installed."""
    error: str = ""
    """Cause of a failure: one sentence and the last lines of the log; empty if the script succeeded."""

    @property
    def ok(self) -> bool:
        """Whether the script succeeded."""
        return not self.error

    @property
    def label(self) -> str:
        """Kind of the run, as text for the user."""
        why = self.why_no_container
        return f"{_LABELS[self.how]} No container was started: {why}." if why else _LABELS[self.how]

    @property
    def summary(self) -> str:
        """The result in one line."""
        if self.error:
            return self.error.partition("\n")[0]
        count = f"{self.processes} processes" if self.processes > 1 else "one process"
        what = "ran to its end" if self.steps is None else f"ran for {self.steps} optimizer steps"
        loss = ""
        if len(self.losses) > 1:
            loss = f"; first loss {self.losses[0]:.4g}, last loss {self.losses[-1]:.4g}"
        return f"{self.script} {what}: {count}{loss}."

    def as_dict(self) -> dict[str, Any]:
        """Convert to plain data."""
        return asdict(self) | {"variables": dict(self.variables)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LocalRun:
        """Inverse of `as_dict`, also after a JSON round trip."""
        fields = dict(values)
        for name in ("arguments", "losses", "log", "notices"):
            fields[name] = tuple(fields.get(name, ()))
        return cls(**fields)

    def as_html(self) -> str:
        """HTML form for a notebook; text from the script is escaped."""
        return box(
            self.summary,
            f"<p>{escape(self.label)}</p>",
            *(f"<p>{escape(sentence)}</p>" for sentence in self.notices),
            details("Environment variables of the script", table(self.variables.items(), ("variable", "value"))),
            details("Shell command", f"<pre>{escape(self.command)}</pre>"),
            details("Last lines of the log", f"<pre>{escape(chr(10).join(self.log[-40:]))}</pre>", is_open=not self.ok),
            ok=self.ok,
        )

    _repr_pretty_ = NotebookResult._repr_pretty_

    def __str__(self) -> str:
        return "\n".join([self.error or self.summary, self.label, *self.notices])


def losses_in(lines: Iterable[str]) -> tuple[float, ...]:
    """Losses in the lines of a log."""
    return tuple(float(match[1]) for line in lines if (match := _LOSS.search(line)))
