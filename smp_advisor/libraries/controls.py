"""Moves of a plan's settings: the values that each can take, and the settings that follow."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import prod
from typing import TYPE_CHECKING, Any

from smp_advisor.core.words import plural
from smp_advisor.libraries.groups import divisors
from smp_advisor.libraries.library import get_library
from smp_advisor.libraries.schema import SCHEDULES, default_active_microbatches, schema
from smp_advisor.libraries.space import (
    batch_steps,
    checkpointing_strategies,
    pipeline_degrees,
    takes_prescaled_batch,
    technique_degrees,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.library import Setting
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


@dataclass(frozen=True, kw_only=True)
class Dependents:
    """Fields of a plan after a change, and the dependent fields that changed with it."""

    settings: dict[str, Any]
    moved: tuple[str, ...] = ()
    """Text for each dependent setting that changed: "1 microbatch instead of 4"."""
    obstacle: str = ""
    """Reason why the cluster or the batch allows no such plan. The settings then stay as they are."""


def fields_of(plan: Plan) -> dict[str, Any]:
    return {field.name: getattr(plan, field.name) for field in fields(plan)}


def batches_per_forward_pass(plan: Plan, settings: Mapping[str, Any], gpus: int) -> int:
    """Batches of ``batch_size`` that all GPUs process in one forward pass; 0 if the degrees exceed the cluster."""
    groups = gpus // prod(settings[name] for name in plan.BATCH_DEGREES)
    return int(groups * (1 if settings.get("prescaled_batch", True) else settings["tensor_parallel_degree"]))


def shardable_gpus(plan: Plan, settings: Mapping[str, Any], gpus: int) -> int:
    """Return the GPUs available to shards and their copies, after the other degrees."""
    return max(gpus // int(prod(settings[name] for name in get_library(plan.library).shards_beside)), 1)


def dependent_settings(
    plan: Plan,
    before: Mapping[str, Any],
    changes: Mapping[str, Any],
    *,
    model: Model,
    job: Job,
    cluster: Cluster,
    global_batch_size: int | None,
    cluster_before: Cluster | None = None,
) -> Dependents:
    """Apply changes to the fields of a plan. Other fields change only if they depend on them.

    Tensor-parallel groups use a prescaled batch if they can. The batch of each replica follows the number of replicas.
    Microbatches and accumulation steps divide it, and active microbatches do not exceed microbatches. Shards over all
    GPUs stay over all GPUs; others divide the GPUs left by the degrees. Offloading requires checkpointing.
    """
    settings: dict[str, Any] = {**before, **changes}
    moved: list[str] = []
    group = prod(settings[name] for name in plan.BATCH_DEGREES)
    if cluster.gpus % group:
        degrees = " x ".join(f"{name} {settings[name]}" for name in plan.BATCH_DEGREES)
        return Dependents(settings=settings, obstacle=f"{cluster.gpus} GPUs are not a multiple of {degrees}.")
    if "prescaled_batch" not in changes:
        settings = with_prescaled_batch(plan, settings, model, job)
    obstacle = ""
    if global_batch_size is not None and "batch_size" not in changes:
        obstacle = _keep_global_batch(plan, settings, moved, cluster, job, global_batch_size)
    elif job.global_batch_size is not None and "gradient_accumulation_steps" not in changes:
        _accumulate_the_rest(plan, settings, moved, cluster, job.global_batch_size)
    _fit_microbatches(before, settings, changes, moved)
    _fit_shards(plan, before, settings, changes, moved, (cluster_before or cluster).gpus, cluster.gpus)
    if settings.get("offload_activations") and not settings["activation_checkpointing"]:
        if "offload_activations" in changes and "activation_checkpointing" not in changes:
            settings["activation_checkpointing"] = "each"
            moved.append("activation checkpointing on, which offloading requires")
        else:
            settings["offload_activations"] = False
            moved.append("offloading off, which requires checkpointing")
    return Dependents(settings=settings, moved=tuple(moved), obstacle=obstacle)


def with_prescaled_batch(plan: Plan, settings: Mapping[str, Any], model: Model, job: Job) -> dict[str, Any]:
    """Return fields of a plan with a prescaled batch if the model allows it, unless `plan` turns it off."""
    if "prescaled_batch" not in settings:
        return dict(settings)
    degree = settings["tensor_parallel_degree"]
    if degree == plan.tensor_parallel_degree:
        return {**settings, "prescaled_batch": plan.prescaled_batch}
    requested = degree > 1 and (plan.prescaled_batch or plan.tensor_parallel_degree == 1)
    length = model.sequence_length(job.sequence_length)
    prescaled = requested and takes_prescaled_batch(model.family, length, degree, settings["optimize"])
    return {**settings, "prescaled_batch": prescaled}


def _keep_global_batch(
    plan: Plan, settings: dict[str, Any], moved: list[str], cluster: Cluster, job: Job, total: int
) -> str:
    """Set the batch of each replica to its share of the global batch; the reason if there is no such share."""
    copies = batches_per_forward_pass(plan, settings, cluster.gpus)
    share, remainder = divmod(total, copies)
    if remainder or not share:
        if job.global_batch_size is not None:
            return f"The global batch of {total:,} samples cannot be divided by {copies} replicas."
        share = max(1, round(total / copies))
        moved.append(f"a global batch of {share * copies:,} samples instead of {total:,}")
    steps = settings.get("gradient_accumulation_steps", 1)
    if share % steps:
        fewer = _largest_divisor(share, steps)
        moved.append(f"{plural(fewer, 'accumulated batch', 'accumulated batches')} instead of {steps}")
        steps = settings["gradient_accumulation_steps"] = fewer
    settings["batch_size"] = share // steps
    return ""


def _accumulate_the_rest(plan: Plan, settings: dict[str, Any], moved: list[str], cluster: Cluster, total: int) -> None:
    """Accumulate as many batches as the job's global batch has, where the library accumulates and they divide it."""
    steps = settings.get("gradient_accumulation_steps")
    samples = batches_per_forward_pass(plan, settings, cluster.gpus) * settings["batch_size"]
    if steps is None or total % samples or total // samples == steps:
        return
    settings["gradient_accumulation_steps"] = total // samples
    batches = plural(total // samples, "accumulated batch", "accumulated batches")
    moved.append(f"{batches} instead of {steps}")


def _fit_microbatches(
    before: Mapping[str, Any], settings: dict[str, Any], changes: Mapping[str, Any], moved: list[str]
) -> None:
    """Make microbatches divide the batch, and limit active ones to their number."""
    if "microbatches" not in settings:
        return
    batch, microbatches = settings["batch_size"], settings["microbatches"]
    if batch % microbatches and "microbatches" not in changes:
        fewer = _largest_divisor(batch, microbatches)
        moved.append(f"{plural(fewer, 'microbatch', 'microbatches')} instead of {microbatches}")
        microbatches = settings["microbatches"] = fewer
    if "active_microbatches" not in settings:
        return
    active = settings["active_microbatches"]
    if "active_microbatches" in changes:
        if active is not None and active != microbatches and "pipeline" not in changes:
            settings["pipeline"] = "interleaved"
    elif settings["pipeline"] == "simple":  # keeps all of them active
        settings["active_microbatches"] = microbatches
    elif before["pipeline"] == "simple":
        settings["active_microbatches"] = None
    elif active is not None and active > microbatches and settings["pipeline_parallel_degree"] > 1:
        settings["active_microbatches"] = microbatches
        moved.append(f"{plural(microbatches, 'active microbatch', 'active microbatches')} instead of {active}")


def _fit_shards(
    plan: Plan,
    before: Mapping[str, Any],
    settings: dict[str, Any],
    changes: Mapping[str, Any],
    moved: list[str],
    gpus_before: int,
    gpus: int,
) -> None:
    """Make shards divide the GPUs left by the degrees. Shards over all of them stay over all."""
    field = get_library(plan.library).shard_field
    shards = settings.get(field, 1)
    if shards <= 1 or field in changes:
        return
    available = shardable_gpus(plan, settings, gpus)
    over_all = shards == shardable_gpus(plan, before, gpus_before)
    settings[field] = available if over_all else _largest_divisor(available, shards)
    if settings[field] != shards:
        moved.append(f"{plural(settings[field], 'shard')} instead of {shards}")


def completed_settings(plan: Plan, settings: Mapping[str, Any], cluster: Cluster) -> dict[str, Any]:
    complete = dict(settings)
    replicas = cluster.gpus // prod(complete[name] for name in plan.BATCH_DEGREES)
    if "active_microbatches" in complete:
        stages, active = complete["pipeline_parallel_degree"], complete["active_microbatches"]
        if stages == 1:
            # Without a pipeline, neither has an effect, and the library accepts the defaults with any other setting.
            complete |= {"active_microbatches": None, "pipeline": "interleaved"}
        elif active == default_active_microbatches(stages, complete["microbatches"]):
            complete["active_microbatches"] = None
        if complete["default_partition"] is not None:
            complete["default_partition"] = min(complete["default_partition"], stages - 1)
    if "ddp" in complete:
        complete["ddp"] = complete["ddp"] or replicas > 1
    if "horovod" in complete:
        complete["horovod"] = replicas > 1
    return {**complete, **get_library(plan.library).follow_ups(plan, complete, cluster)}


def _largest_divisor(number: int, limit: int) -> int:
    return max(divisor for divisor in divisors(number) if divisor <= max(limit, 1))


SCHEDULE = frozenset({"active_microbatches", "pipeline"})

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
    def samples_limit(self) -> int:
        """Maximum samples per replica and step, over all accumulation steps, within the job's limit of tokens."""
        copies = max(batches_per_forward_pass(self.plan, self.fields, self.cluster.gpus), 1)
        return self.job.max_tokens_per_step // (self.model.sequence_length(self.job.sequence_length) * copies)


def positions(situation: Situation) -> dict[str, list[Setting]]:
    """Return values of each control of the library; none for the schedule of a pipeline that the plan does not have."""
    record = get_library(situation.plan.library)
    result: dict[str, list[Setting]] = {}
    gpus = shardable_gpus(situation.plan, situation.fields, situation.cluster.gpus)
    for name in record.controls:
        if name in SCHEDULE and situation.fields.get("pipeline_parallel_degree") == 1:
            result[name] = []
            continue
        values = record.control_codec.positions(name, gpus)
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
            return divisors(shardable_gpus(plan, fields, cluster.gpus))
        case "microbatches":
            return divisors(fields["batch_size"])
        case "active_microbatches":
            microbatches = fields["microbatches"]
            if microbatches <= _MAX_ACTIVE_STEPS:
                return list(range(1, microbatches + 1))
            return sorted({2**power for power in range(microbatches.bit_length())} | {microbatches})
        case "pipeline":
            return SCHEDULES
        case "batch_size":
            return _batch_sizes(situation)
        case "gradient_accumulation_steps":
            if situation.job.global_batch_size is not None:
                return _shares(situation, situation.job.global_batch_size)
            most = situation.samples_limit // fields["batch_size"]
            return [2**power for power in range(max(most, 1).bit_length())]
        case "offload_activations":
            return [False, True]
        case "activation_checkpointing" if "pipeline_parallel_degree" in fields:
            layers = -(-model.layer_count // fields["pipeline_parallel_degree"])
            return [
                strategy or "none" for strategy in checkpointing_strategies(layers, fields["tensor_parallel_degree"])
            ]
    described = schema(plan.library).described(name)
    return described.choices if described else []


def _shares(situation: Situation, total: int) -> list[int]:
    """Divisors of a replica's share of the global batch."""
    copies = max(batches_per_forward_pass(situation.plan, situation.fields, situation.cluster.gpus), 1)
    share, remainder = divmod(total, copies)
    return [] if remainder or not share else divisors(share)


def _batch_sizes(situation: Situation) -> list[int]:
    """Multiples of the microbatches up to the job's limit of tokens."""
    if situation.job.global_batch_size is not None:
        accumulates = "gradient_accumulation_steps" in situation.fields
        return _shares(situation, situation.job.global_batch_size) if accumulates else []
    unit = situation.fields.get("microbatches", 1)
    steps = situation.fields.get("gradient_accumulation_steps", 1)
    return [size * unit for size in batch_steps(situation.samples_limit // (steps * unit))]
