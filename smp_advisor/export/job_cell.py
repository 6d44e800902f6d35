"""The notebook cell that launches a training job, for either major version of the SageMaker Python SDK.

The installed version is read without importing it.
"""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.errors import ExportError
from smp_advisor.export.architectures import architecture_of
from smp_advisor.export.describing import duration, hardware, header
from smp_advisor.export.launch import Launch, ScriptCheck, launch
from smp_advisor.export.options import JobOptions
from smp_advisor.export.script_trl import trainer_note
from smp_advisor.export.sdk_calls import estimator_values, trainer_values
from smp_advisor.export.template import Comment, comment_lines, render, text_literal
from smp_advisor.libraries.version import facts

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
    """The oldest tested release that has the container; None for an image of the user."""
    oldest = _TESTED[sdk][0]
    if container is None:
        return oldest
    first = container.sdk_2 if sdk == "v2" else container.sdk_3
    if first is None and not container.tag:
        alternative = "v3" if sdk == "v2" else "v2"
        raise ExportError(
            f"Version {sdk[1]} of the SageMaker Python SDK has no container of {container.title}: pass"
            f' sdk="{alternative}", or set version in the plan to one that it has.'
        )
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


def chosen_sdk(sdk: str) -> Sdk:
    """The requested version; for ``"auto"`` the installed version, or version 2, which supports every library."""
    if sdk == "auto":
        return installed_sdk() or "v2"
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

    Parameters
    ----------
    model, cluster, job, plan
        The model, the hardware, the training job and the plan.
    sdk
        Version of the SageMaker Python SDK: ``"v2"`` (estimators), ``"v3"`` (``ModelTrainer``), or ``"auto"`` for the
        installed version. With version 3, the cell starts SMP v1 and Training Compiler through hyperparameters that
        AWS documents for version 2 only; a comment in the cell states this.
    min_fit_probability
        Required probability that the plan fits in memory. The cell of a plan below it, or of a plan that does not match
        the model, the cluster or the job, stops with the reason until its reader sets a variable.
    script_check
        Check of a script of the user, whose warnings are in the header.
    options
        Options of the job, see `JobOptions`.

    Raises
    ------
    ExportError
        SageMaker or its SDK would reject or misread the job.
    """
    chosen = chosen_sdk(sdk)
    content = launch(
        model,
        cluster,
        job,
        plan,
        JobOptions.of(options),
        min_fit_probability=min_fit_probability,
        script_check=script_check,
    )
    oldest = _oldest_release(chosen, None if content.options.image_uri else content.container)
    parts = oldest.split(".")[:2]
    values = header(model, content, job.adapter) | {
        "requirement": Comment(f'"sagemaker>={oldest},<{_TESTED[chosen][1]}"'),
        "oldest": Comment(f"[{', '.join(parts)}]"),
        "oldest_text": Comment(".".join(parts)),
        "job_count": content.run.jobs,
        "base_job_name": content.base_job_name,
        "region": content.options.region,
        "role": content.options.role,
        "script": content.script,
        "requirements": content.requirements,
        "settings": content.settings,
        "train": content.inputs.get("train"),
    }
    # Scripts of SMP v1 and before read no conversations, and FSx has no files here.
    reads_rows = content.generated and content.library.script == "torch" and architecture_of(model).reads_text
    training = content.training
    tunes = training is not None and training.tunes
    if training is not None:
        rows = ["messages", "prompt"] if tunes else ["prompt"] * (training.architecture.task == "sequence_to_sequence")
        columns = [*rows, str(content.hyperparameters.get("text_column", "text"))]
        values["columns"] = Comment("{" + ", ".join(map(text_literal, columns)) + "}")
        values["trainer_note"] = comment_lines(trainer_note(training, content.options.trainer))
    flags = _flags(content) | {
        "tunes": tunes,
        "inferred": model.origin == "inferred" and content.generated,
        "preferences": content.options.objective == "dpo",
        "checks_data": reads_rows and isinstance(content.inputs.get("train"), str),
    }
    if chosen == "v2":
        return render("job_v2.py.in", values=values | estimator_values(content), flags=flags)
    own_directory = content.options.source_dir is not None
    flags |= {
        "launcher_hyperparameters": not content.torchrun,
        "waits": content.run.is_chain or not content.torchrun,
        "own_directory": own_directory,
        "own_file": not content.generated and not own_directory,
        "path": not (content.torchrun and own_directory),
    }
    return render("job_v3.py.in", values=values | trainer_values(content), flags=flags)


def terms_of(
    model: Model, cluster: Cluster, job: Job, plan: Plan, *, min_fit_probability: float = 0.95, **options: Any
) -> tuple[str, tuple[str, ...]]:
    """Hardware, duration and price of the job of `estimator_cell` in words; and why it is not expected to train."""
    content = launch(model, cluster, job, plan, JobOptions.of(options), min_fit_probability=min_fit_probability)
    return f"{hardware(cluster)}. {duration(content)}", content.run.objections


def _flags(job: Launch) -> dict[str, bool]:
    return {
        "generated": job.generated,
        "configured": bool(job.settings),
        "warned": bool(job.warnings),
        "data": bool(job.inputs),
        "estimated": job.run.estimate is not None,
        "saves": job.run.saves_checkpoints,
        "scheduled": job.schedule is not None,
        "chain": job.run.is_chain,
        "guarded": bool(job.run.objections),
        "in_region": job.options.region is not None,
        "own_role": job.options.role is not None,
        "tracks": job.tensorboard_s3_uri is not None,
        "measures": bool(job.metrics),
        "retries": job.options.retry_attempts is not None,
        "discontinued": "discontinued" in facts(job.plan.library),
        "to_be_written": not job.generated and job.options.script is None,
    }
