"""Log and metrics of a SageMaker training job, read from CloudWatch in a child process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.errors import CalibrationError

if TYPE_CHECKING:
    from smp_advisor.calibration.log import Log

__all__ = ["read_job"]


def read_job(name: str) -> tuple[Log, str]:
    """Log of a job."""
    raise CalibrationError(f"The log of the job {name!r:.80} cannot be read: download it and pass its path.")
