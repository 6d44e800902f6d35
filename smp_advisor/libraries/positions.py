"""Values that each control of a plan can take while the others are fixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.libraries.axes import batch_steps, checkpointing_strategies, pipeline_degrees, technique_degrees
from smp_advisor.libraries.dependent import batches_per_forward_pass, shardable_gpus
from smp_advisor.libraries.groups import divisors
from smp_advisor.libraries.pipeline_schedule import SCHEDULES
from smp_advisor.libraries.registry import get_library
from smp_advisor.libraries.schema import schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.control_codec import Setting
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["SCHEDULE", "Situation", "positions"]

SCHEDULE = frozenset({"active_microbatches", "pipeline"})
"""Controls of the schedule of a pipeline."""

_MAX_ACTIVE_STEPS = 32
"""Up to this number of microbatches, every number of active ones has a position; above, only powers of two."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Model, cluster, job, and the fields of the plan on screen."""

    plan: Plan
    """A plan of the library; its version decides which techniques exist."""
    fields: Mapping[str, Any]
    model: Model
    cluster: Cluster
    job: Job

    @property
    def shardable_gpus(self) -> int:
        """GPUs available to shards, after the other degrees."""
        return shardable_gpus(self.plan, self.fields, self.cluster.gpus)

    @property
    def samples_limit(self) -> int:
        """Maximum samples per replica and step, over all accumulation steps, within the job's limit of tokens."""
        copies = max(batches_per_forward_pass(self.plan, self.fields, self.cluster.gpus), 1)
        return self.job.max_tokens_per_step // (self.model.sequence_length(self.job.sequence_length) * copies)


def positions(situation: Situation) -> dict[str, list[Setting]]:
    """Values of each control of the library; none for the schedule of a pipeline that the plan does not have."""
    record = get_library(situation.plan.library)
    result: dict[str, list[Setting]] = {}
    for name in record.controls:
        if name in SCHEDULE and situation.fields.get("pipeline_parallel_degree") == 1:
            result[name] = []
            continue
        values = record.control_codec.positions(name, situation)
        result[name] = list(_field_positions(name, situation) if values is None else values)
    return result


def _field_positions(name: str, situation: Situation) -> Iterable[Setting]:  # noqa: C901 - one case per field
    plan, fields, model, cluster = situation.plan, situation.fields, situation.model, situation.cluster
    match name:
        case "tensor_parallel_degree" | "context_parallel_degree" | "expert_parallel_degree":
            degrees = technique_degrees(plan.library, name, model, cluster, situation.job, plan.version)
            stages = fields.get("pipeline_parallel_degree", 1)
            return [degree for degree in degrees if cluster.gpus % (degree * stages) == 0]
        case "pipeline_parallel_degree" | "partitions":
            return pipeline_degrees(model, cluster, fields.get("tensor_parallel_degree", 1), {})
        case "hybrid_shard_degree":
            return divisors(situation.shardable_gpus)
        case "microbatches":
            return divisors(fields["batch_size"])
        case "active_microbatches":
            return _active(fields["microbatches"])
        case "pipeline":
            return SCHEDULES
        case "batch_size":
            return _batch_sizes(situation)
        case "gradient_accumulation_steps":
            return _accumulation_steps(situation)
        case "offload_activations":
            return [False, True]
        case "activation_checkpointing" if "pipeline_parallel_degree" in fields:
            layers = -(-model.layer_count // fields["pipeline_parallel_degree"])
            return [
                strategy or "none" for strategy in checkpointing_strategies(layers, fields["tensor_parallel_degree"])
            ]
    described = schema(plan.library).described(name)
    return described.choices if described else []


def _batch_sizes(situation: Situation) -> list[int]:
    """Multiples of the microbatches up to the job's limit of tokens.

    If the job fixes the global batch: the batches that accumulation completes to it; none without accumulation.
    """
    if situation.job.global_batch_size is not None:
        if "gradient_accumulation_steps" not in situation.fields:
            return []
        copies = max(batches_per_forward_pass(situation.plan, situation.fields, situation.cluster.gpus), 1)
        share, remainder = divmod(situation.job.global_batch_size, copies)
        return [] if remainder or not share else divisors(share)
    unit = situation.fields.get("microbatches", 1)
    steps = situation.fields.get("gradient_accumulation_steps", 1)
    return [size * unit for size in batch_steps(situation.samples_limit // (steps * unit))]


def _accumulation_steps(situation: Situation) -> list[int]:
    if situation.job.global_batch_size is not None:
        copies = max(batches_per_forward_pass(situation.plan, situation.fields, situation.cluster.gpus), 1)
        share, remainder = divmod(situation.job.global_batch_size, copies)
        return [] if remainder or not share else divisors(share)
    most = situation.samples_limit // situation.fields["batch_size"]
    return [2**power for power in range(max(most, 1).bit_length())]


def _active(microbatches: int) -> list[int]:
    if microbatches <= _MAX_ACTIVE_STEPS:
        return list(range(1, microbatches + 1))
    return sorted({2**power for power in range(microbatches.bit_length())} | {microbatches})
