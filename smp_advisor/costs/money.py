"""Prices and days."""

from __future__ import annotations

__all__ = ["cluster_usd_per_hour", "days_to_train"]


def cluster_usd_per_hour(usd_per_hour: float | None, nodes: int) -> float | None:
    """On-demand price of all nodes; None where the instance has no known price."""
    return None if usd_per_hour is None else usd_per_hour * nodes


def days_to_train(tokens: float | None, tokens_per_second: float) -> float | None:
    """Days to train on `tokens` without interruption; None where the job does not say how many."""
    return None if tokens is None else tokens / tokens_per_second / 86_400
