"""The record of one training library, which all other rooms read."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.libraries.control_codec import ControlCodec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.columns import PlanColumns
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.libraries.space import Space
    from smp_advisor.workload.job import Job, Precision
    from smp_advisor.workload.model import Model

__all__ = ["REPLICATED_SETTINGS", "SHARDED_SETTINGS", "Library", "table"]

REPLICATED_SETTINGS = frozenset({"loss", "state_precision", "optimizer_step", "paged_optimizer"})
"""Training settings of PyTorch code with a replica on each GPU."""
SHARDED_SETTINGS = REPLICATED_SETTINGS | {"unsharded_accumulation", "separate_embeddings"}
"""Those of PyTorch code that shards parameters."""


FULLY_SHARD_SINCE = (2, 6)
"""PyTorch release from which the generated script shards with ``fully_shard``."""


@cache
def table(package: str, file: str) -> dict[str, Any]:
    """One data file of a library, parsed. Callers must not change it."""
    return tomllib.loads((files(package) / file).read_text(encoding="utf-8"))


def _nothing_follows(*_: object) -> dict[str, Any]:
    return {}


def _suits_everything(*_: object) -> Iterator[str]:
    return iter(())


def _never(_: Plan) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class Library:
    """One training library.

    Its package holds the data: ``schema.toml`` (parameters, settings, rules, assumptions), ``versions.toml``
    (containers and instances), ``practices.toml`` and ``pitfalls.toml``, and ``models.toml`` if techniques support only
    some model families.
    """

    name: str
    """Public name: ``Plan(library=...)``."""
    package: str
    """Python package with the data files."""
    plan: type[Plan]
    layout: Callable[[PlanColumns, Job, Cluster | None], Layout]
    """Fields of n plans in the form of the cost model."""
    space: Callable[[Model, Cluster, Job, Mapping[str, Any]], Space]
    """All plans on a cluster, with some fields pinned."""
    cluster_mismatches: Callable[[Plan, Cluster, int], Iterator[str]] = _suits_everything
    """A sentence for each mismatch of a plan with a cluster, given its number of replicas."""
    model_mismatches: Callable[[Plan, Model, Job | None], Iterator[str]] = _suits_everything
    """A sentence for each mismatch of a plan with a model and a job."""
    follow_ups: Callable[[Plan, Mapping[str, Any], Cluster], dict[str, Any]] = _nothing_follows
    """Fields that the cluster and the other fields of a plan determine."""
    versions_package: str = ""
    """Package with ``versions.toml`` if libraries share one; `package` if empty."""
    framework: Literal["pytorch", "tensorflow"] = "pytorch"
    launcher: Literal["mpi", "torchrun", "xla"] = "torchrun"
    """Program that starts the processes in the container."""
    smdistributed: bool = False
    """Whether the SageMaker SDK passes the parameters of the plan to the library (``mp_parameters``)."""
    compiles: bool = False
    """Whether the library compiles the training step, with the parameters of the plan as ``compiler_config``."""
    script: Literal["torch", "smp_step", "keras", "trainer"] = "torch"
    """Kind of the generated training script: a PyTorch loop (FSDP, or DDP if the plan does not shard parameters), a
    PyTorch loop with ``smp.step`` functions, a Keras loop, or the Trainer of transformers."""
    flat_parameters: Callable[[Plan], bool] = _never
    """Whether the generated script of a plan shards with FullyShardedDataParallel instead of ``fully_shard``."""
    adapters: bool = False
    """Whether the library documents training of adapters (LoRA)."""
    adapter_bases: frozenset[int] = frozenset()
    """Bits of the frozen weights (`Adapter.base_bits`) over which the generated script trains adapters. Its checkpoints
    contain the adapter and its optimizer state only."""
    training_settings: frozenset[str] = frozenset()
    """Settings of the job in ``training_settings.toml`` with which the library trains in another form than the
    default."""
    inferred_family: str = "gpt2"
    """Model family of shapes inferred from a parameter count: that of AWS's reference configurations."""
    default_precision: Precision = "bf16"
    """Default precision of jobs; fp16 instead of bf16 on GPUs without bf16."""
    half_precision: Literal["mixed", "amp", "fp16"] = "mixed"
    """Form of training in 16 bits, a key of `smp_advisor.profiling.precision.PRECISIONS`: layers over gathered fp32
    parameters, autocast, or fp32 copies of 16-bit parameters."""
    stack: str = "hf-sdpa"
    """Kind of code of the generated training script (`smp_advisor.workload.stack`)."""
    default_attention: Literal["eager", "fused"] = "fused"
    """Default attention kernels of jobs."""
    divides_model: bool = True
    """Whether plans can divide the model's state over GPUs, so that more nodes help a model to fit."""
    shard_field: str = ""
    """Field of the plan with the number of shards; empty without one."""
    shards_beside: tuple[str, ...] = ()
    """Degrees by which the number of GPUs is divided before sharding."""
    restricts_families: bool = False
    """Whether techniques support only the model families in ``models.toml``."""
    controls: tuple[str, ...] = ()
    """Names of the controls, in the order of the form: fields of the plan, or names that `control_codec` maps."""
    control_codec: ControlCodec = field(default_factory=ControlCodec)
    """Conversion between the controls and the fields of a plan."""
    reported: tuple[str, ...] = ()
    """Fields of the plan in the text report; all user-facing ones if empty."""
    alternatives: tuple[str, ...] = ()
    """Fields of the plan in the rows of `Advice.alternatives`."""

    def layout_of(self, plans: PlanColumns, job: Job, cluster: Cluster | None = None) -> Layout:
        """Columns of the cost model for fields of n plans, with stack and checkpoints of the generated script."""
        return replace(self.layout(plans, job, cluster), stack=self.stack, saves_frozen=not self.adapter_bases)

    def table(self, file: str) -> dict[str, Any]:
        """One of the library's data files, parsed."""
        return table(self.package, file)

    @property
    def of_sagemaker(self) -> bool:
        """Whether it is one of SageMaker's own libraries, which only AWS's containers have."""
        return self.smdistributed or self.compiles

    @property
    def title(self) -> str:
        """Title of the library."""
        return str(self.table("schema.toml")["name"])
