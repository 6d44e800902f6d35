"""A note on an instance, before a plan for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.errors import InstanceError
from smp_advisor.libraries import require_supported_instance

if TYPE_CHECKING:
    from smp_advisor.cluster.instance import Instance

__all__ = ["instance_note"]


def instance_note(library: str, instance: Instance | str) -> str:
    """One sentence on an instance that the library cannot use, with the nearest supported one; empty if it can.

    Examples
    --------
    >>> instance_note("smp-v1", "ml.p4d.24xlarge")
    ''
    >>> "ml.p4de.24xlarge" in instance_note("smp-v1", "ml.p5.48xlarge")
    True
    """
    try:
        return require_supported_instance(library, instance)
    except InstanceError as error:
        return str(error)
