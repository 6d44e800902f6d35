"""`save` and `load`: values in JSON files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.advice import Advice
from smp_advisor.cluster.cluster import Cluster
from smp_advisor.costs.estimate import Estimate
from smp_advisor.errors import StorageError
from smp_advisor.libraries.plan import Plan
from smp_advisor.live.restored import live_advice
from smp_advisor.storage import as_text, from_text, read_text, write_text
from smp_advisor.workload.job import Job
from smp_advisor.workload.model import Model

if TYPE_CHECKING:
    import os

__all__ = ["load", "save"]

_KINDS = (Cluster, Estimate, Job, Model, Plan)


def save(value: object, path: str | os.PathLike[str]) -> None:
    """Write a value to a file, which is complete or unchanged, whatever happens.

    Parameters
    ----------
    value
        An advice with the plan on screen and its snapshots, or a model, job, cluster, plan or estimate.
    path
        A JSON file. Advice is also written as a report, to a file whose name ends in ``.html`` or ``.md``.

    Raises
    ------
    StorageError
        The value cannot be stored, or the file cannot be written.

    Examples
    --------
    >>> smp_advisor.save(smp_advisor.Cluster("ml.p4d.24xlarge", 16), "cluster.json")
    >>> smp_advisor.load("cluster.json").gpus
    128
    """
    if isinstance(value, Advice):
        value.save(path)
    elif isinstance(value, _KINDS):
        write_text(as_text(value), path)
    else:
        names = ", ".join(sorted(kind.__name__ for kind in _KINDS))
        raise StorageError(f"A {type(value).__name__} cannot be stored: pass an Advice or one of {names}.")


def load(path: str | os.PathLike[str]) -> Any:
    """Read the value of a JSON file that `save` or `Advice.save` wrote.

    Raises
    ------
    StorageError
        The file is missing, too large, not in the format, or of a newer version of it.

    Examples
    --------
    >>> smp_advisor.load("advice.json").plan  # doctest: +SKIP
    """
    value, document = from_text(read_text(path), f"{path!s:.200}")
    if isinstance(value, Advice):
        return live_advice(value, document.get("screen"), document.get("snapshots", []))
    return value
