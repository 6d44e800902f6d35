"""All plans of a library on a cluster, as columns, and the values of each axis of the search."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from smp_advisor.core.files import sentence
from smp_advisor.errors import PlanError
from smp_advisor.libraries.groups import divisors
from smp_advisor.libraries.layout import PlanColumns, checkpoint_code, decoded, encoded, layout_of_columns
from smp_advisor.libraries.library import (
    DEFAULT_LIBRARY,
    get_library,
    plan_fields,
    supports,
    supports_tensor_parallelism,
)
from smp_advisor.libraries.schema import default_active_microbatches, schema
from smp_advisor.libraries.version import default_of, driving_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.libraries.plan import Checkpointing, Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

    Pins = Mapping[str, Any]
    Ints = NDArray[np.int64]


def tensor_degrees(model: Model, cluster: Cluster, pins: Pins) -> list[int]:
    """Degrees that divide the cluster and all attention heads; 1 for families that the library does not distribute."""
    if "tensor_parallel_degree" in pins:
        return [pins["tensor_parallel_degree"]]
    if not supports_tensor_parallelism(model.family):
        return [1]
    attentions = [a for group in model.groups for a in group.block.attentions]
    return [t for t in divisors(cluster.gpus) if all(a.heads % t == 0 and a.kv_heads % t == 0 for a in attentions)]


def pipeline_degrees(model: Model, cluster: Cluster, tensor_degree: int, pins: Pins) -> list[int]:
    """Degrees that divide the GPUs left by tensor parallelism and give every stage a block."""
    left = cluster.gpus // tensor_degree
    degrees = [pins["pipeline_parallel_degree"]] if "pipeline_parallel_degree" in pins else divisors(left)
    return [p for p in degrees if p <= model.layer_count and left % p == 0]


def shardings(job: Job, cluster: Cluster, tp: int, pp: int, pins: Pins) -> Iterator[tuple[bool, int]]:
    """(shard_optimizer_state, sharded_data_parallel_degree) pairs that the library accepts together."""
    data_parallel = cluster.gpus // pp
    states = [pins["shard_optimizer_state"]] if "shard_optimizer_state" in pins else [False, True]
    every = divisors(data_parallel // tp)
    degrees = [pins["sharded_data_parallel_degree"]] if "sharded_data_parallel_degree" in pins else every
    for state, degree in product(states, degrees):
        sharded = degree > 1
        if sharded and (state or pp > 1 or degree not in every):
            continue
        if (state and data_parallel == 1) or (job.precision == "bf16" and not sharded):
            continue
        yield state, degree


def batch_steps(limit: int) -> list[int]:
    """Batch sizes up to a limit: each number up to 8, then quarters of each power of two (10, 12, 14, 16, 20, ...)."""
    sizes = set(range(1, 9))
    power = 8
    while power <= limit:
        sizes |= {power * quarter // 4 for quarter in (4, 5, 6, 7)}
        power *= 2
    return sorted(size for size in sizes if size <= limit)


def batches(job: Job, sequence_length: int, replicas: int, group: int, pins: Pins) -> Ints:
    """(samples per replica and step, microbatches) pairs, shape (k, 2)."""
    most = job.max_tokens_per_step // (sequence_length * replicas * group)
    if job.global_batch_size is not None:
        share, remainder = divmod(job.global_batch_size, replicas * group)
        sizes = [] if remainder else [share]
    elif "batch_size" in pins:
        sizes = [pins["batch_size"]]
    else:
        if pins.get("microbatches") == 1:  # no other way to the memory limit than the batch of one pass
            return np.array([(size * group, 1) for size in batch_steps(most)], dtype=np.int64).reshape(-1, 2)
        counts = [pins["microbatches"]] if "microbatches" in pins else [2**k for k in range(most.bit_length())]
        free = [(2**k * m * group, m) for m in counts for k in range((most // m).bit_length())]
        return np.array(free, dtype=np.int64).reshape(-1, 2)
    if "batch_size" in pins:
        sizes = [size for size in sizes if size == pins["batch_size"]]
    fixed = [(size * group, m) for size in sizes for m in divisors(size) if pins.get("microbatches", m) == m]
    return np.array(fixed, dtype=np.int64).reshape(-1, 2)


def _schedules(pairs: Ints, pp: int, pins: Pins) -> list[tuple[int, int, int, int]]:
    """(samples, microbatches, active microbatches, simple) of every batch."""
    if pp == 1:
        return [(samples, m, 1, 0) for samples, m in pairs.tolist()]
    pipelines: Sequence[str] = [pins["pipeline"]] if "pipeline" in pins else ["interleaved", "simple"]
    result = []
    for samples, m in pairs.tolist():
        default = default_active_microbatches(pp, m)
        counts = {2**k for k in range(m.bit_length())} | {default, m}
        if pins.get("active_microbatches"):
            counts = {pins["active_microbatches"]}
        if "interleaved" in pipelines:
            result += [(samples, m, active, 0) for active in sorted(counts) if active <= m]
        if "simple" in pipelines and m in counts:
            result.append((samples, m, m, 1))
    return result


def checkpointing_strategies(layers_per_stage: int, tensor_degree: int) -> list[Checkpointing]:
    """Strategies of a stage; groups require the ``nn.Sequential`` of the library's own tensor-parallel layers."""
    if tensor_degree == 1 or layers_per_stage == 1:
        return [False, "each"]
    groups = [2**k for k in range(1, layers_per_stage.bit_length()) if 2**k < layers_per_stage]
    return [False, "each", *(f"group_{size}" for size in groups), "contiguous"]


def accumulated_batches(job: Job, model: Model, replicas: int, pins: Pins) -> Ints:
    """(samples per replica and step, accumulated batches) pairs, shape (k, 2)."""
    sequence = model.sequence_length(job.sequence_length)
    steps = {"microbatches": pins["gradient_accumulation_steps"]} if "gradient_accumulation_steps" in pins else {}
    if job.optimizer_step == "backward":
        steps = {"microbatches": 1}  # every backward pass updates the parameters
    if "batch_size" not in pins:
        return batches(job, sequence, replicas, 1, steps)
    size = pins["batch_size"]
    if job.global_batch_size is not None:
        pairs = batches(job, sequence, replicas, 1, steps)
        return pairs[np.flatnonzero(pairs[:, 0] == size * pairs[:, 1]), :]
    most = max(job.max_tokens_per_step // (sequence * replicas * size), 1)
    counts = [steps["microbatches"]] if steps else [2**k for k in range(most.bit_length())]
    return np.array([(size * count, count) for count in counts], dtype=np.int64).reshape(-1, 2)


def crossed(left: Ints, right: Sequence[tuple[int, int]]) -> Ints:
    columns = np.array(right, dtype=np.int64).reshape(-1, 2)
    return np.hstack([np.repeat(left, len(columns), axis=0), np.tile(columns, (len(left), 1))])


def memory_choices(checkpointing: Sequence[Checkpointing], pins: Pins) -> list[tuple[int, int]]:
    strategies = [checkpoint_code(strategy) for strategy in checkpointing]
    if "activation_checkpointing" in pins:
        strategies = [checkpoint_code(pins["activation_checkpointing"])]
    offloads = [bool(pins["offload_activations"])] if "offload_activations" in pins else [False, True]
    return [(strategy, int(offload)) for strategy in strategies for offload in offloads if strategy or not offload]


def schedule_rows(pairs: Ints, tp: int, pp: int, layers_per_stage: int, pins: Pins) -> Ints:
    """Batch x schedule x memory choices, shape (k, 6): samples, microbatches, active, simple, strategy, offload."""
    left = np.array(_schedules(pairs, pp, pins), dtype=np.int64).reshape(-1, 4)
    return crossed(left, memory_choices(checkpointing_strategies(layers_per_stage, tp), pins))


_DIVIDED: dict[str, Callable[[Model, Job], list[int]]] = {
    "tensor_parallel_degree": lambda model, _: [
        *(size for group in model.groups for a in group.block.attentions for size in (a.heads, a.kv_heads)),
        model.shape.hidden,
        model.shape.ffn,
    ],
    "context_parallel_degree": lambda model, job: [model.sequence_length(job.sequence_length)],
    "expert_parallel_degree": lambda model, _: [model.shape.experts],
}
"""Sizes of the model that each degree divides."""


def technique_degrees(library: str, field: str, model: Model, cluster: Cluster, job: Job, version: str) -> list[int]:
    """Values of a degree that divide the cluster and its part of the model; 1 if the library does not support it."""
    parameter = schema(library).parameter(field)
    exists = parameter is not None and parameter.exists_in(version)
    technique, adapter = field.removesuffix("_degree"), job.adapter is not None
    if not (exists and supports(model.family, technique, library, adapter=adapter)):
        return [1]
    sizes = _DIVIDED[field](model, job)
    return [degree for degree in divisors(cluster.gpus) if all(size % degree == 0 for size in sizes)]


def takes_prescaled_batch(family: str, sequence_length: int, tensor_parallel_degree: int, optimize: str) -> bool:
    """Return whether ``prescaled_batch`` can be on (SMP documentation, prescaled batch)."""
    divides = sequence_length % tensor_parallel_degree == 0
    return optimize == "speed" and divides and supports(family, "prescaled_batch", "smp-v1")


_MOST_PLANS = 1_500_000
"""Plans of one search: over twice as many as defaults give on any cluster of up to 720 nodes."""


@dataclass(frozen=True, kw_only=True)
class Space:
    library: str
    layout: Layout
    columns: Mapping[str, NDArray[Any]]
    """Codes of the fields that differ from plan to plan, shape (n,)."""
    shared: Mapping[str, Any]
    finish: Callable[[dict[str, Any]], dict[str, Any]] = dict
    """Adds the fields of a plan that its other fields determine."""

    def __len__(self) -> int:
        return len(self.layout)

    def plan(self, row: int) -> Plan:
        settings = {name: decoded(name, column[row].item()) for name, column in self.columns.items()}
        plan: Plan = get_library(self.library).plan(**{**self.finish(settings), **self.shared})
        return plan

    def take(self, rows: NDArray[np.intp]) -> Space:
        columns = {name: column[rows] for name, column in self.columns.items()}
        return replace(self, layout=self.layout.take(rows), columns=columns)

    @classmethod
    def of_blocks(
        cls,
        name: str,
        cluster: Cluster,
        job: Job,
        fields: Sequence[str],
        blocks: Iterable[tuple[int, Mapping[str, Any]]],
        shared: Mapping[str, Any],
        finish: Callable[[dict[str, Any]], dict[str, Any]] = dict,
    ) -> Space:
        rows, parts = 0, []
        for size, block in blocks:
            rows += size
            if rows > _MOST_PLANS:
                raise PlanError(sentence("libraries", "too_many_plans", most=_MOST_PLANS, job=job))
            parts.append((size, block))
        columns = {field: _column([(size, block[field]) for size, block in parts]) for field in fields}
        plans = PlanColumns.of_fields(get_library(name).plan, rows, {**shared, **columns})
        layout = layout_of_columns(name, plans, job, cluster)
        return cls(library=name, layout=layout, columns=columns, shared=shared, finish=finish)


def _column(parts: list[tuple[int, Any]]) -> NDArray[Any]:
    """Return one column of blocks of rows, each with its values or with one value for all of them."""
    if not parts:
        return np.empty(0, dtype=np.int64)
    if any(isinstance(values, np.ndarray) for _, values in parts):
        return np.concatenate(
            [values if isinstance(values, np.ndarray) else np.full(size, values) for size, values in parts]
        )
    return np.repeat(np.array([value for _, value in parts]), [size for size, _ in parts])


def enumerate_plans(
    model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any] | None = None, *, library: str = DEFAULT_LIBRARY
) -> Space:
    """Return all plans of a library on the cluster, including unpromising ones."""
    names = plan_fields(library)
    own = {name: value for name, value in (pins or {}).items() if name in names}
    space: Space = get_library(library).space(model, cluster, job, own)
    return space


def replica_space(
    library: str, model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any], strategies: Sequence[str] = ()
) -> Space:
    """Return all plans of a library in which each GPU processes batches of its own."""
    names = plan_fields(library)
    accumulates = "gradient_accumulation_steps" in names
    pairs = accumulated_batches(job, model, cluster.gpus, pins if accumulates else {**pins, _STEPS: 1})
    if job.training == "dpo":  # a pair is two samples of one batch
        pairs = pairs[pairs[:, 0] % (2 * pairs[:, 1]) == 0]
    checkpointing: list[Checkpointing] = [False, "each"] if _CHECKPOINTING in names else [False]
    rows = crossed(pairs, [choice for choice in memory_choices(checkpointing, pins) if not choice[1]])
    columns = {"batch_size": rows[:, 0] // rows[:, 1], _STEPS: rows[:, 1], _CHECKPOINTING: rows[:, 2]}
    fields = [name for name in (*columns, "sharding_strategy") if name in names]
    candidates = [pins["sharding_strategy"]] if "sharding_strategy" in pins else strategies
    blocks = [{**columns, "sharding_strategy": encoded("sharding_strategy", strategy)} for strategy in candidates]
    version = default_of(library, driving_versions(library, cluster.instance))
    fixed = {name: value for name, value in pins.items() if name not in fields}
    shared = {"precision": job.precision, "version": version, **fixed}
    return Space.of_blocks(library, cluster, job, fields, [(len(rows), block) for block in blocks or [columns]], shared)


_STEPS = "gradient_accumulation_steps"
_CHECKPOINTING = "activation_checkpointing"
