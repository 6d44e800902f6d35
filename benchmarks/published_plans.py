"""Read published configurations of SMP as plans, and predict whether they fit.

    python benchmarks/published_plans.py TABLE.csv

Each row of the table is a configuration that works according to its publisher (columns `smp_version`, degrees,
`train_batch_size_per_gpu_or_rdp`, ...). Each row is processed like a user's own configuration: `Plan.from_parameters`
reads the library's dictionary and the script's settings, then the plan is checked against cluster, model and job, and
estimated.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.accuracy_rows.machines import instance_cluster_of
from benchmarks.accuracy_rows.models import model_of
from benchmarks.accuracy_rows.table import Row, SkippedError, read_table
from smp_advisor.costs import Estimate, estimate
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries import Plan, check_against
from smp_advisor.workload import Job

__all__ = ["Judgment", "judge", "read_plan"]

_LIBRARIES = {"1": "smp-v1", "2": "smp-v2"}

_NOT_DESCRIBED = {"dpo": "preference optimization has a second, frozen model, which no job can describe"}


@dataclass(frozen=True, kw_only=True)
class Judgment:
    """Result of one row."""

    row: str
    name: str
    outcome: Literal["fits", "does not fit", "refused", "not judged"]
    plan: Plan | None = None
    estimate: Estimate | None = None
    reason: str = ""


def read_plan(row: Row) -> Plan:
    """The row's configuration as its library's dictionary and script settings, read back as a plan."""
    library = _LIBRARIES[row.text("smp_version")]
    batch = _whole(row, "train_batch_size_per_gpu_or_rdp")
    settings: dict[str, Any] = {
        "activation_checkpointing": "each" if row.flag("activation_checkpointing") else "none",
        **({} if batch is None else {"batch_size": batch}),
    }
    parameters = _smp_v1(row) if library == "smp-v1" else _smp_v2(row, settings)
    return Plan.from_parameters(parameters, settings, library=library)


def _smp_v1(row: Row) -> dict[str, Any]:
    shards = _whole(row, "sharded_data_parallel_degree") or 1
    precision = _precision(row)
    parameters: dict[str, Any] = {
        "ddp": row.flag("ddp") is not False,
        "fp16": precision == "fp16",
        "bf16": precision == "bf16",
        "sharded_data_parallel_degree": shards,
        "shard_optimizer_state": bool(row.flag("shard_optimizer_state")),
        "prescaled_batch": bool(row.flag("prescaled_batch")),
        "offload_activations": bool(row.flag("activation_offloading")),
    }
    for name in (
        "pipeline_parallel_degree",
        "tensor_parallel_degree",
        "microbatches",
        "active_microbatches",
        "activation_loading_horizon",
    ):
        value = _whole(row, name)
        if value is not None:
            parameters[name] = value
    for name in ("pipeline", "optimize", "placement_strategy"):
        if row.text(name):
            parameters[name] = row.text(name)
    return parameters


def _smp_v2(row: Row, settings: dict[str, Any]) -> dict[str, Any]:
    precision = _precision(row)
    offloads = bool(row.flag("activation_offloading"))
    settings |= {
        "precision": precision,
        "fp8": int(row.text("precision").startswith("fp8")),
        "offload_activations": offloads,
    }
    parameters: dict[str, Any] = {
        "hybrid_shard_degree": _whole(row, "sharded_data_parallel_degree") or 0,
        "sm_activation_offloading": offloads,
    }
    for name in (
        "tensor_parallel_degree",
        "context_parallel_degree",
        "expert_parallel_degree",
        "activation_loading_horizon",
    ):
        value = _whole(row, name)
        if value is not None:
            parameters[name] = value
    batch, global_batch = settings.get("batch_size"), _whole(row, "global_batch")
    ranks = (_whole(row, "gpus") or 1) // (
        (_whole(row, "tensor_parallel_degree") or 1) * (_whole(row, "context_parallel_degree") or 1)
    )
    if batch and global_batch:
        settings["gradient_accumulation_steps"] = max(1, round(global_batch / (ranks * batch)))
    return parameters


def _whole(row: Row, column: str) -> int | None:
    value = row.number(column)
    return None if value is None else round(value)


def _precision(row: Row) -> str:
    precision = row.text("precision")
    if not precision:  # AWS's samples train in bf16 with sharded data parallelism, in fp16 without
        return "bf16" if (_whole(row, "sharded_data_parallel_degree") or 1) > 1 else "fp16"
    return "fp16" if precision.startswith("fp16") else "fp32" if precision.startswith("fp32") else "bf16"


def judge(table: Path) -> list[Judgment]:
    """Results of all rows with a version of SMP."""
    return [_judged(row) for row in read_table(table).rows if row.text("smp_version") in _LIBRARIES]


def _judged(row: Row) -> Judgment:
    about = {"row": row.text("id"), "name": row.text("model")}
    try:
        plan = read_plan(row)
    except AdvisorError as error:
        return Judgment(**about, outcome="refused", reason=str(error))
    if "may be shorter" in row.text("note"):
        return Judgment(**about, outcome="not judged", plan=plan, reason="the sequence length is an upper bound only")
    missing = [name for name in ("seq", "train_batch_size_per_gpu_or_rdp") if _whole(row, name) is None]
    if missing:
        return Judgment(**about, outcome="not judged", plan=plan, reason=f"{' and '.join(missing)} not published")
    if row.text("task") in _NOT_DESCRIBED:
        return Judgment(**about, outcome="not judged", plan=plan, reason=_NOT_DESCRIBED[row.text("task")])
    try:
        return _estimated(row, plan, about)
    except (AdvisorError, SkippedError) as error:
        return Judgment(**about, outcome="refused", plan=plan, reason=str(error))


def _estimated(row: Row, plan: Plan, about: dict[str, str]) -> Judgment:
    cluster = instance_cluster_of(row, nodes=_whole(row, "instances") or 1)
    model = model_of(Row({**row.values, "family": _family(row)}))
    flash = row.text("attention").startswith("flash") or plan.library != "smp-v1"
    job = Job(
        sequence_length=_whole(row, "seq") or 1,
        precision=plan.precision,
        fp8=plan.library == "smp-v2" and plan.fp8,
        attention="fused" if flash else "eager",
    )
    check_against(plan, cluster, model, job)
    costs = estimate(model, cluster, job, plan)
    return Judgment(**about, outcome="fits" if costs.fits else "does not fit", plan=plan, estimate=costs)


_FAMILIES = {"neox": "gpt_neox", "mixtral": "mixtral", "mistral": "mistral", "llama": "llama", "gpt-2": "gpt"}
"""Family by part of a published name. A GPT-2 is built from its shape, with the fused activation function of the
library's own layers instead of that of GPT-2's checkpoints."""


def _family(row: Row) -> str:
    return next((family for part, family in _FAMILIES.items() if part in row.text("model")), "")


def _report(judgments: list[Judgment]) -> None:
    for judgment in judgments:
        memory = ""
        if judgment.estimate is not None:
            usable = judgment.estimate.usable_gpu_memory_gib
            memory = f"needs {judgment.estimate.needed_gib:6.1f} of {usable:.1f} GiB"
        print(f"{judgment.row:<12} {judgment.name[:40]:<40} {judgment.outcome:<13} {memory} {judgment.reason}".rstrip())
    judged = [judgment for judgment in judgments if judgment.outcome in {"fits", "does not fit"}]
    fit = sum(judgment.outcome == "fits" for judgment in judged)
    read = sum(judgment.plan is not None for judgment in judgments)
    share = 100 * fit / max(len(judged), 1)
    print(f"\n{len(judgments)} rows, {read} read as plans; {fit} of {len(judged)} judged to fit ({share:.1f} %)")


if __name__ == "__main__":
    _report(judge(Path(sys.argv[1])))
