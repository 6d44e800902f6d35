"""Plans of SMP v1 with PyTorch, and their controls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from smp_advisor.core.files import sentence
from smp_advisor.errors import PlanError
from smp_advisor.libraries.groups import divisors
from smp_advisor.libraries.library import ControlCodec, plan_defaults
from smp_advisor.libraries.plan import Checkpointing, Plan
from smp_advisor.libraries.schema import default_active_microbatches, schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.library import Setting, Settings
    from smp_advisor.workload.job import Precision


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class SmpV1Plan(Plan):
    BATCH_DEGREES = ("pipeline_parallel_degree", "tensor_parallel_degree")

    library: str = "smp-v1"
    version: str = "1.15.0"
    pipeline_parallel_degree: int = 1
    tensor_parallel_degree: int = 1
    sharded_data_parallel_degree: int = 1
    shard_optimizer_state: bool = False
    microbatches: int = 1
    active_microbatches: int | None = None
    """None for the library's default, min(pipeline_parallel_degree + 2, microbatches)."""
    pipeline: Literal["interleaved", "simple"] = "interleaved"
    optimize: Literal["speed", "memory"] = "speed"
    placement_strategy: str = "cluster"
    prescaled_batch: bool = False
    fp16: bool = False
    bf16: bool = False
    ddp: bool | None = None
    """None means True: all plans with more than one replica require it, and others accept it."""
    offload_activations: bool = False
    activation_loading_horizon: int | None = None
    """None here and below: the library's default."""
    auto_partition: bool = True
    default_partition: int | None = None
    delayed_parameter_initialization: bool = False
    skip_tracing: bool = False
    memory_weight: float | None = None
    ddp_dist_backend: str | None = None
    sdp_reduce_bucket_size: int | None = None
    sdp_param_persistence_threshold: int | None = None
    sdp_max_live_parameters: int | None = None
    sdp_hierarchical_allgather: bool | None = None
    sdp_gradient_clipping: float | None = None
    tensor_parallel_seed: int | None = None
    # script settings
    batch_size: int = 1
    """Samples that the script passes to one step: per GPU, or per tensor-parallel group with `prescaled_batch`."""
    activation_checkpointing: Checkpointing = False
    """False, or the strategy of ``smp.set_activation_checkpointing``: each, contiguous, group_N."""

    def _complete(self) -> None:
        if self.ddp is None:
            object.__setattr__(self, "ddp", True)

    def _without_effect(self) -> tuple[str, ...]:
        unread: list[str] = []
        if self.sharded_data_parallel_degree == 1:
            unread += [name for name in plan_defaults(SmpV1Plan) if name.startswith("sdp_")]
        if not self.offload_activations:
            unread.append("activation_loading_horizon")
        return tuple(name for name in unread if getattr(self, name) is not None)

    @property
    def precision(self) -> Precision:
        return "fp16" if self.fp16 else "bf16" if self.bf16 else "fp32"

    @property
    def active_in_flight(self) -> int:
        """Microbatches in the pipeline at a time: `active_microbatches`, or the library's default for it."""
        if self.active_microbatches is not None:
            return self.active_microbatches
        return default_active_microbatches(self.pipeline_parallel_degree, self.microbatches)

    @property
    def shards_parameters(self) -> bool:
        return self.sharded_data_parallel_degree > 1

    @property
    def batches_per_group(self) -> int:
        """Batches per tensor-parallel group: one with `prescaled_batch`, else one per rank."""
        return 1 if self.prescaled_batch else self.tensor_parallel_degree

    def shard_degree(self, cluster: Cluster) -> int:
        """Return the GPUs over which parameters are sharded: the sharded data parallel degree."""
        del cluster
        return self.sharded_data_parallel_degree

    @classmethod
    def precision_remedy(cls, precision: Precision) -> str:
        return "neither fp16 nor bf16" if precision == "fp32" else f"{precision}=True"

    @classmethod
    def precision_fields(cls, precision: Precision) -> dict[str, Any]:
        return {"fp16": precision == "fp16", "bf16": precision == "bf16"}

    @property
    def parameters(self) -> dict[str, Any]:
        """``mp_parameters``: the library's parameters, exactly as the estimator takes them."""
        names = schema(self.library).defaults(self.version)
        # The name pipeline_parallel_degree came with 1.6; before, the same parameter is `partitions`.
        degree = "pipeline_parallel_degree" if "pipeline_parallel_degree" in names else "partitions"
        written: dict[str, Any] = {degree: self.pipeline_parallel_degree}
        if self.default_partition is not None:
            # The SageMaker SDK (2.x) compares default_partition with `partitions` and raises KeyError without it.
            written["partitions"] = self.pipeline_parallel_degree
        if "tensor_parallel_degree" in names or self.tensor_parallel_degree != 1:
            written["tensor_parallel_degree"] = self.tensor_parallel_degree
        written.update({name: getattr(self, name) for name in _ALWAYS})
        if self.active_microbatches is not None:
            written["active_microbatches"] = self.active_microbatches
        if self.pipeline_parallel_degree != 1 or self.pipeline != "interleaved":
            written["pipeline"] = self.pipeline
        return written | self._changed(_WHERE_CHANGED)

    @classmethod
    def from_reading(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Like `Plan.from_reading`; ddp is off by default, and precision is a flag of the library."""
        flagged = "fp16" if settings.get("fp16") else "bf16" if settings.get("bf16") else "fp32"
        precision = settings.pop("precision", flagged)
        if precision != flagged:
            raise PlanError(sentence("libraries", "two_precisions", precision=precision, flagged=flagged))
        offloads = settings.get("offload_activations", False)
        missing = {
            "ddp": False,
            "batch_size": settings.get("microbatches", 1),
            "activation_checkpointing": "each" if offloads else False,
        }
        return missing | settings


_ALWAYS = ("microbatches", "ddp", "optimize")
"""Always written: documentation and library have different defaults of ``optimize`` (documentation: memory; library:
speed), and ddp is required if a replica is smaller than the cluster."""

_WHERE_CHANGED = (
    "placement_strategy",
    "prescaled_batch",
    "shard_optimizer_state",
    "sharded_data_parallel_degree",
    "sdp_reduce_bucket_size",
    "sdp_param_persistence_threshold",
    "sdp_max_live_parameters",
    "sdp_hierarchical_allgather",
    "sdp_gradient_clipping",
    "fp16",
    "bf16",
    "offload_activations",
    "activation_loading_horizon",
    "auto_partition",
    "default_partition",
    "memory_weight",
    "delayed_parameter_initialization",
    "skip_tracing",
    "ddp_dist_backend",
    "tensor_parallel_seed",
)


CONTROLS = (
    "batch_size",
    "microbatches",
    "tensor_parallel_degree",
    "pipeline_parallel_degree",
    "sharding",
    "activation_checkpointing",
    "offload_activations",
    "active_microbatches",
    "pipeline",
)

_OPTIMIZER_STATE = "optimizer_state"
_SHARDED = "sharded_"


def _shards(sharding: object) -> int:
    text = str(sharding)
    degree = text.removeprefix(_SHARDED)
    if text in {"none", _OPTIMIZER_STATE}:
        return 1
    if text == degree or not degree.isdecimal():
        raise PlanError(f"sharding must be none, {_OPTIMIZER_STATE} or {_SHARDED}N, not {sharding!r}.")
    return int(degree)


class SmpV1Controls(ControlCodec):
    """One choice of sharding: none, optimizer state, or everything over N GPUs."""

    labels: ClassVar[Mapping[str, str]] = {"sharding": "Sharding"}

    def settings(self, names: tuple[str, ...], fields: Mapping[str, Any]) -> Settings:
        """Return values of the controls, with the library's default of active microbatches as a number."""
        active = fields["active_microbatches"] or default_active_microbatches(
            fields["pipeline_parallel_degree"], fields["microbatches"]
        )
        degree = fields["sharded_data_parallel_degree"]
        sharding = "none" if degree == 1 else f"{_SHARDED}{degree}"
        sharding = _OPTIMIZER_STATE if fields["shard_optimizer_state"] else sharding
        return super().settings(names, {**fields, "sharding": sharding, "active_microbatches": active})

    def fields(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return fields of a plan. Active microbatches are None for the library's default."""
        fields = super().fields(settings)
        if "sharding" in fields:
            sharding = fields.pop("sharding")
            fields["shard_optimizer_state"] = sharding == _OPTIMIZER_STATE
            fields["sharded_data_parallel_degree"] = _shards(sharding)
        if {"active_microbatches", "pipeline_parallel_degree", "microbatches"} <= fields.keys():
            default = default_active_microbatches(fields["pipeline_parallel_degree"], fields["microbatches"])
            if fields["active_microbatches"] == default:
                fields["active_microbatches"] = None
        return fields

    def positions(self, name: str, shardable_gpus: int) -> Iterable[Setting] | None:
        """Return the choices of sharding: over every number of GPUs that divides the replicas."""
        if name != "sharding":
            return None
        degrees = divisors(shardable_gpus)[1:]
        return ["none", _OPTIMIZER_STATE, *(f"{_SHARDED}{degree}" for degree in degrees)]
