"""Batches that people train with: target and cap of a free global batch (``data/batch.toml``)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["BatchPolicy", "Kind", "batch_policy", "kind_of_training"]

Kind = Literal["pretraining", "fine-tuning", "adapters", "images"]


@dataclass(frozen=True, kw_only=True)
class BatchPolicy:
    """Target and cap of the global batch of a model and a kind of training."""

    kind: Kind
    target_tokens: int
    """Batch of published runs of this size, in tokens per step. A larger one must gain speed."""
    doubling_gain: float
    """Least gain in speed of each doubling above the target."""
    cap_tokens: int
    """Largest batch of the search, in tokens per step."""
    example: str
    """Published batches: "GPT-3 6.7B and 13B used 2 M tokens"."""
    source: str
    checked: bool
    """Whether the figures were compared with the source's text."""


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(resources.files("smp_advisor.search").joinpath("data/batch.toml").read_text("utf-8"))


def kind_of_training(model: Model, job: Job) -> Kind:
    """Kind of training whose batches are compared."""
    if not model.reads_tokens:
        return "images"
    if job.adapter is not None:
        return "adapters"
    return "fine-tuning" if job.training == "fine-tuning" else "pretraining"


def batch_policy(model: Model, job: Job) -> BatchPolicy:
    """Policy of a model and a job, whatever limits the job sets.

    Sizes in samples count with the job's sequence length. The cap of texts is at least 2^22 tokens: clusters with many
    GPUs need a sample per replica.
    """
    data, kind = _data(), kind_of_training(model, job)
    entries = data[kind] if kind == "pretraining" else [data[kind]]
    size = model.parameter_count
    entry = next(entry for entry in entries if size <= entry.get("up_to_parameters", float("inf")))
    sample = model.sequence_length(job.sequence_length) if entry.get("unit") == "samples" else 1
    cap = entry["cap"] * sample
    return BatchPolicy(
        kind=kind,
        target_tokens=entry["target"] * sample,
        doubling_gain=entry["doubling_gain"],
        cap_tokens=cap if kind == "images" else max(cap, data["least_cap_tokens"]),
        example=entry["example"],
        source=entry["source"],
        checked=entry["checked"],
    )
