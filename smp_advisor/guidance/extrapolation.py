"""From a configuration that AWS ran to another model or sequence length: the batch first, then tensor parallelism."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from smp_advisor.costs import estimate_many
from smp_advisor.errors import PlanError
from smp_advisor.guidance.wording import fits
from smp_advisor.libraries import mismatches
from smp_advisor.libraries.families import supports_tensor_parallelism

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.aws_reference import ReferenceRow
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["Extrapolation", "Trial", "extrapolate"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One setting on the way."""

    change: str
    """What was changed to get here: "as AWS ran it", "batch_size 40 to 20"."""
    plan: Plan
    estimate: Estimate
    fits: bool
    """With the probability asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Extrapolation:
    """The settings that were tried, in order, up to the first that fits."""

    reference: str
    """Name of the row it started from."""
    trials: tuple[Trial, ...]
    obstacle: str = ""
    """Why the reference's settings cannot be tried here; empty where they can."""

    @property
    def found(self) -> Trial | None:
        """The first setting that fits; None where none does."""
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
    """Move a reference configuration to another model or sequence length as AWS's page advises.

    The batch is halved until it is one sample a microbatch; where that does not fit either, the tensor parallel degree
    is doubled, with the small batch, up to the GPUs of a node.

    Parameters
    ----------
    reference
        Where to start.
    model, sequence_length, cluster
        What changes; the reference's own otherwise.
    job
        In place of the reference's job, for its precision, optimizer and attention; its global batch is waived, because
        the procedure changes the batch.
    min_fit_probability
        From which probability on a setting counts as fitting.
    """
    model, cluster = model or reference.model, cluster or reference.cluster
    job = job or reference.job
    job = replace(job, global_batch_size=None, sequence_length=sequence_length or job.sequence_length)
    try:
        settings = _settings(reference.plan, model, cluster, job)
    except PlanError as error:
        return Extrapolation(reference=reference.name, trials=(), obstacle=str(error))
    wrong = [next(mismatches(plan, cluster, model, job), "") for _, plan in settings]
    valid = [setting for setting, sentence in zip(settings, wrong, strict=True) if not sentence]
    estimates = estimate_many(model, cluster, job, [plan for _, plan in valid])
    trials: list[Trial] = []
    for (change, plan), estimate in zip(valid, estimates, strict=True):
        fitting = fits(estimate, min_fit_probability)
        trials.append(Trial(change=change, plan=plan, estimate=estimate, fits=fitting))
        if fitting:
            break
    return Extrapolation(reference=reference.name, trials=tuple(trials), obstacle=wrong[0])


def _settings(start: Plan, model: Model, cluster: Cluster, job: Job) -> list[tuple[str, Plan]]:
    """Every setting of the procedure in its order; degrees that the model does not allow are passed over later."""
    change = "as AWS ran it"
    if job.precision != start.precision:
        # Raises for bf16, which needs the sharded data parallelism that the rows do not use.
        start = replace(start, fp16=job.precision == "fp16", bf16=job.precision == "bf16")
        change += f", in {job.precision}"
    result = [(change, start)]
    plan = start
    while plan.batch_size // 2 >= plan.microbatches and plan.batch_size > 1:
        batch = plan.batch_size // 2 // plan.microbatches * plan.microbatches
        result.append((f"batch_size {plan.batch_size} to {batch}", replace(plan, batch_size=batch)))
        plan = result[-1][1]
    if not supports_tensor_parallelism(model.family):
        return result
    while 2 * plan.tensor_parallel_degree <= cluster.instance.gpus:
        degree = 2 * plan.tensor_parallel_degree
        text = f"tensor_parallel_degree {plan.tensor_parallel_degree} to {degree}"
        result.append((text, replace(plan, tensor_parallel_degree=degree)))
        plan = result[-1][1]
    return result
