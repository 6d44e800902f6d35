"""The notebook cell that launches a training job, for either major version of the SageMaker Python SDK.

The installed version is read without importing it.
"""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.cluster.containers import image_at, patched_pytorch, table_date
from smp_advisor.core.files import sentence
from smp_advisor.core.tables import number
from smp_advisor.core.words import plural
from smp_advisor.costs.wording import parameters_text, probability
from smp_advisor.errors import ExportError
from smp_advisor.export.launch import Launch, ScriptCheck, has_volumes, launch
from smp_advisor.export.options import JobOptions
from smp_advisor.export.script import export_line
from smp_advisor.export.script_parts import (
    architecture_note,
    architecture_of,
    describe,
    hardware,
    in_words,
    library_name,
)
from smp_advisor.export.script_trl import trainer_note
from smp_advisor.export.sdk_calls import estimator_values, trainer_values
from smp_advisor.export.template import (
    Comment,
    Expression,
    comment,
    comments,
    gathered,
    render,
    text_block,
    text_literal,
)
from smp_advisor.libraries.version import facts, images

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.cluster.containers import Container
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

Sdk = Literal["v2", "v3"]

_TESTED: dict[Sdk, tuple[str, str]] = {"v2": ("2.243", "3"), "v3": ("3.0.1", "4")}
"""The oldest releases with which the cells have been tested, and the first that they do not support."""


def _oldest_release(sdk: Sdk, container: Container | None) -> str:
    """Return the oldest tested release that has the container; None for an image of the user."""
    oldest = _TESTED[sdk][0]
    if container is None:
        return oldest
    first = container.sdk_2 if sdk == "v2" else container.sdk_3
    if first is None and not container.tag:
        names = {"sdk": sdk[1], "other": "v3" if sdk == "v2" else "v2"}
        raise ExportError(sentence("export", "no_container", container=container, **names))
    return max(oldest, first or oldest, key=lambda version: [int(part) for part in version.split(".")])


def installed_sdk() -> Sdk | None:
    """Major version of the installed SDK; None if it is not installed.

    Importing version 2 takes two seconds and contacts the instance metadata service; reading its version does not.
    """
    for distribution in ("sagemaker-train", "sagemaker"):
        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
        if distribution == "sagemaker-train":
            return "v3"
        return {"2": "v2", "3": "v3"}.get(version.split(".")[0])  # type: ignore[return-value]  # the keys' literals
    return None


def chosen_sdk(sdk: str, container: Container) -> Sdk:
    """Return the requested version; for ``"auto"`` the installed version, or version 3, if it has the container."""
    if sdk == "auto":
        has_container = container.sdk_3 is not None or container.tag
        return installed_sdk() or ("v3" if has_container else "v2")
    if sdk not in ("v2", "v3"):
        raise ExportError(f'sdk must be "auto", "v2" or "v3", not {sdk!r}.')
    return sdk  # type: ignore[return-value]  # compared above


def estimator_cell(
    model: Model,
    cluster: Cluster,
    job: Job,
    plan: Plan,
    *,
    sdk: str = "auto",
    min_fit_probability: float = 0.95,
    script_check: ScriptCheck | None = None,
    **options: Any,
) -> str:
    """Notebook cell that starts the training job of a plan.

    The cell states duration, price and fit of the run. The duration determines the time limit of the job; a run that
    takes longer than one job may is a chain of jobs.

    With version 3 of the SageMaker Python SDK, the cell starts SMP v1 and Training Compiler through hyperparameters
    that AWS documents for version 2 only; a comment in the cell states this. The cell of a plan that fits with less
    than `min_fit_probability`, or that does not match the model, the cluster or the job, stops with the reason until
    its reader sets a variable. The warnings of `script_check` about a script of the user are in the header. The options
    are those of `JobOptions`.
    """
    job_options = JobOptions.of(options)
    content = launch(
        model, cluster, job, plan, job_options, min_fit_probability=min_fit_probability, script_check=script_check
    )
    # The SDK decides the calls, the least release and how a library is started.
    chosen = chosen_sdk(sdk, content.container)
    oldest = _oldest_release(chosen, None if job_options.image_uri else content.container)
    parts, requirement = oldest.split(".")[:2], f'"sagemaker>={oldest},<{_TESTED[chosen][1]}"'
    packs, sdk_name = chosen == "v3" and not content.torchrun, f"{chosen[1]} of the SageMaker Python SDK"
    sentences = [
        *_header(content),
        f"Requires version {sdk_name}: %pip install {requirement}",
        *([sentence("export", "undocumented")] if packs else []),
    ]
    files = content.companions.items()
    writes = (f"(source_dir / {text_literal(name)}).write_text({text_block(text)})" for name, text in files)
    # Scripts of SMP v1 and before read no conversations, and FSx has no files here.
    reads_rows = content.generated and content.library.script == "torch" and architecture_of(model).reads_text
    training = content.training
    preferences = content.job.training == "dpo"
    tunes = training is not None and training.job.tunes and not preferences
    values: dict[str, object] = {
        "header": comments(sentences),
        "objection": " ".join(content.run.objections),
        "requirement": Comment(requirement),
        "oldest": Comment(f"[{', '.join(parts)}]"),
        "required": Comment(f"{sdk_name}, {'.'.join(parts)} or later" if chosen == "v2" else sdk_name),
        "job_count": content.run.jobs,
        "base_job_name": content.base_job_name,
        "region": job_options.region,
        "role": job_options.role,
        "script": content.script,
        "export_line": export_line(content.training) if content.training is not None else "",
        "requirements": content.requirements,
        "companions": Expression("\n".join(writes)),
        "v3": chosen == "v3",
        "tunes": tunes,
        "preferences": preferences,
        "channels": (channels := {name: place for name, place in content.inputs.items() if isinstance(place, str)}),
        "checks_data": content.generated and channels,
        "checks_rows": reads_rows and "train" in channels,
        "packs": packs,
        "has_volumes": has_volumes(cluster),
        "own_file": chosen == "v3" and not content.generated and job_options.source_dir is None,
        "generated": content.generated,
        "chain": content.run.is_chain,
        "to_be_written": not content.generated and job_options.script is None,
    }
    if training is not None:
        rows = ["messages", "prompt"] if tunes else ["prompt"] * (training.architecture.task == "sequence_to_sequence")
        columns = [*rows, str(content.hyperparameters.get("text_column", "text"))]
        values["columns"] = Comment("{" + ", ".join(map(text_literal, columns)) + "}")
    calls = estimator_values(content) if chosen == "v2" else trainer_values(content)
    return gathered(render("job.py.in", **values, **calls))


def terms_of(
    model: Model, cluster: Cluster, job: Job, plan: Plan, *, min_fit_probability: float = 0.95, **options: Any
) -> tuple[str, tuple[str, ...]]:
    """Hardware, duration and price of the job of `estimator_cell` in words; and why it is not expected to train."""
    content = launch(model, cluster, job, plan, JobOptions.of(options), min_fit_probability=min_fit_probability)
    return f"{hardware(cluster)}. {duration(content)}", content.run.objections


def _image(job: Launch) -> tuple[str, str]:
    """Content of the image of a job, and whether AWS patches it as of the day of the table, or which one instead."""
    own, title = job.options.image_uri, job.library.title
    container = job.container if own is None else image_at(own)
    if container is None:
        return "your image", "Patches: yours. The advisor does not know this image."
    versions = [
        f"CUDA {container.cuda}" if container.cuda else "",
        f"Python {container.py_version[2]}.{container.py_version[3:] or '6'}",
        f"transformers {container.transformers_version}" if container.transformers_version else "",
    ]
    name, day = ", ".join(filter(None, versions)), container.end_of_support
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
    return name, f"{text} {sentence('export', 'patched', newest=newest)}"


def duration(job: Launch) -> str:
    """Steps, elapsed time and price with their intervals."""
    run, costs = job.run, job.run.estimate
    if costs is None:
        return "Duration and price: unknown, because the plan does not match the job."
    fastest, slowest = costs.step_seconds_range
    step = f"{number(costs.step_seconds)} s ({number(fastest)} to {number(slowest)}) per step"
    if run.seconds is None:
        epochs = job.hyperparameters.get("epochs")
        length = "your script determines the number of steps"
        if epochs is not None:
            length = f"{plural(epochs, 'epoch')} of the channel `train`, whose size decides the number of steps"
        return sentence("export", "no_steps", step=step, length=length, limit=in_words(run.max_run_seconds))
    low, middle, high = run.seconds
    text = f"Duration: {run.steps:,} steps of {step}, {in_words(middle)} ({in_words(low)} to {in_words(high)})."
    if (price := costs.usd_per_hour) is not None:
        least, expected, most = (f"${number(price * seconds / 3600)}" for seconds in (low, middle, high))
        text += f" Price: {expected} ({least} to {most})"
        text += " on demand; spot instances cost less." if job.options.spot else "."
    if run.is_trial:
        text += " The job has no length, so these steps only measure memory and speed."
    if not run.is_chain:
        text += f" SageMaker stops the job after {in_words(run.max_run_seconds)}"
        text += ", which can be before its last step." if high > run.max_run_seconds else "."
    return f"{text} Ranges are 95 % intervals of the estimate."


def _checkpointing(job: Launch) -> str:
    """Interval and size of checkpoints."""
    if not job.options.plan_hyperparameters or not job.generated:
        return "Checkpoints: your script must save them to the checkpoint directory and resume from it."
    every, interval = f"Checkpoints: every {job.run.checkpoint_every:,} steps", job.run.checkpoint_interval_seconds
    size = f" (about {in_words(interval)}), {number(job.run.checkpoint_gib)} GiB each. Run this cell again to resume."
    return every + (size if job.run.checkpoint_gib else ".")


def _learning_rate(job: Launch) -> str:
    """Return the peak learning rate and warm-up with their source."""
    schedule = job.schedule
    if schedule is None:
        return ""
    origin = f"{'assumed' if schedule.assumed else 'starting value'}, from {schedule.source}"
    rate, warmup = (job.hyperparameters[name] for name in ("learning_rate", "warmup_steps"))
    if (rate, warmup) != (schedule.learning_rate, schedule.warmup_steps):
        usual = f"{schedule.learning_rate:g} after {schedule.warmup_steps:,} steps"
        origin = f"your setting, instead of {usual}: {origin}"
    of_trl = job.training is not None and job.training.trainer == "trl"
    end = "0" if of_trl or job.library.script == "trainer" else "10 % of it"
    steps = f"{100 * warmup:g} % of the steps as" if 0 < warmup < 1 else f"{warmup:,} steps of"
    return f"Learning rate: {rate:g} after {steps} warm-up ({origin}), then down to {end} at the last step."


def _header(job: Launch) -> list[str]:
    """Return the sentences at the top of a job cell; empty ones do not apply."""
    container, patches = _image(job)
    model, training, run, memory = job.model, job.training, job.run, ""
    parameters, library = parameters_text(model, job.job.adapter), library_name(job.plan)
    if (costs := run.estimate) is not None:
        sizes = {"needed": costs.needed_gib, "usable": costs.usable_gpu_memory_gib}
        memory = sentence("export", "memory", **sizes, chance=probability(costs.fit_probability))
    chain = sentence("export", "chain", limit=in_words(run.max_run_seconds), jobs=run.jobs)
    return [
        f"SageMaker training job on {hardware(job.cluster)}.",
        f'Model: "{comment(model.name)}" ({parameters}). Library: {library}.',
        architecture_note(model) if model.origin == "inferred" and job.generated else "",
        f"Plan: {describe(job.plan)}.",
        trainer_note(training, job.options.trainer) if training is not None and training.job.tunes else "",
        f"Container: {container}.",
        patches,
        *(f"Warning: {warning}" for warning in job.warnings),
        duration(job),
        memory,
        _checkpointing(job) if run.saves_checkpoints else "",
        chain if run.is_chain else "",
        _learning_rate(job),
        facts(job.plan.library).get("discontinued", ""),
    ]


def summary(job: Launch) -> list[str]:
    """Plan, library and hardware with the findings of the model's profile, a sentence each."""
    warnings = (f"Warning: {warning}" for warning in job.warnings)
    return [f"{describe(job.plan)}, {library_name(job.plan)}", hardware(job.cluster), *warnings]
