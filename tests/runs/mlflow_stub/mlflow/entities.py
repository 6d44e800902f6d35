"""MLflow's metric."""

from collections import namedtuple

Metric = namedtuple("Metric", "key value timestamp step")  # noqa: PYI024
