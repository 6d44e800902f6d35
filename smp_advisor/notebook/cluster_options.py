"""Clusters as options of magics: several instances, an open number of nodes, and the progress of their comparison."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from smp_advisor.notebook.arguments import whole_number
from smp_advisor.notebook.progress_display import ProgressDisplay

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

__all__ = ["comparing", "instances", "node_count"]

_ANY, _SMALLEST = "any", "smallest"


def instances(text: str) -> str | list[str]:
    """One instance, ``any``, or the instances between commas."""
    names = [name.strip() for name in text.split(",")]
    return names if len(names) > 1 else text


def node_count(text: str) -> int | str:
    """A number of nodes, or ``smallest``."""
    return text if text == _SMALLEST else whole_number(text)


@contextmanager
def comparing(arguments: Namespace) -> Iterator[dict[str, Any]]:
    """The keyword of `advise` that shows the progress of a comparison; none for a single cluster."""
    limited = arguments.count is None and (arguments.max_days or arguments.max_usd)
    several = arguments.instance == _ANY or "," in arguments.instance
    if not (several or limited or arguments.count == _SMALLEST or arguments.objective == "cost"):
        yield {}
        return
    with ProgressDisplay("Comparing clusters") as progress:
        yield {"on_progress": progress.update}
