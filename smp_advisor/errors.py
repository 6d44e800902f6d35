"""What can be wrong with an input: each error is one sentence that says what, where and what would do."""

from __future__ import annotations

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


class AdvisorError(ValueError):
    """Base of every error this package raises for a user's input."""


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
