"""Duration of a run. Its cost follows from the price of the cluster."""

from __future__ import annotations

__all__ = ["days_to_train"]


def days_to_train(tokens: float | None, tokens_per_second: float) -> float | None:
    """Days to train on `tokens` without interruption; None if their number is not set."""
    return None if tokens is None else tokens / tokens_per_second / 86_400
