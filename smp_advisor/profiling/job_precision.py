"""The precision in which a job trains: its own, in the form of its library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.libraries.registry import get_library, library_with
from smp_advisor.profiling.precision import training_precision

if TYPE_CHECKING:
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.profiling.precision import Precision
    from smp_advisor.workload.job import Job

__all__ = ["precision_of_job", "usual_library"]


def usual_library() -> str:
    """Library that stands for those from which `advise` chooses: PyTorch's own that divides the model.

    SMP v2 has the same stack and the same form of mixed precision.
    """
    return library_with(framework="pytorch", smdistributed=False, divides_model=True).name


def precision_of_job(
    job: Job, *, requested: str | None = None, library: str | None = None, plan: Plan | None = None
) -> Precision:
    """Key of `PRECISIONS` for a job.

    Parameters
    ----------
    requested
        A precision that the user requested; None derives it.
    library
        None and ``auto`` stand for the libraries from which `advise` chooses. The plan's library comes first.
    plan
        Decides between 16 and 32 bits, if it is passed.
    """
    if requested is not None:
        return training_precision(requested).precision
    name = plan.library if plan is not None else usual_library() if library in {None, "auto"} else str(library)
    record = get_library(name)
    if plan is not None:
        precision = plan.precision
    else:
        precision = record.default_precision if "precision" in job.defaulted() else job.precision
    if precision == "fp32":
        return "fp32"
    return "bf16" if job.state_precision == "16-bit" else record.half_precision
