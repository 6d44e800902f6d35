"""What the best practices of SMP v2 ask for always: mixed precision, collectives, delayed initialization."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance.techniques.finding import Finding
from smp_advisor.guidance.techniques.statement import Statement
from smp_advisor.guidance.wording import gib, listed
from smp_advisor.libraries.smp_v2.mismatches import SMDDP_INSTANCES
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from smp_advisor.guidance.case import Case

__all__ = ["collectives", "delayed_initialization", "mixed_precision"]


def _precision(case: Case) -> Finding:
    precision = case.plan.precision
    if precision == "fp32":
        return Finding(
            decision="not used",
            because="The job trains in fp32: activations take twice the memory, and the GPU's 16-bit units stay idle.",
        )
    scaling = "needs no loss scaling" if precision == "bf16" else "needs loss scaling (ShardedGradScaler)"
    fp8 = " Matrix products run in fp8 beside it." if case.job.fp8 else ""
    return Finding(
        decision="used",
        because=(
            f"Blocks are gathered and computed in {precision}, which {scaling}; the sharded parameters, gradients and"
            f" optimizer state stay in fp32.{fp8}"
        ),
    )


def _collectives(case: Case) -> Finding:
    name = case.cluster.instance.name
    if case.plan.distributed_backend == "smddp":
        return Finding(decision="used", because=f"SageMaker's own all-gather runs on {name}.")
    if name not in SMDDP_INSTANCES:
        return Finding(
            decision="not possible", because=f"They run on {listed(SMDDP_INSTANCES)} only; {name} uses NCCL."
        )
    if case.cluster.nodes == 1:
        return Finding(decision="not used", because="Within a single node NCCL's collectives do not leave NVLink.")
    return Finding(
        decision="not used",
        because="Without sharding there is no all-gather to speed up; tensor parallelism alone works with NCCL only.",
    )


def _delayed(case: Case) -> Finding:
    host, whole = case.cluster.instance.host_memory_gib, 4 * case.model.parameter_count / 2**30
    per_node = min(case.cluster.gpus_per_node, case.cluster.gpus)
    sentence = (
        f"The model's {format_count(case.model.parameter_count)} parameters take {gib(whole)} in fp32 in each process"
        f" that creates them; a node has {gib(host)} of host memory for {per_node} processes."
    )
    if case.plan.delayed_parameter_initialization:
        return Finding(decision="used", because=f"{sentence} Created on the meta device, they never are there whole.")
    return Finding(
        decision="not used", because=f"{sentence} AWS asks for it from about 60 billion parameters, or to start faster."
    )


mixed_precision = Statement(_precision)
collectives = Statement(_collectives)
delayed_initialization = Statement(_delayed)
