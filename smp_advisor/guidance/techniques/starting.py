"""Practices of SMP v2 for every plan: mixed precision, collectives, delayed initialization."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance.techniques.conclusion import Conclusion
from smp_advisor.guidance.techniques.statement import Statement
from smp_advisor.libraries.smp_v2 import SMDDP_INSTANCES
from smp_advisor.wording import gib, listed
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from smp_advisor.guidance.planned_run import PlannedRun

__all__ = ["collectives", "delayed_initialization", "mixed_precision"]


def _precision(run: PlannedRun) -> Conclusion:
    precision = run.plan.precision
    if precision == "fp32":
        return Conclusion(
            decision="not used",
            because="The job trains in fp32: activations take twice the memory, and the GPU's 16-bit units are idle.",
        )
    scaling = "needs no loss scaling" if precision == "bf16" else "needs loss scaling (ShardedGradScaler)"
    fp8 = " Matrix products run in fp8." if run.job.fp8 else ""
    return Conclusion(
        decision="used",
        because=(
            f"Layers are gathered and computed in {precision}, which {scaling}. The sharded parameters, gradients and"
            f" optimizer state stay in fp32.{fp8}"
        ),
    )


def _collectives(run: PlannedRun) -> Conclusion:
    name = run.cluster.instance.name
    if run.plan.distributed_backend == "smddp":
        return Conclusion(decision="used", because=f"SageMaker's own all-gather runs on {name}.")
    if name not in SMDDP_INSTANCES:
        return Conclusion(
            decision="not possible", because=f"They run on {listed(SMDDP_INSTANCES)} only; {name} uses NCCL."
        )
    if run.cluster.nodes == 1:
        return Conclusion(decision="not used", because="Within a single node, NCCL's collectives use NVLink alone.")
    return Conclusion(
        decision="not used",
        because="Without sharding there is no all-gather to speed up; tensor parallelism alone works with NCCL only.",
    )


def _delayed(run: PlannedRun) -> Conclusion:
    host, total = run.cluster.instance.host_memory_gib, 4 * run.model.parameter_count / 2**30
    per_node = min(run.cluster.gpus_per_node, run.cluster.gpus)
    sentence = (
        f"The model's {format_count(run.model.parameter_count)} parameters take {gib(total)} in fp32 in each process"
        f" that creates them. A node has {gib(host)} of host memory for {per_node} processes."
    )
    if run.plan.delayed_parameter_initialization:
        return Conclusion(
            decision="used",
            because=f"{sentence} On the meta device, no process creates all of the parameters.",
            brief="On the meta device, no process creates all of the parameters.",
        )
    return Conclusion(
        decision="not used",
        because=f"{sentence} AWS requires it from about 60 billion parameters; it also makes the start faster.",
        brief=(
            "Each node has enough host memory to create the model in every process."
            if per_node * total <= host
            else "Creating the model in every process would exceed the host memory of a node."
        ),
    )


mixed_precision = Statement(_precision)
collectives = Statement(_collectives)
delayed_initialization = Statement(_delayed)
