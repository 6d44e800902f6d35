"""Batches that people train with: target and cap of a free global batch (``data/batch.toml``)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    """Least gain in speed of each doubling above the target, and of each halving below it."""
    longest_step_seconds: float
    """A batch below the target is as good if twice its samples would take longer than this per step."""
    cap_tokens: int
    """Largest batch of the search, in tokens per step."""
    example: str
    """Published batches: "GPT-3 6.7B and 13B used 2 M tokens"."""
    source: str
    checked: bool
    """Whether the figures were compared with the source's text."""

    def doublings_missing(
        self, tokens_per_step: NDArray[np.int64], tokens_per_second: NDArray[np.float64], limit_tokens: int
    ) -> NDArray[np.float64]:
        """Doublings by which each batch is below its target, shape (n,); 0 from the target on.

        The target is no larger than `limit_tokens`, and than what the plan trains in `longest_step_seconds`.
        """
        within_time = tokens_per_second * self.longest_step_seconds
        target = np.minimum(min(self.target_tokens, limit_tokens), within_time)
        # A free batch is a power of two times the replicas: less than a doubling is no batch of its own.
        return np.floor(np.maximum(np.log2(target / tokens_per_step), 0.0))

    def worth(self, tokens_per_step: NDArray[np.int64], doublings_missing: NDArray[np.float64]) -> NDArray[np.float64]:
        """Share of the speed that counts, shape (n,): each doubling above or below the target must gain speed."""
        above = np.maximum(np.log2(tokens_per_step / self.target_tokens), 0.0)
        result: NDArray[np.float64] = (1 - self.doubling_gain) ** (above + doublings_missing)
        return result


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
        longest_step_seconds=data["longest_step_seconds"],
        cap_tokens=cap if kind == "images" else max(cap, data["least_cap_tokens"]),
        example=entry["example"],
        source=entry["source"],
        checked=entry["checked"],
    )
