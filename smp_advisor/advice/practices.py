"""Best practices and pitfalls of a library as data, and the parts of an explanation."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.advice.variants import PlannedRun, evaluate, vary
from smp_advisor.cluster.cluster import Cluster
from smp_advisor.cluster.table import sources
from smp_advisor.core import GIB
from smp_advisor.core.files import sentence
from smp_advisor.core.words import plural
from smp_advisor.costs.wording import fit, fits, gib
from smp_advisor.libraries import Plan, image
from smp_advisor.libraries.groups import reduced_data_parallel_degree, shard_degree
from smp_advisor.libraries.library import DEFAULT_LIBRARY, get_library, supports_tensor_parallelism
from smp_advisor.libraries.schema import Condition
from smp_advisor.libraries.version import release, supported_instances
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.workload import Job, Model


Decision = Literal["used", "not used", "not possible"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Decision on one technique, with the figures behind it."""

    order: int
    """Position in the best practices, from 1."""
    technique: str
    """Key in the library's best practices: ``instance``, ``optimizer_state_sharding``, ``batch``, ..."""
    title: str
    decision: Decision
    because: str
    """Reason: one or two sentences."""
    details: str
    """The same with the figures with and without the technique."""
    trade_off: str
    """Costs of the technique, from the documentation."""
    source_title: str = ""
    source_url: str = ""
    alternative: Plan | None = None
    """The plan of the comparison: without the technique if it is used, with it otherwise. None if no such plan exists,
    and for the instance, because there the machine changes and not the plan."""
    outcome: Estimate | None = None
    """Estimate of `alternative`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A setting in which the recommendation differs from a reference configuration."""

    setting: str
    reference: str
    recommended: str
    because: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """The nearest of AWS's published configurations, its estimate, and the differences from it."""

    name: str
    summary: str
    fits: bool
    needed_gib: float
    """Memory needed per GPU, from the cost model."""
    differences: tuple[Difference, ...]
    extrapolation: str
    """Distance from the configuration that AWS ran, and AWS's procedure of extrapolation."""
    source_url: str
    assumed: tuple[str, ...] = ()
    """Values that AWS does not publish and that are assumed here, one sentence each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pitfall:
    """A requirement of the plan for the training script, the data pipeline or the job."""

    id: str
    """Id of the check that finds violations (``SMP109``), or a name."""
    severity: Literal["error", "warning", "info"]
    text: str
    source_url: str = ""
    source_title: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Practice:
    """Documentation of one technique, restated."""

    technique: str
    title: str
    trade_off: str
    source_title: str
    source_url: str
    date: str
    """State of the page (ISO 8601)."""
    argument: str
    """Name of the argument for or against it (`explanation.ARGUMENTS`); the technique's own name by default."""
    statement: tuple[Mapping[str, Any], ...] = ()
    """Conclusions with their conditions, the first of which holds; empty for a technique that compares plans."""


@cache
def _practices(library: str) -> dict[str, Any]:
    return get_library(library).table("practices.toml")


def order(library: str = DEFAULT_LIBRARY) -> tuple[str, ...]:
    """Techniques of a library in the order of its best practices."""
    return tuple(_practices(library)["order"])


@cache
def practice(technique: str, library: str = DEFAULT_LIBRARY) -> Practice:
    """Return the practice of a technique, by its key."""
    page = _practices(library)
    entry = next(entry for entry in page["practice"] if entry["technique"] == technique)
    fields = {"argument": technique, **{name: value for name, value in entry.items() if name != "page"}}
    return Practice(source_url=page["base_url"] + entry["page"], date=page["date"], **fields)


def subset_tip(library: str) -> str:
    """Return the documentation's tip against more techniques than needed, as a clause; empty if there is none."""
    return str(_practices(library).get("subset_tip", {}).get("text", ""))


DOWNSIZING = "downsizing"
"""`Pitfall.id` of the warning."""

_SHARDING = ("optimizer_state_sharding", "sharding")
"""Practices about sharded state: source of the warning."""


def downsizing(run: PlannedRun) -> Pitfall | None:
    """Warn if a plan that fits would not fit on half of the nodes, because its state is sharded over them."""
    plan, cluster, required = run.plan, run.cluster, run.min_fit_probability
    sharded = plan.shard_optimizer_state or shard_degree(plan, cluster) > 1
    if not sharded or cluster.nodes < 2 or not run.fits:
        return None
    half = Cluster(cluster.instance, cluster.nodes // 2)
    comparison = vary(run, cluster=half, keep_global_batch=False)
    alternative = evaluate(run.model, {"half": comparison}).get("half")
    if alternative is None or comparison.plan is None or fits(alternative, required):
        return None
    source = next((practice(name, plan.library) for name in order(plan.library) if name in _SHARDING), None)
    before, after = shard_degree(plan, cluster), shard_degree(comparison.plan, half)
    shards = f"parameters, gradients and optimizer state are sharded over {after} GPUs instead of {before}"
    if before <= 1:
        per_replica = comparison.plan.pipeline_parallel_degree * comparison.plan.tensor_parallel_degree
        replicas = plural(half.gpus // per_replica, "replica")
        shards = f"the optimizer state is sharded over {replicas} instead of {cluster.gpus // per_replica}"
    sizes = {"needed": gib(alternative.needed_gib), "before": gib(run.estimate.needed_gib)}
    values = {"nodes": plural(half.nodes, "node"), "half": half, "shards": shards, **sizes}
    return Pitfall(
        id=DOWNSIZING,
        severity="warning",
        text=sentence("advice", "downsizing", **values, fit=fit(alternative, required)),
        source_url=source.source_url if source else "",
        source_title=source.source_title if source else "",
    )


_DONE_BY = {"done": " The generated script does this.", "cell": " The exported cell does this."}
_SEVERITIES = ("error", "warning", "info")


@cache
def _requirements(library: str) -> tuple[tuple[Mapping[str, Any], tuple[Condition, ...], str, str], ...]:
    """Return the requirements of a library, each with its conditions, and the title and address of its source."""
    table, rows = get_library(library).table("pitfalls.toml"), []
    for entry in table["pitfall"]:
        title, page = table["pages"][entry["page"]]
        when = tuple(Condition.parse(key, condition) for key, condition in entry["when"].items())
        rows.append((entry, when, title, page if page.startswith("https://") else table["base_url"] + page))
    return tuple(rows)


def pitfalls(run: PlannedRun, *, script_is_generated: bool) -> tuple[Pitfall, ...]:
    """Requirements of a plan, errors first; those that a generated script meets are information for its editors."""
    facts = facts_of(run)
    written = script_is_generated and run.job.adapter is None
    results = []
    for entry, when, title, url in _requirements(run.plan.library):
        # Done by the generated script, absent from it, done by the exported cell, or empty.
        generated = entry.get("generated", "")
        if (generated == "absent" and written) or not all(condition.holds(facts, facts) for condition in when):
            continue
        done = _DONE_BY[generated] if generated == "cell" or (generated == "done" and written) else ""
        results.append(
            Pitfall(
                id=entry["id"],
                severity="info" if done else entry["severity"],
                text=entry["text"].format_map(facts) + done,
                source_url=url,
                source_title=title,
            )
        )
    shrinking = [entry for entry in [downsizing(run)] if entry is not None]
    return tuple(sorted([*results, *shrinking], key=lambda pitfall: _SEVERITIES.index(pitfall.severity)))


def facts_of(run: PlannedRun) -> dict[str, Any]:
    """Return the facts of a run that conditions and slots of the data files name."""
    model, cluster, job, plan, machine = run.model, run.cluster, run.job, run.plan, run.cluster.instance
    # "ml.p4d.24xlarge": family ml.p4d, generation p4.
    family, generation = ".".join(machine.name.split(".")[:2]), machine.name.removeprefix("ml.")[:2]
    container = image(plan.library, plan.version)
    shards, gradients = shard_degree(plan, cluster), _gradient_gib(model, job, plan)
    return {
        **{field.name: getattr(plan, field.name) for field in fields(plan)},
        "data_parallel_degree": cluster.gpus // plan.pipeline_parallel_degree,
        "parameter_count": model.parameter_count,
        "parameters": format_count(model.parameter_count),
        "family": model.family,
        "family_inferred": model.origin == "inferred",
        "tensor_parallel_family": supports_tensor_parallelism(model.family, plan.library),
        "framework_version": container.framework_version,
        "superseded_by": container.superseded_by,
        "version_number": _number(plan.version),
        "instance": machine.name,
        "instance_family": family,
        "instance_generation": "" if machine.custom else generation,
        "custom_hardware": machine.custom,
        "confirmed_instance": machine.custom or machine in supported_instances(plan.library),
        "gpus_per_node": machine.gpus,
        "gpus": cluster.gpus,
        "nodes": cluster.nodes,
        "replicas": reduced_data_parallel_degree(plan, cluster),
        "sharing_ranks": plan.tensor_parallel_degree * plan.context_parallel_degree,
        "transformed": max(plan.tensor_parallel_degree, plan.context_parallel_degree, plan.expert_parallel_degree) > 1,
        # Of FSDP: gradients of all parameters on a GPU, without and with sharding.
        "adapter": job.adapter is not None,
        "shard_degree": shards,
        "whole_gradients": gib(gradients),
        "divided_gradients": gib(gradients / max(shards, 1)),
        # Of Training Compiler: the script has its own loop rather than Hugging Face's; pytorchxla starts the workers.
        "torch_script": container.estimator == "PyTorch",
        "launches_workers": _number(plan.version) >= _number("1.11.0"),
        "price_known": machine.usd_per_hour is not None,
        "price_assumed": "usd_per_hour" in machine.assumed,
        "price_date": next((source.date for source in sources() if "usd_per_hour" in source.columns), ""),
    }


def _gradient_gib(model: Model, job: Job, plan: Plan) -> float:
    """Gradients of all parameters that a GPU computes with, not sharded, in GiB (FSDP's `no_sync`, frozen ones too)."""
    experts = sum(group.count * group.block.expert_parameters for group in model.groups)
    local = (model.parameter_count - experts + experts / plan.expert_parallel_degree) / plan.tensor_parallel_degree
    element_bytes = 4.0 if job.precision == "fp32" else 2.0
    if job.adapter is not None:
        element_bytes = min(element_bytes, job.adapter.base_bytes_per_parameter)
    return local * element_bytes / GIB


def _number(version: str) -> int:
    """Return a version as a number that compares: 2.4.0 is 20400."""
    major, minor, patch = (*release(version), 0, 0)[:3]
    return 10_000 * major + 100 * minor + patch
