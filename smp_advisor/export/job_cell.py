"""The notebook cell that launches a training job, for either major version of the SageMaker Python SDK.

The installed version is read without importing it.
"""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.errors import ExportError
from smp_advisor.export.describing import (
    checkpointing,
    container_name,
    describe,
    duration,
    hardware,
    job_chain,
    learning_rate,
    library_name,
    memory,
    warning_lines,
)
from smp_advisor.export.launch import Launch, ScriptCheck, launch
from smp_advisor.export.options import JobOptions
from smp_advisor.export.sdk_calls import (
    estimator,
    estimator_imports,
    estimator_inputs,
    metric_definitions,
    retries,
    trainer,
    trainer_imports,
    trainer_inputs,
    training_image,
)
from smp_advisor.export.template import Comment, Expression, comment, comment_lines, render
from smp_advisor.libraries.version import facts
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.cluster.containers import Container
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

Sdk = Literal["v2", "v3"]

REQUIREMENTS: dict[Sdk, str] = {"v2": "sagemaker>=2.243,<3", "v3": "sagemaker>=3.0.1,<4"}
"""Requirements of the cells: the oldest releases with which they have been tested."""

DISTRIBUTIONS: dict[Sdk, str] = {"v2": "sagemaker", "v3": "sagemaker-train"}
"""Distribution with the version of the SDK; version 3 is a bundle, and this is the part with ModelTrainer."""


def requirement(sdk: Sdk, container: Container | None) -> str:
    """Requirement of a cell: the oldest tested release that has the container; None for an image of the user."""
    if container is None:
        return REQUIREMENTS[sdk]
    first = container.sdk_2 if sdk == "v2" else container.sdk_3
    if first is None:
        alternative = "v3" if sdk == "v2" else "v2"
        raise ExportError(
            f"Version {sdk[1]} of the SageMaker Python SDK has no container of {container.title}: pass"
            f' sdk="{alternative}", or set version in the plan to one that it has.'
        )
    package, newest = REQUIREMENTS[sdk].split(">=")[0], REQUIREMENTS[sdk].split(",")[1]
    tested = REQUIREMENTS[sdk].split(">=")[1].split(",")[0]
    oldest = max(tested, first or tested, key=lambda version: [int(part) for part in version.split(".")])
    return f"{package}>={oldest},{newest}"


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
        Check of a script of the user, whose warnings are in the
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
    values = _head(model, content)
    write = _version_2 if chosen == "v2" else _version_3
    container = None if content.options.image_uri else content.container.container
    required = requirement(chosen, container)
    oldest = required.split(">=")[1].split(",")[0].split(".")[:2]
    requirements = {
        "requirement": Comment(f'"{required}"'),
        "oldest": Comment(f"[{', '.join(oldest)}]"),
        "oldest_text": Comment(".".join(oldest)),
    }
    return write(content, values | requirements)


def _head(model: Model, job: Launch) -> dict[str, object]:
    return {
        "hardware": Comment(hardware(job.cluster)),
        "model_name": Comment(f'"{comment(model.name)}"'),
        "parameters": Comment(f"{format_count(model.parameter_count)} parameters"),
        "library": Comment(library_name(job.plan)),
        "container": Comment(container_name(job.container.container)),
        "plan": Comment(describe(job.plan)),
        "duration": comment_lines(duration(job)),
        "memory": comment_lines(memory(job)),
        "checkpointing": comment_lines(checkpointing(job)),
        "jobs": comment_lines(job_chain(job)),
        "learning_rate": comment_lines(learning_rate(job)),
        "warnings": Comment("\n".join(warning_lines(job))),
        "objection": " ".join(job.run.objections),
        "job_count": job.run.jobs,
        "base_job_name": job.base_job_name,
        "region": job.options.region,
        "role": job.options.role,
        "discontinued": Comment(facts(job.plan.library).get("discontinued", "")),
        "script": job.script,
        "requirements": job.requirements,
    }


def _flags(job: Launch) -> dict[str, bool]:
    return {
        "generated": job.generated,
        "warned": bool(job.warnings),
        "data": bool(job.inputs),
        "estimated": job.run.estimate is not None,
        "saves": job.run.saves_checkpoints,
        "scheduled": job.schedule is not None,
        "chain": job.run.is_chain,
        "guarded": bool(job.run.objections),
        "in_region": job.options.region is not None,
        "own_image": job.options.image_uri is not None,
        "own_role": job.options.role is not None,
        "measures": bool(job.metrics),
        "retries": job.options.retry_attempts is not None,
        "discontinued": "discontinued" in facts(job.plan.library),
        "to_be_written": not job.generated and job.options.script is None,
    }


def _version_2(job: Launch, values: dict[str, object]) -> str:
    values = values | {
        "imports": Comment("\n".join(estimator_imports(job))),
        "execution_role": Comment("sagemaker.get_execution_role"),
        "estimator": estimator(job),
        "inputs": estimator_inputs(job),
    }
    return render("job_v2.py.in", values=values, flags=_flags(job))


def _version_3(job: Launch, values: dict[str, object]) -> str:
    own_directory = job.options.source_dir is not None
    packed = [Expression("script.name"), *(["requirements.txt"] if job.generated else [])]
    values = values | {
        "imports": Comment("\n".join(trainer_imports(job))),
        "execution_role": Comment("get_execution_role"),
        "source_dir": job.options.source_dir or "",
        "packed": packed,
        "key_prefix": Comment(job.base_job_name),
        "training_image": training_image(job),
        "trainer": trainer(job),
        "metrics": metric_definitions(job),
        "retries": retries(job),
        "inputs": trainer_inputs(job),
    }
    flags = _flags(job) | {
        "launcher_hyperparameters": not job.torchrun,
        "waits": job.run.is_chain or not job.torchrun,
        "own_directory": own_directory,
        "own_file": not job.generated and not own_directory,
        "path": not (job.torchrun and own_directory),
    }
    return render("job_v3.py.in", values=values, flags=flags)
