"""Comments at the top of a job cell: duration, price, fit, checkpoints and learning rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.export.describing import describe, hardware, in_words, library_name
from smp_advisor.export.literal import comment_lines
from smp_advisor.export.run import percent

if TYPE_CHECKING:
    from smp_advisor.export.launch import Launch

__all__ = ["checkpointing", "duration", "jobs", "learning_rate", "memory", "summary_lines", "warning_lines"]


def duration(job: Launch) -> str:
    """Steps, elapsed time and price with their intervals."""
    run, costs = job.run, job.run.estimate
    if costs is None:
        return "Duration and price: unknown, because the plan does not match the job."
    fastest, slowest = costs.step_seconds_range
    step = f"{_figure(costs.step_seconds)} s ({_figure(fastest)} to {_figure(slowest)}) per step"
    if run.seconds is None:
        return f"Duration: {step}; your script determines the number of steps."
    low, middle, high = run.seconds
    text = f"Duration: {run.steps:,} steps of {step}, {in_words(middle)} ({in_words(low)} to {in_words(high)})."
    if (price := costs.usd_per_hour) is not None:
        least, expected, most = (f"${_figure(price * seconds / 3600)}" for seconds in (low, middle, high))
        text += f" Price: {expected} ({least} to {most})"
        text += " on demand; spot instances cost less." if job.options.spot else "."
    if run.is_trial:
        text += " The job has no length, so these steps only measure memory and speed."
    if not run.is_chain:
        text += f" SageMaker stops the job after {in_words(run.max_run_seconds)}"
        text += ", which can be before its last step." if high > run.max_run_seconds else "."
    return f"{text} Ranges are 95 % intervals of the estimate."


def memory(job: Launch) -> str:
    """Required memory and the probability that the plan fits."""
    costs = job.run.estimate
    if costs is None:
        return ""
    return (
        f"Memory: {costs.needed_gib:,.1f} GiB per GPU of {costs.usable_gpu_memory_gib:.1f} GiB available; fits with a"
        f" probability of {percent(costs.fit_probability)}."
    )


def checkpointing(job: Launch) -> str:
    """Interval and size of checkpoints."""
    run = job.run
    if not job.options.plan_hyperparameters or not job.generated:
        return "Checkpoints: your script must save them to the checkpoint directory and resume from it."
    every = f"Checkpoints: every {run.checkpoint_every:,} steps"
    if not run.checkpoint_gib:
        return f"{every}."
    return (
        f"{every} (about {in_words(run.checkpoint_interval_seconds)}), {_figure(run.checkpoint_gib)} GiB each. Run this"
        " cell again to resume."
    )


def jobs(job: Launch) -> str:
    """The chain of jobs."""
    run = job.run
    return (
        f"One job runs for at most {in_words(run.max_run_seconds)}, so the run is a chain of up to {run.jobs:,} jobs."
        " Each resumes from the checkpoints of the job before. The cell waits for a job and starts the next one. You"
        " can interrupt the cell: the job continues, and the cell follows it when you run it again."
    )


def learning_rate(job: Launch) -> str:
    """Peak learning rate and warm-up with their source."""
    schedule = job.schedule
    if schedule is None:
        return ""
    origin = f"{'assumed' if schedule.assumed else 'starting value'}, from {schedule.source}"
    rate, warmup = (job.hyperparameters[name] for name in ("learning_rate", "warmup_steps"))
    if (rate, warmup) != (schedule.learning_rate, schedule.warmup_steps):
        origin = f"your setting, instead of {schedule.learning_rate:g} after {schedule.warmup_steps:,} steps: {origin}"
    return (
        f"Learning rate: {rate:g} after {warmup:,} steps of warm-up ({origin}), then down to 10 % of it at the last"
        " step."
    )


def summary_lines(job: Launch) -> list[str]:
    """Plan, library and hardware with the findings of the model's profile, as comments of Bash or YAML."""
    plan = f"# {describe(job.plan)}, {library_name(job.plan)}"
    return [plan, f"# {comment_lines(hardware(job.cluster))}", *warning_lines(job)]


def warning_lines(job: Launch) -> list[str]:
    """Findings of the model's profile, as comments of Python, Bash or YAML."""
    return [f"# {comment_lines(f'Warning: {warning}')}" for warning in job.warnings]


def _figure(value: float) -> str:
    """Three significant digits.

    Examples
    --------
    >>> _figure(46_880), _figure(21.62), _figure(0.5)
    ('46,900', '21.6', '0.5')
    """
    return f"{float(f'{value:.3g}'):,.10g}"
