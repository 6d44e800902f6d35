"""The kind of training code that n plans run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.workload.stack import AUTO, stack

if TYPE_CHECKING:
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.stack import Stack

__all__ = ["stack_of"]


def stack_of(job: Job, layout: Layout) -> Stack:
    """The job's stack, or that of the script which the advisor exports for the layout's library."""
    return stack(layout.stack if job.stack == AUTO else job.stack)
