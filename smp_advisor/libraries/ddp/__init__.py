"""PyTorch's DistributedDataParallel."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from smp_advisor.libraries.layout import Layout, checkpoint_columns
from smp_advisor.libraries.library import REPLICATED_SETTINGS, Library
from smp_advisor.libraries.plan import Checkpointing, Plan
from smp_advisor.libraries.space import replica_space
from smp_advisor.libraries.state_bytes import ddp, trained

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.layout import PlanColumns
    from smp_advisor.libraries.state_bytes import StateBytes
    from smp_advisor.workload.job import Job, Precision


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class DdpPlan(Plan):
    """A configuration of PyTorch's DistributedDataParallel: one replica per GPU. The version is PyTorch's."""

    library: str = "ddp"
    version: str = "2.13.0"
    batch_size: int = 1
    """Samples per GPU and forward pass."""
    gradient_accumulation_steps: int = 1
    precision: Precision = "bf16"
    activation_checkpointing: Checkpointing = False


@lru_cache(maxsize=256)
def _state_bytes(job: Job) -> StateBytes:
    exported = job.stack == "auto"
    return replace(
        trained(ddp(job), job),
        # A second copy of all gradients, unless they are views of the buckets, as in the exported script.
        bucket_elements=0.0 if exported else math.inf,
        loaded_copies="each" if exported and (job.adapter is None or not job.adapter.quantized) else "",
    )


def layout(plans: PlanColumns, job: Job, _: Cluster | None = None) -> Layout:
    """Return the columns of the cost model for columns of plans: autocast over fp32 parameters."""
    return Layout.of_columns(
        _state_bytes(job),
        rows=plans.rows,
        batch_samples=plans["batch_size"] * plans["gradient_accumulation_steps"],
        microbatches=plans["gradient_accumulation_steps"],
        **checkpoint_columns(plans["activation_checkpointing"]),
    )


LIBRARY = Library(
    name="ddp",
    package=__name__,
    versions_package="smp_advisor.libraries.fsdp",
    plan=DdpPlan,
    layout=layout,
    half_precision="amp",
    space=partial(replica_space, "ddp"),
    adapters=True,
    optimizers=("adam", "adam-8bit", "adam-4bit", "sgd", "plain-sgd"),
    adapter_bases=frozenset({16, 8, 4}),
    training_settings=REPLICATED_SETTINGS,
    divides_model=False,
    controls=("activation_checkpointing", "batch_size", "gradient_accumulation_steps"),
    alternatives=("activation_checkpointing", "gradient_accumulation_steps"),
)
