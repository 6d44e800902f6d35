"""Learning rate and warm-up of a run, from published trainings."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from smp_advisor.export.architectures import architecture_of

if TYPE_CHECKING:
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["Schedule", "schedule_of"]

_SCALINGS = {"square root": 0.5, "linear": 1.0, "none": 0.0}
"""Exponent of the batch in the learning rate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Learning rate at its peak and the steps to reach it."""

    learning_rate: float
    """Two significant digits."""
    warmup_steps: int
    source: str
    assumed: bool
    """Whether no published training of this kind determines the values."""


@cache
def _trainings() -> dict[str, Any]:
    return tomllib.loads((files("smp_advisor.export") / "data" / "schedules.toml").read_text(encoding="utf-8"))


def schedule_of(model: Model, job: Job, *, steps: int, global_batch_size: int) -> Schedule:
    """Starting values for a run, by the kind of training, the size of the model and the batch.

    Parameters
    ----------
    steps
        Optimizer steps of the run.
    global_batch_size
        Samples per optimizer step.

    Raises
    ------
    ExportError
        No script can be generated for the family of the model.
    """
    rows = _trainings()[_kind(model, job)]
    size, sizes = math.log(model.parameter_count), np.log(rows["parameters"])
    # Beyond the first and the last row, their values hold.
    rate = math.exp(np.interp(size, sizes, np.log(rows["learning_rate"])))
    batch = global_batch_size * (model.sequence_length(job.sequence_length) if rows["unit"] == "tokens" else 1)
    of_rows = math.exp(np.interp(size, sizes, np.log(rows["batch"])))
    smallest, largest = _trainings()["batch_factors"]
    rate *= min(max((batch / of_rows) ** _SCALINGS[rows["scaling"]], smallest), largest)
    shortest = min(_trainings()["warmup_steps_at_least"], steps // 5)
    warmup = min(max(round(rows["warmup_share"] * steps), shortest), _trainings()["warmup_steps_at_most"])
    return Schedule(
        learning_rate=float(f"{rate:.1e}"), warmup_steps=warmup, source=rows["source"], assumed=rows["assumed"]
    )


def _kind(model: Model, job: Job) -> str:
    """Table of the kind of training in the data file."""
    task = architecture_of(model).task
    if job.optimizer in ("sgd", "plain-sgd"):
        return "sgd"
    if job.adapter is not None:
        return "adapter"
    if task == "causal":
        return "fine-tuning" if job.training == "fine-tuning" else "pretraining"
    return task
