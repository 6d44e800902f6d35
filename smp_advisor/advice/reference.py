"""AWS's reference configurations: the nearest one, and how a plan differs from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from smp_advisor.advice.conclusion import figures
from smp_advisor.advice.practices import Difference, Reference
from smp_advisor.advice.variants import PlannedRun, evaluate, vary
from smp_advisor.cluster.cluster import Cluster
from smp_advisor.core.files import sentence
from smp_advisor.costs import Estimate
from smp_advisor.costs import estimate as estimate_plan
from smp_advisor.costs.wording import listed, percent, throughput
from smp_advisor.libraries import Plan, schema
from smp_advisor.libraries.groups import shard_degree
from smp_advisor.libraries.library import DEFAULT_LIBRARY, get_library, supports_tensor_parallelism
from smp_advisor.workload import Job, Model, format_count

if TYPE_CHECKING:
    from collections.abc import Callable

_FILE = "aws_reference.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceRow:
    """One configuration that AWS ran."""

    name: str
    """By size: ``10 B``."""
    model_name: str
    """Published name of the model: ``GPT-2``."""
    model: Model
    cluster: Cluster
    job: Job
    plan: Plan
    assumed: tuple[str, ...]
    """Values that AWS does not publish and that are assumed here, one sentence each."""
    compared: tuple[str, ...]
    """Settings in which a recommendation is compared with the row, in order."""
    procedure: str
    """AWS's procedure of extrapolation from its rows, as a sentence; empty if it describes none."""
    source_title: str
    source_url: str
    date: str
    """State of the page (ISO 8601)."""


@cache
def reference_rows(library: str = DEFAULT_LIBRARY) -> tuple[ReferenceRow, ...]:
    """The rows of a library's best-practices page, smallest first; empty for libraries without published rows."""
    record = get_library(library)
    if not (files(record.package) / _FILE).is_file():
        return ()
    page, rows = record.table(_FILE), []
    extrapolation = page.get("extrapolation", {})
    for entry in page["row"]:
        job = Job(**page["job"])
        model = Model.from_shape(
            **entry["shape"],
            vocab=page["vocab"],
            family=page["family"],
            max_positions=job.sequence_length,
            name=f"{page['model']} {entry['name']} (AWS reference)",
        )
        row = ReferenceRow(
            name=entry["name"],
            model_name=page["model"],
            model=model,
            cluster=Cluster(page["instance"], entry["nodes"]),
            job=job,
            plan=Plan(library=library, **page["plan"], **entry["plan"]),
            assumed=tuple(filter(None, (entry["shape_assumed"], *page["assumed"]))),
            compared=tuple(page["compared"]),
            procedure=extrapolation.get("procedure", ""),
            source_title=page["title"],
            source_url=page["url"],
            date=page["date"],
        )
        rows.append(row)
    return tuple(rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Setting:
    name: str
    reference: object
    recommended: object
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of the plan that take the reference's value; empty if the user's request determines the setting."""
    because: str = ""
    """Reason, if the user's request determines the setting."""


def differences(run: PlannedRun, row: ReferenceRow) -> tuple[Difference, ...]:
    """Return the settings in which a plan differs from a row, in the row's order."""
    settings = [
        setting
        for name in row.compared
        for setting in [_setting(run, row, name)]
        if setting is not None and setting.reference != setting.recommended
    ]
    comparisons = {setting.name: vary(run, **setting.changes) for setting in settings if setting.changes}
    estimates = evaluate(run.model, comparisons)

    def because(setting: _Setting) -> str:
        if setting.because:
            return setting.because
        return figures(run, comparisons[setting.name], estimates.get(setting.name), "With the reference's setting")

    return tuple(
        Difference(
            setting=setting.name,
            reference=shown(setting.reference),
            recommended=shown(setting.recommended),
            because=because(setting),
        )
        for setting in settings
    )


def shown(value: object) -> str:
    """Return the text of a setting's value."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


_REQUESTED: dict[str, Callable[[PlannedRun | ReferenceRow], tuple[str, str]]] = {
    "model": lambda of: (of.model.name, f"{format_count(of.model.parameter_count)} parameters"),
    "sequence length": lambda of: (str(_length(of)), f"{_length(of):,} tokens per sample"),
    "cluster": lambda of: (f"{of.cluster.nodes} x {of.cluster.instance.name}", f"{of.cluster.gpus:,} GPUs"),
    "precision": lambda of: (of.job.precision, ""),
}
"""Settings that the request determines: the value, and its size in words."""


def _length(of: PlannedRun | ReferenceRow) -> int:
    return of.model.sequence_length(of.job.sequence_length)


def _sharding(plan: Plan) -> str:
    if plan.sharded_data_parallel_degree > 1:
        return f"sharded data parallel degree {plan.sharded_data_parallel_degree}"
    return "optimizer state" if plan.shard_optimizer_state else "none"


def _setting(run: PlannedRun, row: ReferenceRow, name: str) -> _Setting | None:
    """A setting of both plans: one of the request, or one that takes fields of the row's plan; None if it has none."""
    plan, own, record = run.plan, row.plan, get_library(run.plan.library)
    if name in _REQUESTED:
        if name == "model" and row.model.shape == run.model.shape:
            return None
        (reference, before), (recommended, now) = _REQUESTED[name](row), _REQUESTED[name](run)
        because = f"As requested: {now} (vs {before})." if before != now else "As requested."
        return _Setting(name=name.capitalize(), reference=reference, recommended=recommended, because=because)
    values: tuple[Any, Any] = getattr(own, name, None), getattr(plan, name, None)
    changes: dict[str, Any] = {name: values[0]}
    if name == "state sharding":
        values = _sharding(own), _sharding(plan)
        changes = {key: getattr(own, key) for key in ("shard_optimizer_state", "sharded_data_parallel_degree")}
    elif name == "samples per replica":
        values = own.batch_size * own.batches_per_group, plan.batch_size * plan.batches_per_group
        # A number that the plan's microbatches do not divide cannot be tried by itself.
        if run.job.global_batch_size is not None or values[0] % (plan.batches_per_group * plan.microbatches):
            return None
        changes = {"batch_size": values[0] // plan.batches_per_group}
    elif name == "active_microbatches":
        if plan.pipeline_parallel_degree == 1 or own.pipeline_parallel_degree == 1:
            return None
        values = own.active_in_flight, plan.active_in_flight
        changes = {name: min(values[0], plan.microbatches)}
    elif name == "tensor_parallel_degree" and not supports_tensor_parallelism(run.model.family, record.name):
        return None  # the library would not divide this model's layers
    elif name == record.shard_field:
        values = shard_degree(own, row.cluster), shard_degree(plan, run.cluster)
        changes = {name: values[0]}
    parameter = schema(plan.library).described(name)
    title = parameter.title if parameter else name.capitalize()
    return _Setting(name=title, reference=values[0], recommended=values[1], changes=changes)


_SAME_SIZE = 1.05
"""Ratio up to which two parameter counts are the same size."""


def nearest_reference(run: PlannedRun) -> Reference | None:
    """Compare a plan with AWS's nearest configuration in parameters and GPUs; None if no row resembles the model."""
    rows = reference_rows(run.plan.library)
    if not rows or not run.model.reads_tokens:
        return None

    def distance(row: ReferenceRow) -> float:
        size = math.log(run.model.parameter_count / row.model.parameter_count)
        return abs(size) + abs(math.log(run.cluster.gpus / row.cluster.gpus))

    row = min(rows, key=distance)
    row_estimate = estimate_plan(row.model, row.cluster, row.job, row.plan)
    return Reference(
        name=row.name,
        summary=_summary(row, row_estimate),
        fits=row_estimate.fits,
        needed_gib=row_estimate.needed_gib,
        differences=differences(run, row),
        extrapolation=_distance(run, row),
        source_url=row.source_url,
        assumed=row.assumed,
    )


def _summary(row: ReferenceRow, estimate: Estimate) -> str:
    published = {name: value for name, value in row.plan.parameters.items() if name not in ("fp16", "bf16")}
    if row.plan.activation_checkpointing:
        published["activation_checkpointing"] = row.plan.activation_checkpointing
    settings = ", ".join(f"{name}={value}" for name, value in published.items())
    values = {"row": row, "size": row.name.replace(" B", " billion"), "settings": settings}
    return sentence("advice", "aws_ran", **values, throughput=throughput(estimate))


def _distance(run: PlannedRun, row: ReferenceRow) -> str:
    size = run.model.parameter_count / row.model.parameter_count
    length = run.sequence_length / row.job.sequence_length
    gpus = run.cluster.gpus / row.cluster.gpus
    parts = [
        f"{_ratio(ratio)} the {what}"
        for ratio, what, same in ((size, "parameters", _SAME_SIZE), (length, "sequence length", 1), (gpus, "GPUs", 1))
        if max(ratio, 1 / ratio) > same
    ]
    if run.cluster.instance != row.cluster.instance:
        parts.append(f"another instance ({run.cluster.instance.name})")
    if run.model.family != row.model.family:
        parts.append(f"another architecture ({run.model.family})")
    if not parts:
        return f"Size, sequence length and cluster are those of AWS's {row.name} row."
    return " ".join(filter(None, (f"Compared with AWS's {row.name} row, this run has {listed(parts)}.", row.procedure)))


def _ratio(value: float) -> str:
    if value < 1:
        return f"{percent(value)} of"
    return f"{value:.3g} times" if value < 10 else f"{value:,.0f} times"
