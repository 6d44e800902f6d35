"""Descriptions of a plan, its hardware and its run, for comments of cells and job files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.cluster.containers import image_at, patched_pytorch, table_date
from smp_advisor.export.template import Comment, comment, comment_lines
from smp_advisor.libraries.library import get_library
from smp_advisor.libraries.version import facts, image, images
from smp_advisor.wording import parameters_text, plural

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.cluster.containers import Container
    from smp_advisor.export.launch import Launch
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.adapter import Adapter
    from smp_advisor.workload.model import Model

_FRAMEWORKS = {"pytorch": "PyTorch", "tensorflow": "TensorFlow"}


def hardware(cluster: Cluster) -> str:
    """Instances, GPUs and price of a cluster."""
    price = cluster.usd_per_hour
    cost = "price unknown" if price is None else f"about ${price:,.2f} per hour"
    return f"{cluster.nodes} x {cluster.instance.name} ({cluster.gpus} GPUs, {cost})"


def library_name(plan: Plan) -> str:
    """Library with its version and framework, for example "SMP v2 2.8.0 (PyTorch 2.5.1)"."""
    library, framework_version = get_library(plan.library), image(plan.library, plan.version).framework_version
    # A library without versions of its own uses those of its framework.
    version = "" if plan.version == framework_version else f" {plan.version}"
    return f"{library.title}{version} ({_FRAMEWORKS[library.framework]} {framework_version})"


def _container_name(container: Container) -> str:
    """Versions in a container, with the last day of AWS's patches if it is known."""
    parts = [f"Python {container.py_version[2]}.{container.py_version[3:] or '6'}"]
    if container.cuda:
        parts.insert(0, f"CUDA {container.cuda}")
    if container.transformers_version:
        parts.append(f"transformers {container.transformers_version}")
    return ", ".join(parts)


def _image(job: Launch) -> tuple[str, str]:
    """Content of the image of a job, and whether AWS patches it as of the day of the table, or which one instead."""
    own, title = job.options.image_uri, job.library.title
    container = job.container if own is None else image_at(own)
    if container is None:
        return "your image", "Patches: yours. The advisor does not know this image."
    name, day = _container_name(container), container.end_of_support
    if container.is_patched:
        is_named = container.sdk_2 is not None or container.sdk_3 is not None or own is not None or job.options.region
        place = "" if is_named else " Its address is that of most regions: export with region= for the others."
        return name, f"Patches: AWS patches this image until {day}.{place}"
    text = f"Patches: none since {day}. Expect known vulnerabilities (AWS's support policy as of {table_date()})."
    if not day:
        text = f"Patches: none. AWS's support policy does not list this image (as of {table_date()})."
    if "version" in facts(job.plan.library):
        newest_of_library = images(job.plan.library)[-1]
        return name, f"{text} {title} has no newer image." if container == newest_of_library else text
    newest = patched_pytorch(job.cluster.instance)
    if newest is None:
        return name, f"{text} No image that AWS patches has code for the GPUs of this instance."
    return name, (
        f"{text} AWS patches {newest.title} until {newest.end_of_support}: set version={newest.framework_version!r} in"
        " the plan."
    )


def describe(plan: Plan) -> str:
    """Precision and techniques of a plan."""
    words = {
        "pipeline parallelism": plan.pipeline_parallel_degree > 1,
        "tensor parallelism": plan.tensor_parallel_degree > 1,
        "context parallelism": plan.context_parallel_degree > 1,
        "expert parallelism": plan.expert_parallel_degree > 1,
        "sharded data parallelism": plan.shards_parameters,
        "optimizer state sharding": plan.shard_optimizer_state,
        "compiled": get_library(plan.library).compiles,
    }
    used = [word for word, on in words.items() if on] or ["data parallelism"]
    return f"{plan.precision}, {', '.join(used)}"


def in_words(seconds: float) -> str:
    """A duration in its natural unit, with two to three digits.

    Examples
    --------
    >>> in_words(42), in_words(5400), in_words(104 * 86400)
    ('42 s', '90 min', '104 days')
    """
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            value = seconds / size
            return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}".replace(".0 ", " ")
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def percent(share: float) -> str:
    """A probability in percent, which is never rounded to certainty.

    Examples
    --------
    >>> percent(0.9999), percent(0.031), percent(0.0001)
    ('over 99 %', '3.1 %', 'under 1 %')
    """
    if share > 0.99:
        return "over 99 %"
    return "under 1 %" if share < 0.01 else f"{100 * share:.3g} %"


def duration(job: Launch) -> str:
    """Steps, elapsed time and price with their intervals."""
    run, costs = job.run, job.run.estimate
    if costs is None:
        return "Duration and price: unknown, because the plan does not match the job."
    fastest, slowest = costs.step_seconds_range
    step = f"{_figure(costs.step_seconds)} s ({_figure(fastest)} to {_figure(slowest)}) per step"
    if run.seconds is None:
        epochs = job.hyperparameters.get("epochs")
        length = "your script determines the number of steps"
        if epochs is not None:
            length = f"{plural(epochs, 'epoch')} of the channel `train`, whose size decides the number of steps"
        return (
            f"Duration: {step}; {length}. SageMaker stops the job after {in_words(run.max_run_seconds)}"
            " (max_run_seconds)."
        )
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


def _memory(job: Launch) -> str:
    """Required memory and the probability that the plan fits."""
    costs = job.run.estimate
    if costs is None:
        return ""
    return (
        f"Memory: {costs.needed_gib:,.1f} GiB per GPU of {costs.usable_gpu_memory_gib:.1f} GiB available; fits with a"
        f" probability of {percent(costs.fit_probability)}."
    )


def _checkpointing(job: Launch) -> str:
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


def _job_chain(job: Launch) -> str:
    """The chain of jobs."""
    run = job.run
    return (
        f"One job runs for at most {in_words(run.max_run_seconds)}, so the run is a chain of up to {run.jobs:,} jobs."
        " Each resumes from the checkpoints of the job before. The cell waits for a job and starts the next one. You"
        " can interrupt the cell: the job continues, and the cell follows it when you run it again."
    )


def _learning_rate(job: Launch) -> str:
    """Peak learning rate and warm-up with their source."""
    schedule = job.schedule
    if schedule is None:
        return ""
    origin = f"{'assumed' if schedule.assumed else 'starting value'}, from {schedule.source}"
    rate, warmup = (job.hyperparameters[name] for name in ("learning_rate", "warmup_steps"))
    if (rate, warmup) != (schedule.learning_rate, schedule.warmup_steps):
        usual = f"{schedule.learning_rate:g} after {schedule.warmup_steps:,} steps"
        origin = f"your setting, instead of {usual}: {origin}"
    end = "0" if job.decays_to_zero else "10 % of it"
    steps = f"{100 * warmup:g} % of the steps as" if 0 < warmup < 1 else f"{warmup:,} steps of"
    return f"Learning rate: {rate:g} after {steps} warm-up ({origin}), then down to {end} at the last step."


def architecture_note(model: Model) -> Comment:
    """The architecture that stands for a number of parameters, as a comment, and how to train another one."""
    shape = model.shape
    return comment_lines(
        f"Architecture: a {model.family} model of {shape.layers} layers and width {shape.hidden:,}, inferred from the"
        " number of parameters. To train another one, advise on it by name, configuration or weights:"
        ' advise("llama-3-8b", ...).'
    )


def header(model: Model, job: Launch, adapter: Adapter | None) -> dict[str, object]:
    """Template values of the comments at the top of a job cell, and the reasons against starting it."""
    container, patches = _image(job)
    return {
        "hardware": Comment(hardware(job.cluster)),
        "model_name": Comment(f'"{comment(model.name)}"'),
        "parameters": Comment(parameters_text(model, adapter)),
        "architecture": architecture_note(model),
        "library": Comment(library_name(job.plan)),
        "container": Comment(container),
        "patches": comment_lines(patches),
        "plan": Comment(describe(job.plan)),
        "duration": comment_lines(duration(job)),
        "memory": comment_lines(_memory(job)),
        "checkpointing": comment_lines(_checkpointing(job)),
        "jobs": comment_lines(_job_chain(job)),
        "learning_rate": comment_lines(_learning_rate(job)),
        "warnings": Comment("\n".join(_warning_lines(job))),
        "discontinued": Comment(facts(job.plan.library).get("discontinued", "")),
        "objection": " ".join(job.run.objections),
    }


def summary_lines(job: Launch) -> list[str]:
    """Plan, library and hardware with the findings of the model's profile, as comments of Bash or YAML."""
    plan = f"# {describe(job.plan)}, {library_name(job.plan)}"
    return [plan, f"# {comment_lines(hardware(job.cluster))}", *_warning_lines(job)]


def _warning_lines(job: Launch) -> list[str]:
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
