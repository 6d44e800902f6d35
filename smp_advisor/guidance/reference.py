"""AWS's reference configurations: the rows, and the procedure of extrapolation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from smp_advisor.cluster.cluster import Cluster
from smp_advisor.costs import estimate_many
from smp_advisor.errors import PlanError
from smp_advisor.libraries import mismatches
from smp_advisor.libraries.library import DEFAULT_LIBRARY, get_library, plan_fields, supports_tensor_parallelism
from smp_advisor.libraries.plan import Plan
from smp_advisor.wording import fits
from smp_advisor.workload.job import Job
from smp_advisor.workload.model import Model

if TYPE_CHECKING:
    from smp_advisor.costs.estimate import Estimate

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
    largest_parameter_ratio: float
    """Largest ratio of parameter counts over which AWS extrapolates; 0 without a procedure."""
    source_title: str
    source_url: str
    date: str
    """State of the page (ISO 8601)."""


@cache
def reference_rows(library: str = DEFAULT_LIBRARY) -> tuple[ReferenceRow, ...]:
    """The rows of a library's best-practices page, smallest first; empty for libraries without published rows.

    Examples
    --------
    >>> [row.plan.tensor_parallel_degree for row in reference_rows()]
    [4, 8, 8]
    """
    record = get_library(library)
    if not (files(record.package) / _FILE).is_file():
        return ()
    page = record.table(_FILE)
    return tuple(_row(library, page, entry) for entry in page["row"])


def _row(library: str, page: dict[str, Any], entry: dict[str, Any]) -> ReferenceRow:
    job = Job(**page["job"])
    extrapolation = page.get("extrapolation", {})
    return ReferenceRow(
        name=entry["name"],
        model_name=page["model"],
        model=Model.from_shape(
            **entry["shape"],
            vocab=page["vocab"],
            family=page["family"],
            max_positions=job.sequence_length,
            name=f"{page['model']} {entry['name']} (AWS reference)",
        ),
        cluster=Cluster(page["instance"], entry["nodes"]),
        job=job,
        plan=Plan(library=library, **page["plan"], **entry["plan"]),
        assumed=tuple(filter(None, (entry["shape_assumed"], *page["assumed"]))),
        compared=tuple(page["compared"]),
        procedure=extrapolation.get("procedure", ""),
        largest_parameter_ratio=extrapolation.get("largest_parameter_ratio", 0.0),
        source_title=page["title"],
        source_url=page["url"],
        date=page["date"],
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One setting of the procedure."""

    change: str
    """Change from the setting before: "as AWS ran it", "batch_size 40 to 20"."""
    plan: Plan
    estimate: Estimate
    fits: bool
    """Whether it fits with the required probability."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Extrapolation:
    """The tried settings, in order, up to the first that fits."""

    reference: str
    """Name of the row at the start."""
    trials: tuple[Trial, ...]
    obstacle: str = ""
    """Why the reference's settings are not possible here; empty if they are."""

    @property
    def first_fit(self) -> Trial | None:
        """The first setting that fits; None if none does."""
        return self.trials[-1] if self.trials and self.trials[-1].fits else None


def extrapolate(
    reference: ReferenceRow,
    *,
    model: Model | None = None,
    sequence_length: int | None = None,
    cluster: Cluster | None = None,
    job: Job | None = None,
    min_fit_probability: float = 0.95,
) -> Extrapolation:
    """Move a reference configuration to another model or sequence length as AWS's page describes.

    The batch is halved down to one sample per microbatch. If that does not fit, the tensor parallel degree is doubled,
    with the small batch, up to the GPUs of a node.
    `model`, `sequence_length`, `cluster` and `job` replace those of the row. The global batch of the job does not
    apply, because the procedure changes the batch.
    """
    model, cluster = model or reference.model, cluster or reference.cluster
    job = job or reference.job
    job = replace(job, global_batch_size=None, sequence_length=sequence_length or job.sequence_length)
    try:
        settings = _settings(reference.plan, model, cluster, job)
    except PlanError as error:
        return Extrapolation(reference=reference.name, trials=(), obstacle=str(error))
    obstacles = [next(mismatches(plan, cluster, model, job), "") for _, plan in settings]
    valid = [setting for setting, sentence in zip(settings, obstacles, strict=True) if not sentence]
    estimates = estimate_many(model, cluster, job, [plan for _, plan in valid])
    trials: list[Trial] = []
    for (change, plan), estimate in zip(valid, estimates, strict=True):
        fitting = fits(estimate, min_fit_probability)
        trials.append(Trial(change=change, plan=plan, estimate=estimate, fits=fitting))
        if fitting:
            break
    return Extrapolation(reference=reference.name, trials=tuple(trials), obstacle=obstacles[0])


def _settings(start: Plan, model: Model, cluster: Cluster, job: Job) -> list[tuple[str, Plan]]:
    """Every setting of the procedure, in order, including degrees that the model does not allow."""
    change = "as AWS ran it"
    if job.precision != start.precision:
        # SMP v1 raises for bf16, which needs the sharded data parallelism that the rows do not use.
        flags = {"fp16": job.precision == "fp16", "bf16": job.precision == "bf16"}
        names = plan_fields(start.library)
        start = replace(start, **({"precision": job.precision} if "precision" in names else flags))
        change += f", in {job.precision}"
    result = [(change, start)]
    plan = start
    while plan.batch_size // 2 >= plan.microbatches and plan.batch_size > 1:
        batch = plan.batch_size // 2 // plan.microbatches * plan.microbatches
        result.append((f"batch_size {plan.batch_size} to {batch}", replace(plan, batch_size=batch)))
        plan = result[-1][1]
    if not supports_tensor_parallelism(model.family, start.library):
        return result
    while 2 * plan.tensor_parallel_degree <= cluster.instance.gpus:
        degree = 2 * plan.tensor_parallel_degree
        text = f"tensor_parallel_degree {plan.tensor_parallel_degree} to {degree}"
        result.append((text, replace(plan, tensor_parallel_degree=degree)))
        plan = result[-1][1]
    return result
