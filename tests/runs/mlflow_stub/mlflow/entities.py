"""MLflow's metric."""

from typing import Any, NamedTuple


class Metric(NamedTuple):
    """One value at one step."""

    key: str
    value: float
    timestamp: int
    step: Any
