"""Preferences among plans that fit, as data: thresholds of the choice, and batches that people train with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from smp_advisor.files import data_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Thresholds of the choice."""

    near_best: float
    """Share of the best value within which plans count as equal."""
    technique_gain: float
    """Least gain in speed for which a plan uses one more technique."""
    offloading_techniques: int
    """Number of techniques as which offloading of activations counts."""
    node_gain: float
    """Least gain in speed for which a plan communicates over more nodes."""
    resolution_probability: float
    """Probability from which the faster of two plans of different kinds is distinguishable."""
    first_microbatches: tuple[int, ...]
    """Microbatches of a pipeline that come before all others."""
    most_microbatches_per_stage: int
    """More microbatches per pipeline stage need a batch of the user's."""
    most_accumulated: int
    """More microbatches without a pipeline need a batch of the user's."""
    headroom_share: float
    """``headroom`` looks only at plans with at least this share of the best throughput."""
    simplicity_share: float
    """The same for ``simplicity``."""
    equal_regret: float
    """Difference of expected regrets below which the plan with fewer techniques is chosen."""

    def share_of(self, objective: str) -> float:
        """Share of the best throughput that an objective does not give up."""
        return {"headroom": self.headroom_share, "simplicity": self.simplicity_share}.get(objective, 0.0)


@dataclass(frozen=True, kw_only=True)
class Published:
    """Family of plans that a publication uses for a regime."""

    division: str
    """One of `smp_advisor.costs.uncertainty.DIVISIONS`."""
    title: str
    source: str


@cache
def policy() -> Policy:
    """The thresholds."""
    entry = data_file("search", "policy")["choice"]
    return Policy(**{**entry, "first_microbatches": tuple(entry["first_microbatches"])})


def published_for(library: str, parameters: int) -> Published | None:
    """Publication for a library and a size of model; None if there is none."""
    for entry in data_file("search", "policy")["published"]:
        if library in entry["libraries"] and entry["least_parameters"] <= parameters <= entry["most_parameters"]:
            return Published(**{name: entry[name] for name in ("division", "title", "source")})
    return None


Kind = Literal["pretraining", "fine-tuning", "adapters", "samples"]


@dataclass(frozen=True, kw_only=True)
class BatchPolicy:
    """Floor, bound and cap of the global batch of a model and a kind of training."""

    kind: Kind
    target_tokens: int
    """Batch of published runs of this size, in tokens per step. A larger one must gain speed."""
    floor_tokens: int
    """Smallest batch of published runs of this size, in tokens per step. From here to the target, the smallest batch
    within 3 % of the best speed is chosen."""
    doubling_gain: float
    """Least gain in speed of each doubling above the target, and of each halving below the floor."""
    longest_step_seconds: float
    """A batch below the floor is as good if twice its samples would take longer than this per step."""
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
        """Doublings by which each batch is below its floor, shape (n,); 0 from the floor on.

        The floor is no larger than `limit_tokens`, and than what the plan trains in `longest_step_seconds`.
        """
        within_time = tokens_per_second * self.longest_step_seconds
        floor = np.minimum(min(self.floor_tokens, limit_tokens), within_time)
        # A free batch is a power of two times the replicas: less than a doubling is no batch of its own.
        return np.floor(np.maximum(np.log2(floor / tokens_per_step), 0.0))

    def worth(self, tokens_per_step: NDArray[np.int64], doublings_missing: NDArray[np.float64]) -> NDArray[np.float64]:
        """Share of the speed that counts, shape (n,): each doubling above the target or below the floor must gain."""
        above = np.maximum(np.log2(tokens_per_step / self.target_tokens), 0.0)
        result: NDArray[np.float64] = (1 - self.doubling_gain) ** (above + doublings_missing)
        return result


def kind_of_training(model: Model, job: Job) -> Kind:
    """Kind of training whose batches are compared."""
    if not model.reads_tokens or (model.origin == "measured" and model.head.kind == "none"):
        return "samples"
    if job.adapter is not None:
        return "adapters"
    return "fine-tuning" if job.training == "fine-tuning" else "pretraining"


def batch_policy(model: Model, job: Job) -> BatchPolicy:
    """Policy of a model and a job, whatever limits the job sets.

    Sizes in samples count with the job's sequence length. The cap of texts is at least 2^22 tokens: clusters with many
    GPUs need a sample per replica.
    """
    table, kind = data_file("search", "batch"), kind_of_training(model, job)
    entries = [table[kind]] if isinstance(table[kind], dict) else table[kind]
    size, family = model.parameter_count, model.family.lower()
    entry = next(
        entry
        for entry in entries
        if size <= entry.get("up_to_parameters", float("inf")) and re.search(entry.get("families", ""), family)
    )
    sample = 1 if kind == "pretraining" else model.sequence_length(job.sequence_length)
    cap = entry["cap"] * sample
    return BatchPolicy(
        kind=kind,
        target_tokens=entry["target"] * sample,
        floor_tokens=entry["floor"] * sample,
        doubling_gain=entry["doubling_gain"],
        longest_step_seconds=table["longest_step_seconds"],
        cap_tokens=cap if kind == "samples" else max(cap, table["least_cap_tokens"]),
        example=entry["example"],
        source=entry["source"],
        checked=entry["checked"],
    )
