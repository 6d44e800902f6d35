"""What can be wrong with an input: each error is one sentence that says what, where and what would do."""

from __future__ import annotations

import traceback
from pathlib import Path

__all__ = [
    "AdvisorError",
    "ClusterError",
    "ExportError",
    "InstanceError",
    "JobError",
    "ModelError",
    "NoPlanFitsError",
    "PlanError",
    "ProfileError",
]


_PACKAGE = str(Path(__file__).parent)


class AdvisorError(ValueError):
    """Base of every error this package raises for a user's input.

    A notebook shows the line that asked and the sentence, not the package's own lines: those are of no use to who is to
    change the input. ``error.__traceback__`` has them.
    """

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in the place of a traceback."""
        asked = ""
        for frame in traceback.extract_tb(self.__traceback__):
            if frame.filename.startswith(_PACKAGE):
                break
            if frame.line:  # not of methods that dataclasses wrote
                asked = f"Line {frame.lineno}: {frame.line}"
        return [*filter(None, [asked]), f"{type(self).__name__}: {self}"]


class ModelError(AdvisorError):
    """A model description that cannot be read or does not add up."""


class JobError(AdvisorError):
    """A training setting (sequence length, precision, batch) out of range."""


class ClusterError(AdvisorError):
    """A cluster that cannot exist: no GPUs, a count of zero, hardware figures missing."""


class InstanceError(ClusterError):
    """An instance type that is unknown, or that the library cannot use."""


class PlanError(AdvisorError):
    """A plan that no version of the library accepts, or that does not match the cluster, model or job."""


class ExportError(AdvisorError):
    """A plan or a text that cannot be written as a cell that SageMaker would accept."""


class NoPlanFitsError(AdvisorError):
    """No plan keeps every GPU within its memory with the probability asked for."""


class ProfileError(AdvisorError):
    """A model or script that could not be profiled: what stopped it, at which of the user's lines.

    `kind` is one of ``memory``, ``time``, ``processes``, ``output``, ``crash``, ``exit`` and ``error``, or empty for an
    input that was refused; `log` holds the last lines that the process wrote.
    """

    def __init__(self, sentence: str, *, kind: str = "", log: tuple[str, ...] = ()) -> None:
        tail = "".join(f"\n  {line}" for line in log)
        super().__init__(f"{sentence}\nThe last lines of its log:{tail}" if log else sentence)
        self.sentence = sentence
        self.kind = kind
        self.log = log
