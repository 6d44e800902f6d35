"""What a plan demands of the training script, the data pipeline and the job."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.cluster.table import sources
from smp_advisor.guidance.half_cluster import downsizing
from smp_advisor.guidance.step import Pitfall
from smp_advisor.library import image
from smp_advisor.library.families import supports_tensor_parallelism
from smp_advisor.library.rule import Condition
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.library.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["pitfalls"]

_DONE_BY = {"done": " The generated script does this.", "cell": " The exported cell does this."}
_SEVERITIES = ("error", "warning", "info")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """One row of the data file."""

    id: str
    severity: Literal["error", "warning", "info"]
    text: str
    when: tuple[Condition, ...]
    generated: str
    """``done`` by the generated script, ``absent`` from it, done by the exported ``cell``, or empty."""
    source_title: str
    source_url: str


@cache
def _rows() -> tuple[_Row, ...]:
    text = (files("smp_advisor.guidance") / "data" / "pitfalls.toml").read_text(encoding="utf-8")
    stated = tomllib.loads(text)
    rows = []
    for entry in stated["pitfall"]:
        title, page = stated["pages"][entry["page"]]
        rows.append(
            _Row(
                id=entry["id"],
                severity=entry["severity"],
                text=entry["text"],
                when=tuple(Condition.parse(key, condition) for key, condition in entry["when"].items()),
                generated=entry.get("generated", ""),
                source_title=title,
                source_url=stated["base_url"] + page,
            )
        )
    return tuple(rows)


def pitfalls(
    model: Model,
    cluster: Cluster,
    job: Job,
    plan: Plan,
    *,
    script_is_generated: bool,
    min_fit_probability: float = 0.95,
) -> tuple[Pitfall, ...]:
    """What this plan demands, the gravest first.

    Parameters
    ----------
    model, cluster, job, plan
        What is trained, where and how.
    script_is_generated
        Whether the training script is the advisor's own. What it does already is then listed as information, for those
        who edit it; what cannot occur in it is left out.
    min_fit_probability
        For the warning about a smaller cluster.
    """
    known = _facts(model, cluster, plan)
    found = []
    for row in _rows():
        if not all(condition.holds(known, known) for condition in row.when):
            continue
        if row.generated == "absent" and script_is_generated:
            continue
        done = row.generated == "cell" or (row.generated == "done" and script_is_generated)
        found.append(
            Pitfall(
                id=row.id,
                severity="info" if done else row.severity,
                text=row.text.format_map(known) + (_DONE_BY[row.generated] if done else ""),
                source_url=row.source_url,
                source_title=row.source_title,
            )
        )
    shrinking = downsizing(model, cluster, job, plan, min_fit_probability=min_fit_probability)
    if shrinking is not None:
        found.append(shrinking)
    return tuple(sorted(found, key=lambda pitfall: _SEVERITIES.index(pitfall.severity)))


def _facts(model: Model, cluster: Cluster, plan: Plan) -> dict[str, Any]:
    """What conditions and texts may name: the plan's fields, and these."""
    machine = cluster.instance
    # "ml.p4d.24xlarge": family ml.p4d, generation p4.
    family, generation = ".".join(machine.name.split(".")[:2]), machine.name.removeprefix("ml.")[:2]
    return {
        **{field.name: getattr(plan, field.name) for field in fields(plan)},
        "data_parallel_degree": cluster.gpus // plan.pipeline_parallel_degree,
        "parameter_count": model.parameter_count,
        "parameters": format_count(model.parameter_count),
        "family": model.family,
        "tensor_parallel_family": supports_tensor_parallelism(model.family),
        "framework_version": image(plan.library, plan.version).framework_version,
        "instance": machine.name,
        "instance_family": family,
        "instance_generation": "" if machine.custom else generation,
        "custom_hardware": machine.custom,
        "gpus_per_node": machine.gpus,
        "nodes": cluster.nodes,
        "price_known": machine.usd_per_hour is not None,
        "price_assumed": "usd_per_hour" in machine.assumed,
        "price_date": next((one.date for one in sources() if "usd_per_hour" in one.columns), ""),
    }
