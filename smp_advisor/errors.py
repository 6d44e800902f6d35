"""Errors of an input. Each message is one sentence with the defect, its place and a remedy."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

from smp_advisor.core.words import plain

_PACKAGE = str(Path(__file__).parent)
_LONG_WORD = r"\S{300,}"
_SHOWN = 80
"""Characters of a long word at its start in a message; a quarter as many of its end."""
_LONG_LINE = r".{1000,}"
_SHOWN_OF_LINE = 600


class AdvisorError(ValueError):
    """Base class of every error that this package raises for a user's input.

    A notebook shows the user's line and the sentence. It omits the frames of the package, which do not help to correct
    the input. ``error.__traceback__`` has them.
    """

    def __str__(self) -> str:
        # A value of the user's may be megabytes long; the sentence about it stays readable.
        text = re.sub(_LONG_WORD, lambda word: _shortened(word[0], _SHOWN), plain(super().__str__()))
        return re.sub(_LONG_LINE, lambda line: _shortened(line[0], _SHOWN_OF_LINE), text)

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows instead of a traceback."""
        call = ""
        for frame in traceback.extract_tb(self.__traceback__):
            if frame.filename.startswith(_PACKAGE):
                break
            if frame.line:  # generated methods of dataclasses have none
                call = f"Line {frame.lineno}: {frame.line}"
        return [*filter(None, [call]), f"{type(self).__name__}: {self}"]


def _shortened(text: str, length: int) -> str:
    return f"{text[:length]}…{text[-length // 4 :]}"


class ModelError(AdvisorError):
    """A model description that is unreadable or inconsistent."""


class UnknownFamilyError(ModelError):
    """A model type for which the package has no formulas."""


class JobError(AdvisorError):
    """A training setting (sequence length, precision, batch) that is out of range."""


class CalibrationError(AdvisorError):
    """A log, measurement or saved calibration that is unreadable, ambiguous or inconsistent."""


class ClusterError(AdvisorError):
    """An impossible cluster: no GPUs, a count of zero, missing hardware figures."""


class InstanceError(ClusterError):
    """An instance type that is unknown or not supported by the library."""


class RunError(AdvisorError):
    """A run that cannot be started, found or read, or has too few steps for an answer."""


class PlanError(AdvisorError):
    """A plan that no version of the library accepts, or that conflicts with the cluster, model or job."""


class ExportError(AdvisorError):
    """A plan or text that has no valid SageMaker cell."""


class NoPlanFitsError(AdvisorError):
    """No plan fits in GPU memory with the required probability, or within the limits of the run.

    `ways_out`, a `WaysOut`, has the changes after which a plan fits, with their memory, speed and cost; None if none
    were searched.
    """

    def __init__(self, sentence: str, ways_out: Any = None) -> None:
        super().__init__(sentence)
        self.ways_out = ways_out


class NoScriptError(NoPlanFitsError):
    """The best plan fits, and no training script is generated for it; `recommendation` is that of the plan."""

    def __init__(self, sentence: str, recommendation: Any) -> None:
        super().__init__(sentence)
        self.recommendation = recommendation


class ProfileError(AdvisorError):
    """A model or script that could not be profiled, with the cause and the user's line.

    `kind` is one of ``memory``, ``time``, ``processes``, ``output``, ``killed``, ``crash``, ``exit`` and ``error``, or
    empty for a refused input. `log` holds the last lines of the process's output.
    """

    def __init__(self, sentence: str, *, kind: str = "", log: tuple[str, ...] = ()) -> None:
        tail = "".join(f"\n  {line}" for line in log)
        super().__init__(f"{sentence}\nThe last lines of its log:{tail}" if log else sentence)
        self.sentence = sentence
        self.kind = kind
        self.log = log


class StorageError(AdvisorError):
    """A file of stored values that cannot be read or written."""
