"""Parts of a run besides its training steps, which days and cost count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smp_advisor.errors import JobError

__all__ = ["ALL_OVERHEADS", "OVERHEADS", "CheckpointStorage", "Overheads"]

OVERHEADS = ("checkpoints", "restarts", "startup", "data_loading", "evaluation")
"""Parts of a run besides its training steps."""

CheckpointStorage = Literal["local", "fsx", "s3"]
_STORAGES = ("local", "fsx", "s3")
_LEAST_MINUTES = 0.001
_MOST_MINUTES = 28 * 24 * 60
"""The longest training job of SageMaker."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Overheads:
    """Parts of a run besides its training steps, and how it saves checkpoints.

    Examples
    --------
    >>> Overheads.of("none").parts
    ()
    >>> Overheads.of("restarts, checkpoints").parts
    ('checkpoints', 'restarts')
    """

    parts: tuple[str, ...] = OVERHEADS
    """Counted parts, in the order of `OVERHEADS`."""
    storage: CheckpointStorage = "local"
    """Where processes write checkpoints: ``local`` (the instance's storage, from which SageMaker copies them to S3 in
    the background, like the exported script), ``fsx`` (FSx for Lustre) or ``s3`` (directly)."""
    asynchronous: bool = False
    """Whether training continues while a checkpoint is written."""
    checkpoint_minutes: float | None = None
    """Minutes between checkpoints. None: the interval that loses the least time (Daly 2006)."""

    def __post_init__(self) -> None:
        parts: object = self.parts  # a notebook may pass other types despite the annotations
        if not isinstance(parts, tuple) or any(part not in OVERHEADS for part in parts):
            raise JobError(f"overheads must be 'all', 'none', or some of {', '.join(OVERHEADS)}, not {parts!r}.")
        object.__setattr__(self, "parts", tuple(name for name in OVERHEADS if name in parts))
        if self.storage not in _STORAGES:
            raise JobError(f"The storage of checkpoints must be one of {', '.join(_STORAGES)}, not {self.storage!r}.")
        if not isinstance(self.asynchronous, bool):
            raise JobError(f"asynchronous must be True or False, not {self.asynchronous!r}.")
        minutes: object = self.checkpoint_minutes
        if minutes is None:
            return
        is_number = isinstance(minutes, int | float) and not isinstance(minutes, bool)
        if not is_number or not _LEAST_MINUTES <= minutes <= _MOST_MINUTES:  # type: ignore[operator]
            raise JobError(
                f"checkpoint_minutes must be between {_LEAST_MINUTES} and {_MOST_MINUTES:,}, not {minutes!r:.80}."
            )

    @classmethod
    def of(cls, value: object) -> Overheads:
        """Overheads of ``all``, ``none``, names of parts (``checkpoints,restarts``, a list) or an `Overheads` itself.

        Raises
        ------
        JobError
            The value is none of these.
        """
        if isinstance(value, Overheads):
            return value
        if isinstance(value, str):
            names = tuple(part.strip() for part in value.split(","))
            return cls(parts={"all": OVERHEADS, "none": ()}.get(value, names))
        # Anything else becomes a name, which is refused in a sentence.
        return cls(parts=tuple(value) if isinstance(value, (list, tuple, set, frozenset)) else (str(value),))


ALL_OVERHEADS = Overheads()
"""All parts, with checkpoints as the exported script saves them."""
