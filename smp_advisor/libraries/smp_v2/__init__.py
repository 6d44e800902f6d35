"""SMP v2, which is based on PyTorch FSDP."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.core.elementwise import inverted, where
from smp_advisor.core.files import sentence, table
from smp_advisor.libraries.fsdp import prefetched_units
from smp_advisor.libraries.groups import divisors, nearest_divisor, shard_degree
from smp_advisor.libraries.layout import BACKENDS, EVERYTHING, Layout, checkpoint_columns, encoded
from smp_advisor.libraries.library import SHARDED_SETTINGS, Library, supported_families
from smp_advisor.libraries.plan import Plan
from smp_advisor.libraries.schema import default_of
from smp_advisor.libraries.space import Space, accumulated_batches, crossed, memory_choices, technique_degrees
from smp_advisor.libraries.state_bytes import fully_sharded, trained
from smp_advisor.libraries.version import default_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.layout import PlanColumns
    from smp_advisor.libraries.plan import Checkpointing
    from smp_advisor.workload.job import Job, Precision
    from smp_advisor.workload.model import Model


BROKEN_OFFLOADING = "2.2.0"
"""Release notes of 2.2.0: the library's own activation offloading does not work, PyTorch's does."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class SmpV2Plan(Plan):
    BATCH_DEGREES = ("tensor_parallel_degree", "context_parallel_degree")

    library: str = "smp-v2"
    version: str = "2.8.0"
    hybrid_shard_degree: int = 0
    """GPUs over which parameters, gradients and optimizer state are sharded; 0 lets the library choose, see
    `shard_degree`."""
    tensor_parallel_degree: int = 1
    context_parallel_degree: int = 1
    expert_parallel_degree: int = 1
    sm_activation_offloading: bool | None = None
    """Whether the library's own offloading moves the activations, not PyTorch's; None: if it works."""
    activation_loading_horizon: int | None = None
    """None here and below: the library's default."""
    fsdp_cache_flush_warnings: bool | None = None
    allow_empty_shards: bool | None = None
    random_seed: int | None = None
    # script settings
    batch_size: int = 1
    """Samples per data-parallel rank and forward pass. The GPUs of a tensor- or context-parallel group share them."""
    gradient_accumulation_steps: int = 1
    precision: Precision = "bf16"
    fp8: bool = False
    """Whether matrix products run in fp8 (Transformer Engine), with bf16 for all else."""
    activation_checkpointing: Checkpointing = False
    offload_activations: bool = False
    sharding_strategy: Literal["hybrid_shard", "full_shard", "_hybrid_shard_zero2"] = "hybrid_shard"
    delayed_parameter_initialization: bool = False
    distributed_backend: Literal["nccl", "smddp"] = "nccl"

    def _complete(self) -> None:
        if self.sm_activation_offloading is None or self.offload_activations is False:
            own = self.offload_activations is True and self.version != BROKEN_OFFLOADING
            object.__setattr__(self, "sm_activation_offloading", own)

    def _without_effect(self) -> tuple[str, ...]:
        return () if self.offload_activations else ("activation_loading_horizon",)

    @property
    def shards_parameters(self) -> bool:
        return True

    def shard_degree(self, cluster: Cluster) -> int:
        """Return the GPUs that share the parameters: `hybrid_shard_degree`, for 0 all left by tensor parallelism."""
        return self.hybrid_shard_degree or cluster.gpus // (self.tensor_parallel_degree * self.expert_parallel_degree)

    @classmethod
    def from_reading(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Like `Plan.from_reading`; offloading, which has no effect without checkpointing, turns it on."""
        # The default of the parameter is True, without an effect: scripts with offloading set it explicitly.
        offloads = settings.get("offload_activations", settings.get("sm_activation_offloading", False))
        missing = {"offload_activations": offloads, "activation_checkpointing": "each" if offloads else False}
        return missing | settings


SMDDP_INSTANCES: tuple[str, ...] = tuple(table("smp_advisor.libraries.smp_v2", "versions.toml")["instances"]["smddp"])


def cluster_mismatches(plan: Plan, cluster: Cluster, _: int) -> Iterator[str]:
    taken = plan.tensor_parallel_degree * plan.expert_parallel_degree
    if cluster.gpus % taken:
        near = nearest_divisor(cluster.gpus // plan.tensor_parallel_degree, plan.expert_parallel_degree)
        yield sentence("libraries", "tensor_and_expert_degrees", plan=plan, cluster=cluster, near=near)
        return
    left, shards = cluster.gpus // taken, shard_degree(plan, cluster)
    if left % shards:
        near = nearest_divisor(left, shards)
        yield sentence("libraries", "hybrid_shard_degree", shards=shards, left=left, cluster=cluster, near=near)
    if plan.context_parallel_degree > shards:
        yield sentence("libraries", "context_beyond_shards", plan=plan, shards=shards, cluster=cluster)
    if plan.distributed_backend == "smddp" and cluster.instance.name not in SMDDP_INSTANCES:
        names = " and ".join(SMDDP_INSTANCES)
        yield sentence("libraries", "no_smddp", instances=names, machine=cluster.instance)
    if plan.fp8 and not cluster.instance.fp8_tflops:
        yield sentence("libraries", "no_fp8", machine=cluster.instance)


def model_mismatches(plan: Plan, model: Model, job: Job | None) -> Iterator[str]:
    adapter = job is not None and job.adapter is not None
    for key in _CONTROLS[1:4]:
        technique = key.removesuffix("_degree")
        families = supported_families(technique, "smp-v2", adapter=adapter)
        if getattr(plan, key) > 1 and model.family not in families:
            title = technique.replace("_", " ").replace("parallel", "parallelism")
            which = "v2_families" if families else "v2_adapter"
            yield sentence("libraries", which, title=title, names=", ".join(families), model=model, key=key)
    if plan.fp8 and adapter:
        yield sentence("libraries", "v2_adapter_in_fp8")
    elif plan.fp8 and model.family not in (families := supported_families("fp8", "smp-v2")):
        yield sentence("libraries", "v2_families_in_fp8", names=", ".join(families), model=model)
    experts, degree = model.shape.experts, plan.expert_parallel_degree
    if degree > 1 and experts % degree:
        near = nearest_divisor(experts, degree)
        yield sentence("libraries", "expert_parallel_degree", degree=degree, experts=experts, near=near)
    if job is not None and plan.context_parallel_degree > 1:
        length = model.sequence_length(job.sequence_length)
        if length % plan.context_parallel_degree:
            near = nearest_divisor(length, plan.context_parallel_degree)
            yield sentence("libraries", "context_and_sequence", plan=plan, length=length, near=near)


def follow_ups(plan: Plan, settings: Mapping[str, Any], cluster: Cluster) -> dict[str, Any]:
    """Return the kind of offloading, and NCCL if SageMaker's own collectives do not run or have nothing to gather."""
    result: dict[str, Any] = {}
    if settings["offload_activations"] != plan.offload_activations:
        result["sm_activation_offloading"] = None
    if settings["hybrid_shard_degree"] == 1 or cluster.instance.name not in SMDDP_INSTANCES:
        result["distributed_backend"] = "nccl"
    return result


def layout(plans: PlanColumns, job: Job, cluster: Cluster | None = None) -> Layout:
    """Return the columns of the cost model for columns of plans.

    Shards are fp32, gathered blocks 16-bit, and a tensor- and context-parallel group shares one batch. Accumulated
    batches run one after the other, so that one batch of activations exists at a time. Tensor parallelism is assumed to
    be sequence-parallel: AWS's released recipes for Llama 3.1 8B (tensor degree 2, 16,384 tokens, no checkpointing, P5)
    fit only this way.
    """
    tensor, experts, shards = (
        plans[name] for name in ("tensor_parallel_degree", "expert_parallel_degree", "hybrid_shard_degree")
    )
    if cluster is not None:
        shards = where(shards == 0, cluster.gpus // (tensor * experts), shards)
    horizon = plans["activation_loading_horizon"]
    return Layout.of_columns(
        replace(trained(fully_sharded(job), job), loaded_copies="unsupported" if job.stack == "auto" else ""),
        rows=plans.rows,
        tensor_parallel_degree=tensor,
        sequence_parallel=tensor > 1,
        context_parallel_degree=plans["context_parallel_degree"],
        expert_parallel_degree=experts,
        experts_beside_shards=True,
        shard_level=3,
        shard_degree=shards,
        prefetched_units=prefetched_units(plans),
        max_live_parameters=EVERYTHING,
        batch_samples=plans["batch_size"] * plans["gradient_accumulation_steps"],
        microbatches=plans["gradient_accumulation_steps"],
        **checkpoint_columns(plans["activation_checkpointing"]),
        offload_activations=plans["offload_activations"],
        offload_running=True,
        blocking_offload=plans["offload_activations"] & inverted(plans["sm_activation_offloading"]),
        overlapped_gather=plans["distributed_backend"] == BACKENDS.index("smddp"),
        activation_loading_horizon=where(horizon == 0, default_of("activation_loading_horizon", "smp-v2"), horizon),
    )


_CONTROLS = (
    "hybrid_shard_degree",
    "tensor_parallel_degree",
    "context_parallel_degree",
    "expert_parallel_degree",
    "activation_checkpointing",
    "offload_activations",
    "batch_size",
    "gradient_accumulation_steps",
)
_FIELDS = (*_CONTROLS, "distributed_backend")
"""Fields that the search varies. Other pinned fields are passed to the plan."""

_DELAYED_FROM = 60e9
"""Parameters from which the best practices of SMP v2 require delayed parameter initialization."""


def space(model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any]) -> Space:
    """All plans of SMP v2: every combination of degrees that divide cluster and model, with choices for memory."""
    shared = {
        "precision": job.precision,
        "fp8": job.fp8,
        "delayed_parameter_initialization": model.parameter_count >= _DELAYED_FROM,
        "sm_activation_offloading": pins.get("version", default_version("smp-v2")) != BROKEN_OFFLOADING,
        **{name: value for name, value in pins.items() if name not in _FIELDS},
    }
    return Space.of_blocks("smp-v2", cluster, job, _FIELDS, _blocks(model, cluster, job, pins), shared)


def _blocks(model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    smddp = cluster.instance.name in SMDDP_INSTANCES and cluster.nodes > 1
    choices = memory_choices([False, "each"], pins)

    @cache
    def batches(replicas: int) -> dict[str, NDArray[Any]]:
        """Return the batches and choices for memory, which many degrees share."""
        rows = crossed(accumulated_batches(job, model, replicas, pins), choices)
        return {
            "batch_size": rows[:, 0] // rows[:, 1],
            "gradient_accumulation_steps": rows[:, 1],
            "activation_checkpointing": rows[:, 2],
            "offload_activations": rows[:, 3].astype(bool),
        }

    for tp, cp, ep, shards in _degrees(model, cluster, job, pins):
        columns = batches(cluster.gpus // (tp * cp))
        # Tensor parallelism alone works with NCCL only (release notes of 2.0.0).
        backend = pins.get("distributed_backend", "smddp" if smddp and shards > 1 else "nccl")
        yield (
            len(columns["batch_size"]),
            {
                "hybrid_shard_degree": shards,
                "tensor_parallel_degree": tp,
                "context_parallel_degree": cp,
                "expert_parallel_degree": ep,
                "distributed_backend": encoded("distributed_backend", backend),
                **columns,
            },
        )


def _degrees(model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any]) -> Iterator[tuple[int, int, int, int]]:
    """(tensor, context, expert, shard) degrees that the cluster, the model and the version allow together."""
    version = pins.get("version", default_version("smp-v2"))

    def candidates(field: str) -> list[int]:
        return [pins[field]] if field in pins else technique_degrees("smp-v2", field, model, cluster, job, version)

    for tp, cp, ep in product(*map(candidates, _FIELDS[1:4])):
        if cluster.gpus % (tp * cp) or cluster.gpus % (tp * ep):
            continue
        left = cluster.gpus // (tp * ep)
        degrees = [pins["hybrid_shard_degree"] or left] if "hybrid_shard_degree" in pins else divisors(left)
        for shards in degrees:
            if cp <= shards and left % shards == 0:
                yield tp, cp, ep, shards


LIBRARY = Library(
    name="smp-v2",
    package=__name__,
    plan=SmpV2Plan,
    layout=layout,
    stack="smp-v2",
    space=space,
    cluster_mismatches=cluster_mismatches,
    model_mismatches=model_mismatches,
    smdistributed=True,
    adapters=True,
    training_settings=SHARDED_SETTINGS,
    restricts_families=True,
    shard_field="hybrid_shard_degree",
    shards_beside=("tensor_parallel_degree", "expert_parallel_degree"),
    follow_ups=follow_ups,
    controls=_CONTROLS,
    alternatives=tuple(name for name in _CONTROLS if name != "batch_size"),
)
