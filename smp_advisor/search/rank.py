"""Rank of the plans that fit: preferences as data, batches that people train with, and the order."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Literal

import numpy as np

from smp_advisor.core.files import data_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smp_advisor.costs.world import World
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


@cache
def policy() -> SimpleNamespace:
    """Thresholds of the choice, which ``data/policy.toml`` explains."""
    return SimpleNamespace(**data_file("search", "policy")["choice"])


def kept_share(objective: str) -> float:
    """Share of the best throughput that an objective does not give up."""
    return float(getattr(policy(), f"{objective}_share", 0.0))


def published_for(library: str, parameters: int) -> tuple[str, str]:
    """Division (`DIVISIONS`) and title of the publication for a library and a size of model; empty if there is none."""
    for entry in data_file("search", "policy")["published"]:
        if library in entry["libraries"] and entry["least_parameters"] <= parameters <= entry["most_parameters"]:
            return entry["division"], entry["title"]
    return "", ""


_HALF_BYTES = 2
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
        """Doublings by which each batch is below its floor, shape (n,); 0 from the floor on."""
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
    if model.sample_is_call or not model.reads_tokens or (model.origin == "measured" and model.head.kind == "none"):
        return "samples"
    if job.adapter is not None:
        return "adapters"
    return "fine-tuning" if job.tunes else "pretraining"


def batch_policy(model: Model, job: Job, gpus: int = 1) -> BatchPolicy:
    """Policy of a model and a job; the cap of texts is at least 2^22 tokens, a sample per replica of many GPUs."""
    table, kind = data_file("search", "batch"), kind_of_training(model, job)
    entries = [table[kind]] if isinstance(table[kind], dict) else table[kind]
    size, family, length = model.parameter_count, model.family.lower(), model.sequence_length(job.sequence_length)
    entry = next(
        (
            entry
            for entry in entries
            if size <= entry.get("up_to_parameters", float("inf")) and re.search(entry.get("families", ""), family)
        ),
        None,
    )
    if model.sample_is_call:
        entry = table["calls"] | {"floor": gpus, "target": gpus, "cap": max(gpus, 4 * table["unpublished"]["most"])}
    elif entry is None and not model.reads_tokens and 2 * model.embedding_parameters > model.parameter_count:
        entry = table["tables"]
    elif entry is None:
        entry = table["unpublished"]
        saved = [(group.count, group.block.saved) for group in model.groups]
        elements = length * sum(count * (part.split_elements + part.replicated_elements) for count, part in saved)
        fitting = entry["activations_gib"] * 2**30 / max(_HALF_BYTES * elements, 1.0)
        start = 2 ** round(math.log2(min(max(fitting, entry["least"]), entry["most"])))
        entry = entry | {"floor": start // 4, "target": max(start, gpus), "cap": max(4 * entry["most"], gpus)}
    sample = 1 if kind == "pretraining" else length
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


if TYPE_CHECKING:
    Floats = NDArray[np.float64]

Objective = Literal["throughput", "cost", "headroom", "simplicity"]
_SHARES_PARAMETERS = 3

NEAR_BEST = policy().near_best
TECHNIQUE_GAIN = policy().technique_gain
TECHNIQUE_PROBABILITY = policy().resolution_probability


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Values by which n plans are ranked, arrays of shape (n,)."""

    tokens_per_second: Floats
    headroom: Floats
    """Share of usable memory that is free, at the point estimate."""
    techniques: NDArray[np.int64]
    tokens_per_step: NDArray[np.int64]
    worth: Floats
    """Share of the speed that counts: less than 1 for batches off their target, 1 for a batch of the user's."""
    doublings_missing: Floats
    """Doublings by which the batch is below its target (`BatchPolicy.doublings_missing`); 0 for the user's batch."""
    span: NDArray[np.int64]
    """GPUs over which the widest group extends that exchanges activations or parameters (`communication_span`)."""
    nodes: NDArray[np.int64]
    """The same in nodes."""
    context_nodes: NDArray[np.int64]
    """Nodes over which the group of context parallelism extends; 1 without it."""
    microbatches: NDArray[np.int64]
    pipelined: NDArray[np.bool_]
    published: NDArray[np.bool_]
    """Whether the plan's family is published for the regime; True for all without a publication."""

    def take(self, rows: NDArray[np.intp]) -> Scores:
        return Scores(**{name: values[rows] for name, values in vars(self).items()})


@dataclass(frozen=True)
class Resolution:
    """Resolution of the cost model for pairs of plans."""

    kind: NDArray[np.int64]
    """Kind of each plan, shape (n,)."""
    shares: Floats
    """Share by which a plan of one kind must be faster than one of another kind to be distinguishable, shape
    (kinds, kinds)."""

    def take(self, rows: NDArray[np.intp]) -> Resolution:
        return Resolution(self.kind[rows], self.shares)

    def against(self, row: int) -> Floats:
        """Return the shares for pairs with one plan, shape (n,)."""
        result: Floats = self.shares[self.kind[row]][self.kind]
        return result


_COMBINATION = (
    "tensor_parallel_degree",
    "pipeline_parallel_degree",
    "context_parallel_degree",
    "expert_parallel_degree",
    "shard_degree",
    "shard_level",
    "prefetched_units",
    "checkpoint_layers",
    "offload_activations",
)


def techniques(layout: Layout) -> NDArray[np.int64]:
    """Return the number of memory-saving techniques of each plan, shape (n,)."""
    parts = (
        layout.tensor_parallel_degree > 1,
        layout.pipeline_parallel_degree > 1,
        layout.context_parallel_degree > 1,
        layout.expert_parallel_degree > 1,
        (layout.shard_level > 0) & (layout.shard_degree != 1),
        layout.checkpoint_layers != 0,
        np.abs(layout.checkpoint_layers - 0.5) > 0.5,  # contiguous or groups rather than none or each
        layout.offload_activations * policy().offloading_techniques,
    )
    total = np.zeros(len(layout), dtype=np.int64)
    for part in parts:
        total += part
    return total


def first_of_each(keys: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the positions of the first of each distinct key, in order of appearance."""
    _, first = np.unique(keys, return_index=True)
    return np.sort(first)


def combinations(layout: Layout) -> NDArray[np.int64]:
    """Return a number for each plan's combination of techniques, shape (n,)."""
    waits = ((layout.pipeline_parallel_degree > 1) & (layout.microbatches > 1)) | layout.offload_running
    columns = [getattr(layout, name).astype(np.int64) for name in _COMBINATION]
    columns[-1] = columns[-1] * waits
    number = np.zeros(len(layout), dtype=np.int64)
    for column in columns:
        low = column.min(initial=0)
        number = number * (int(column.max(initial=0) - low) + 1) + (column - low)
    return number


def communication_span(world: World, layout: Layout) -> NDArray[np.int64]:
    """Return the GPUs over which the widest group extends that exchanges activations or parameters, shape (n,).

    What travels once per step, gradients and the state that levels 1 and 2 share, does not count. Groups that do not
    fill nodes evenly, such as 10 GPUs of nodes with 8, count as the nodes that several of them fill together.
    """
    shards = np.where(layout.shard_level == _SHARES_PARAMETERS, world.shards, 1)
    experts = layout.expert_parallel_degree
    groups = (
        (layout.tensor_parallel_degree, world.tensor_stride),
        (layout.pipeline_parallel_degree, world.pipeline_stride),
        (layout.context_parallel_degree, world.data_stride),
        (np.where(layout.experts_beside_shards, shards * experts, np.maximum(shards, experts)), world.data_stride),
    )
    span = np.ones(len(layout), dtype=np.int64)
    for degree, stride in groups:
        span = np.maximum(span, np.where(degree > 1, degree * stride, 1).astype(np.int64))
    fills = world.gpus_per_node % np.minimum(span, world.gpus_per_node) == 0
    fills &= np.maximum(span, world.gpus_per_node) % world.gpus_per_node == 0
    result: NDArray[np.int64] = np.where(fills, span, np.lcm(span, world.gpus_per_node))
    return result


def order(scores: Scores, objective: Objective, resolution: Resolution | None = None) -> NDArray[np.intp]:
    """Return the rows from best to worst; deterministic (ties keep the order of enumeration).

    The rules and their sources are in docs/explanation/selection.md, the thresholds in ``data/policy.toml``.
    """
    value = scores.tokens_per_second * scores.worth
    eligible, merit = np.ones(len(value), dtype=np.bool_), -value
    if objective in ("headroom", "simplicity"):
        eligible = value >= kept_share(objective) * value.max()
        merit = -scores.headroom if objective == "headroom" else scores.techniques.astype(np.float64)
        best = merit[eligible].min()
        eligible &= merit <= best + (NEAR_BEST * abs(best) if objective == "headroom" else 0)
    # Plans equal to the best within the error: preferences decide between them.
    rows, near = np.flatnonzero(eligible), np.zeros(len(value), dtype=np.bool_)
    near[rows] = _equal(value[rows], scores.take(rows), None if resolution is None else resolution.take(rows))
    few = scores.pipelined & np.isin(scores.microbatches, policy().first_microbatches)
    microbatches = np.where(few, 0, scores.microbatches)
    headroom = -np.round(scores.headroom, 3)  # values that differ in the last bits only are equal
    preferences = (scores.span, scores.doublings_missing, scores.tokens_per_step, microbatches, headroom)
    of_equals = [np.where(near, preference, 0) for preference in preferences]
    slow = value < kept_share(objective) * value.max()
    # The last key of lexsort decides first.
    return np.lexsort((-value, np.where(near, 0, merit), *reversed(of_equals), ~near, ~eligible, slow))


def _equal(value: Floats, scores: Scores, resolution: Resolution | None) -> NDArray[np.bool_]:
    """Return the plans with as many techniques as are worth it that equal the best, or the published family's best."""
    levels = np.unique(scores.techniques)
    leaders = [int(np.where(scores.techniques == level, value, -np.inf).argmax()) for level in levels]
    chosen = next(i for i in range(len(levels)) if not _worth_more(value, leaders, levels, i, resolution))
    leader, level = leaders[chosen], scores.techniques == levels[chosen]
    published = level & scores.published & (value >= value[leader] * (1 - _share(resolution, leader, slice(None))))
    if published.any():
        level = level & scores.published
        leader = int(np.where(published, value, -np.inf).argmax())
    # The fewest nodes whose best plan is fast enough; for context parallelism first, which exchanges in every layer.
    for nodes in (scores.context_nodes, scores.nodes):
        fast = level & (value >= value[leader] * (1 - policy().node_gain))
        level = level & (nodes <= nodes[fast].min())
        leader = int(np.where(level, value, -np.inf).argmax())
    near: NDArray[np.bool_] = level & (value >= value[level].max() * (1 - NEAR_BEST))
    # Of the best plans, those whose techniques still gain enough.
    required = [
        value[leaders[fewer]] / (1 - TECHNIQUE_GAIN) ** int(levels[chosen] - levels[fewer]) for fewer in range(chosen)
    ]
    gaining = near & (value > max(required, default=0.0))
    return gaining if gaining.any() else near


def _worth_more(
    value: Floats, leaders: list[int], levels: NDArray[np.int64], chosen: int, resolution: Resolution | None
) -> bool:
    """Return whether more techniques than those of one leader gain 5 % each, distinguishably."""
    mine = value[leaders[chosen]]
    return any(
        mine < value[leaders[more]] * (1 - _share(resolution, leaders[more], leaders[chosen]))
        and mine < value[leaders[more]] * (1 - TECHNIQUE_GAIN) ** int(levels[more] - levels[chosen])
        for more in range(chosen + 1, len(levels))
    )


def _share(resolution: Resolution | None, row: int, rows: int | slice) -> Floats:
    """Share by which a plan must be faster than others to be distinguishable."""
    return np.asarray(NEAR_BEST if resolution is None else np.maximum(NEAR_BEST, resolution.against(row)[rows]))


def undominated_first(ranked: NDArray[np.intp], scores: Scores, keys: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the rank, with a plan in front that no other listed plan dominates."""
    listed = ranked[first_of_each(keys[ranked])]
    chosen = listed[0]
    while True:
        better = scores.tokens_per_second[listed] > scores.tokens_per_second[chosen]
        for values in (scores.techniques, scores.span, scores.context_nodes, scores.tokens_per_step):
            better &= values[listed] <= values[chosen]
        if not better.any():
            break
        rivals = listed[better]
        chosen = rivals[scores.tokens_per_second[rivals].argmax()]
    return np.concatenate([[chosen], ranked[ranked != chosen]])
