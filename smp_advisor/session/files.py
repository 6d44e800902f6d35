"""Values of the package in files: an advice with what was on screen, or a model, job, cluster, plan or estimate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.advice.recommendation import Recommendation
from smp_advisor.arguments.signatures import checked
from smp_advisor.errors import AdvisorError, StorageError
from smp_advisor.session import Advice, control_state
from smp_advisor.session.settings import settings_of
from smp_advisor.session.storage import from_plain
from smp_advisor.session.written import as_text, from_text, read_text, write_text

if TYPE_CHECKING:
    import os


def _live(value: Recommendation, screen: Any) -> Advice:
    """Return the advice with the plan and the job that were on screen."""
    if screen is None:
        return Advice(value)
    if not isinstance(screen, dict) or screen.keys() != {"plan", "job"}:
        raise StorageError("The stored plan on screen must have a plan and a job.")
    plan, job = from_plain(screen["plan"], "Plan"), from_plain(screen["job"], "Job")
    try:
        state = control_state.apply(control_state.recommended(value), settings_of(plan, job))
        return Advice(value, state if state.plan == plan else control_state.adopt(state, plan))
    except (AdvisorError, AttributeError) as error:
        raise StorageError(f"The stored plan on screen does not suit the recommendation: {error}") from None


@checked
def save(value: object, path: str | os.PathLike[str]) -> None:
    """Write a value to a file, which is complete or unchanged, whatever happens.

    Parameters
    ----------
    value
        An advice with the plan on screen, or a model, job, cluster, plan or estimate.
    path
        A JSON file. Advice is also written as a report, to a file whose name ends in ``.html``.

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
    else:
        write_text(as_text(value), path)


@checked
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
    if isinstance(value, Recommendation):
        return _live(value, document.get("screen"))
    return value
