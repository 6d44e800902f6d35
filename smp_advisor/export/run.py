"""The run of a plan as SageMaker sees it: steps, duration, checkpoints, the jobs of a chain, learning rate."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from smp_advisor.core.files import data_file, sentence
from smp_advisor.costs.effective_time import EffectiveTime, effective_time, writing_nodes
from smp_advisor.costs.evaluate import estimate, trained
from smp_advisor.costs.wording import percent, probability
from smp_advisor.errors import ExportError, PlanError
from smp_advisor.export.options import FileSystem
from smp_advisor.export.script_parts import architecture_of, in_words
from smp_advisor.libraries.groups import global_batch_size
from smp_advisor.libraries.job_rules import MAX_RUN_SECONDS
from smp_advisor.libraries.layout import layout_of_plan
from smp_advisor.workload.job import OVERHEADS

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.export.options import JobOptions
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

_SCALINGS = {"square root": 0.5, "linear": 1.0, "none": 0.0}
"""Exponent of the batch in the learning rate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Learning rate at its peak and the steps to reach it."""

    learning_rate: float
    """Two significant digits."""
    warmup_steps: float
    """Below 1, the share of the steps."""
    source: str
    assumed: bool
    """Whether no published training of this kind determines the values."""


def schedule_of(model: Model, job: Job, *, steps: int | None, global_batch_size: int) -> Schedule:
    """Starting values for a run, by the kind of training, the size of the model and the batch."""
    task = architecture_of(model).task
    if job.training == "dpo":
        kind = "preferences" if job.adapter is None else "adapter_preferences"
    elif job.optimizer in ("sgd", "plain-sgd"):
        kind = "sgd"
    elif job.adapter is not None:
        kind = "adapter"
    elif task == "causal":
        kind = "fine-tuning" if job.training == "fine-tuning" else "pretraining"
    else:
        kind = task
    trainings = data_file("export", "schedules")
    rows = trainings[kind]
    size, sizes = math.log(model.parameter_count), np.log(rows["parameters"])
    # Beyond the first and the last row, their values hold.
    rate = math.exp(np.interp(size, sizes, np.log(rows["learning_rate"])))
    batch = global_batch_size * (model.sequence_length(job.sequence_length) if rows["unit"] == "tokens" else 1)
    of_rows = math.exp(np.interp(size, sizes, np.log(rows["batch"])))
    smallest, largest = trainings["batch_factors"]
    rate *= min(max((batch / of_rows) ** _SCALINGS[rows["scaling"]], smallest), largest)
    warmup = rows["warmup_share"]
    if steps is not None:
        shortest = min(trainings["warmup_steps_at_least"], steps // 5)
        warmup = min(max(round(warmup * steps), shortest), trainings["warmup_steps_at_most"])
    rate, assumed = float(f"{rate:.1e}"), rows.get("assumed", False)
    return Schedule(learning_rate=rate, warmup_steps=warmup, source=rows["source"], assumed=assumed)


HOUR_SECONDS = 3600
_DAY_SECONDS = 86_400


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Size of a run: what its cell states, and the settings that follow from the estimate."""

    steps: int | None
    """None if the size of the data decides."""
    is_trial: bool
    """Whether the job has neither data nor a number of tokens, so that the steps only measure memory and speed."""
    estimate: Estimate | None
    """None if the plan does not match the model, the cluster or the job."""
    saves_checkpoints: bool
    checkpoint_every: int
    """Steps between checkpoints."""
    checkpoint_interval_seconds: float
    max_run_seconds: int
    """Time after which SageMaker stops one job."""
    objections: tuple[str, ...]
    """Reasons why the plan is not expected to run, one sentence each."""
    seconds: tuple[float, float, float] | None = None
    """Elapsed time over all jobs: lower end, middle and upper end of the 95 % interval. None without an estimate."""
    checkpoint_gib: float = 0.0
    """Size of one checkpoint over all processes; 0 without an estimate."""
    checkpoint_nodes: int = 1
    """Nodes that write a part of the checkpoint."""
    jobs: int = 1
    """Jobs that the run requires at the upper end of the interval. Each resumes from the last checkpoint."""

    @property
    def is_chain(self) -> bool:
        """Whether the run takes longer than one job may take."""
        return self.jobs > 1


def run_of(
    model: Model,
    cluster: Cluster,
    job: Job,
    plan: Plan,
    options: JobOptions,
    *,
    min_fit_probability: float,
    reads_data: bool,
) -> Run:
    """Size of the run of a plan, which the data of the job decide where neither tokens nor steps are given."""
    steps, is_trial = _steps(model, cluster, job, plan, options, reads_data=reads_data)
    if job.precision != plan.precision and not job.fp8:
        job = replace(job, precision=plan.precision)  # that of the cell
    facts, chosen, costs = data_file("export", "launch")["run"], _count(options, "checkpoint_every"), None
    try:
        costs = estimate(model, cluster, job, plan)
        objections = _objections(costs, cluster, min_fit_probability)
    except PlanError as error:
        objections = [str(error)]
    common: dict[str, Any] = {"steps": steps, "is_trial": is_trial, "estimate": costs, "objections": tuple(objections)}
    # The steps of a script that does not receive them are unknown.
    if costs is None or steps is None or (is_trial and not options.plan_hyperparameters):
        unknown, every = 0.0 if is_trial else math.inf, facts["steps_without_estimate"]
        if costs is not None and steps is None:
            every = max(1, round(facts["spot_interval_seconds"] / costs.step_seconds))
        _require_checkpoints(options, unknown)
        return Run(
            **common,
            saves_checkpoints=_saves(options, unknown),
            checkpoint_every=chosen or every,
            checkpoint_interval_seconds=0.0 if costs is None else every * costs.step_seconds,
            max_run_seconds=options.max_run_seconds or _DAY_SECONDS,
        )
    low, middle, high = (
        _elapsed(model, cluster, job, plan, options, steps, costs.step_seconds * factor)
        for factor in (costs.step_factors[0], 1.0, costs.step_factors[1])
    )
    _require_checkpoints(options, high[0])
    longest = options.max_run_seconds or MAX_RUN_SECONDS
    effective, interval = middle[1], middle[1].checkpoint_interval_seconds
    if options.spot:
        interval = min(interval, facts["spot_interval_seconds"])
    jobs, seconds = 1, (low[0], middle[0], high[0])
    if high[0] > longest and not is_trial:
        jobs, interval = _chain(high, longest, interval, costs.step_seconds * costs.step_factors[1])
        between = (jobs - 1) * effective.startup_seconds
        seconds = (low[0], middle[0] + between, high[0] + between)
    full_hours = HOUR_SECONDS * math.ceil(high[0] / HOUR_SECONDS)
    every = chosen or max(1, min(round(interval / costs.step_seconds), steps))
    return Run(
        **common,
        seconds=seconds,
        saves_checkpoints=_saves(options, high[0]) or jobs > 1,
        checkpoint_every=every,
        checkpoint_interval_seconds=every * costs.step_seconds,
        checkpoint_gib=effective.checkpoint_gib,
        checkpoint_nodes=writing_nodes(cluster, layout_of_plan(plan, job, cluster)),
        max_run_seconds=longest if jobs > 1 else options.max_run_seconds or min(full_hours, longest),
        jobs=jobs,
    )


def _steps(
    model: Model, cluster: Cluster, job: Job, plan: Plan, options: JobOptions, *, reads_data: bool
) -> tuple[int | None, bool]:
    """Return the steps of the run, None for those of the data, and whether they are those of a trial."""
    if (chosen := _count(options, "max_steps")) is not None:
        return chosen, False
    epochs = "epochs" in (options.extra_hyperparameters or {})
    if options.plan_hyperparameters and (epochs or (job.tokens is None and reads_data)):
        return None, False
    if job.tokens is not None:
        with suppress(PlanError):
            batch = global_batch_size(plan, cluster)
            return math.ceil(job.tokens / (batch * model.sequence_length(job.sequence_length))), False
    return data_file("export", "launch")["run"]["trial_steps"], True


def _count(options: JobOptions, name: str) -> int | None:
    """Return a hyperparameter of the user, if it is a positive integer."""
    value: Any = (options.extra_hyperparameters or {}).get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _elapsed(
    model: Model, cluster: Cluster, job: Job, plan: Plan, options: JobOptions, steps: int, step_seconds: float
) -> tuple[float, EffectiveTime]:
    """Return the seconds of the run with everything that a job takes, whatever parts the user counts."""
    overheads = replace(job.overheads, parts=OVERHEADS)
    if isinstance(options.checkpoint_place, FileSystem):
        overheads = replace(overheads, storage="fsx")
    job = replace(job, overheads=overheads)
    layout = layout_of_plan(plan, job, cluster)
    effective = effective_time(trained(model, job), cluster, job, layout, step_seconds=step_seconds, steps=float(steps))
    return steps * step_seconds / effective.share, effective


def _chain(
    longest_run: tuple[float, EffectiveTime], job_seconds: int, interval: float, step_seconds: float
) -> tuple[int, float]:
    """Return the number of jobs, and the interval between checkpoints that lets each of them make progress.

    Each job starts again, and loses at most one interval of work when SageMaker stops it.
    """
    elapsed, effective = longest_run
    useful = job_seconds - effective.startup_seconds
    interval = min(interval, useful / 4)  # at least four checkpoints per job
    if interval < step_seconds:
        times = {"start": effective.startup_seconds, "step": step_seconds, "elapsed": elapsed}
        words = {name: in_words(seconds) for name, seconds in times.items()}
        raise ExportError(sentence("export", "too_short", limit=job_seconds, **words))
    jobs = math.ceil((elapsed - effective.startup_seconds) / (useful - interval))
    most = data_file("export", "launch")["run"]["chain_jobs"]
    if jobs > most:
        spans = {"elapsed": in_words(elapsed), "limit": in_words(job_seconds)}
        raise ExportError(sentence("export", "long_chain", **spans, jobs=jobs, most=most))
    return jobs, interval


def _saves(options: JobOptions, seconds: float) -> bool:
    """Return whether the job saves checkpoints: as the user decides, else for spot and for runs over one hour."""
    if options.checkpoints is not None:
        return options.checkpoints is not False
    return options.spot or seconds > HOUR_SECONDS


def _require_checkpoints(options: JobOptions, seconds: float) -> None:
    if options.checkpoints is not False or seconds <= HOUR_SECONDS:
        return
    limit = options.max_run_seconds or MAX_RUN_SECONDS
    duration = "an unknown time" if math.isinf(seconds) else f"up to {in_words(seconds)}"
    if not math.isinf(seconds) and seconds > limit:
        raise ExportError(sentence("export", "chain_without_checkpoints", duration=duration, limit=in_words(limit)))
    if not options.long_run_without_checkpoints:
        raise ExportError(sentence("export", "no_checkpoints", duration=duration))


def _objections(costs: Estimate, cluster: Cluster, min_fit_probability: float) -> list[str]:
    reasons = []
    if costs.headroom_gib < 0 or costs.fit_probability < min_fit_probability:
        chances = {"chance": probability(costs.fit_probability), "required": percent(min_fit_probability)}
        sizes = {"needed": costs.needed_gib, "usable": costs.usable_gpu_memory_gib}
        reasons.append(sentence("export", "too_large", **sizes, **chances))
    if not costs.host_memory_fits:
        needed, machine = costs.host_memory_gib_per_node, cluster.instance
        reasons.append(sentence("export", "host_memory", needed=needed, machine=machine))
    return reasons
