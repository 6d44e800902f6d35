"""A table of all scored rows with their predictions, for analysis."""

from __future__ import annotations

import csv
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .judge import Judged

__all__ = ["write_residuals"]

_COLUMNS = (
    "id", "source", "added", "model", "family", "gpu", "gpus", "tp", "pp", "dp", "vpp", "cp", "shard_class",
    "shard_degree", "micro_batch", "num_microbatches", "seq", "recompute_class", "attention_class", "precision_class",
    "optimizer", "framework", "quality", "network_known", "rank_or_stage", "mem_class",
)  # fmt: skip


def write_residuals(groups: Sequence[Judged], path: Path) -> None:
    """Write rows of (figure, predicted, measured, error, columns of the row, terms of the prediction)."""
    terms = sorted(
        {name for judged in groups for rows in judged.scored.values() for scored in rows for name in scored.terms}
    )
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["figure", "predicted", "low", "high", "measured", "error", *_COLUMNS, *terms])
        for figure, rows in (entry for judged in groups for entry in judged.scored.items()):
            for scored in rows:
                writer.writerow(
                    [
                        figure,
                        f"{scored.predicted:.4g}",
                        *(f"{end:.4g}" for end in scored.interval or (math.nan, math.nan)),
                        f"{scored.measured:.4g}",
                        f"{scored.error:+.4f}",
                        *(scored.row.values.get(column, "") for column in _COLUMNS),
                        *(f"{scored.terms[name]:.4g}" if name in scored.terms else "" for name in terms),
                    ]
                )
