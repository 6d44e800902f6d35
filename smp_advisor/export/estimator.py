"""The cell that launches a plan: a SageMaker PyTorch estimator (Python SDK v2)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ExportError
from smp_advisor.export import checks
from smp_advisor.export.architectures import architecture
from smp_advisor.export.literal import Comment, comment
from smp_advisor.export.script import SCRIPT_NAME, builds, describe, require_writable
from smp_advisor.export.template import render
from smp_advisor.library.support import require_supported_instance
from smp_advisor.library.version import image
from smp_advisor.library.world import global_batch_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.cluster.instance import Instance
    from smp_advisor.library.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["estimator_cell"]

_TRIAL_STEPS = 100
"""Steps of a job that names no number of tokens: enough to see that it fits and how fast it is."""
_STEPS_BETWEEN_CHECKPOINTS = 500
_DAY_SECONDS = 86_400

_OWN_SCRIPT = "train.py"
"""Stands for the script of a model that is the user's code, until they name it."""

_METRICS = (
    {"Name": "train:loss", "Regex": "step [0-9]+ loss ([0-9.]+)"},
    {"Name": "train:throughput", "Regex": "_per_second ([0-9.]+)"},
)
"""How CloudWatch reads the lines that the generated script prints."""


def estimator_cell(
    model: Model,
    cluster: Cluster,
    job: Job,
    plan: Plan,
    *,
    script: str | None = None,
    source_dir: str | None = None,
    data: Mapping[str, str] | str | None = None,
    sdk: str = "auto",
    job_name: str | None = None,
    max_run_seconds: int = _DAY_SECONDS,
    checkpoint_s3_uri: str | None = None,
    extra_hyperparameters: Mapping[str, Any] | None = None,
) -> str:
    """Notebook cell that starts the training job of a plan.

    Parameters
    ----------
    model, cluster, job, plan
        What is trained, where, with which settings, and how it is run.
    script
        The user's own training script; None for the generated one, which `script_cell` writes, or, for a model that is
        the user's own code, for a ``train.py`` to be put beside the notebook.
    source_dir
        Directory of the user's script, all of which is uploaded; None uploads the script alone.
    data
        S3 URI of the training data, or URIs by channel; None for none: the generated script trains on random data.
    sdk
        ``"v2"``: the major version of the SageMaker Python SDK that the cell is written for; ``"auto"`` is the same.
    job_name
        Beginning of the job's name; SageMaker appends the time.
    max_run_seconds
        After that time SageMaker stops the job.
    checkpoint_s3_uri
        Where checkpoints are kept; a job with the same URI resumes. None keeps none.
    extra_hyperparameters
        Further options of the script.

    Raises
    ------
    ExportError
        Where SageMaker or its SDK would refuse the job, or misread it.
    """
    _require_launchable(cluster, plan, sdk)
    if source_dir is not None and script is None:
        raise ExportError("source_dir goes with a script of your own: pass script= with its path in that directory.")
    generated = script is None and builds(model)
    if generated:
        require_writable(model, job, plan)
    parameters = plan.parameters
    _require_sdk_takes(parameters)
    inputs = checks.channels(data)
    container = image(plan.library, plan.version)
    own = plan.hyperparameters | {
        "sequence_length": model.sequence_length(job.sequence_length),
        "max_steps": _steps(model, cluster, job, plan),
    }
    if checkpoint_s3_uri is not None:
        checkpoint_s3_uri = checks.s3_uri("checkpoint_s3_uri", checkpoint_s3_uri)
        own["checkpoint_every"] = _STEPS_BETWEEN_CHECKPOINTS
    values: dict[str, object] = {
        "hardware": Comment(_hardware(cluster)),
        "model_name": Comment(f'"{comment(model.name)}"'),
        "parameters": Comment(f"{model.parameter_count / 1e9:.3g} B parameters"),
        "library_version": Comment(plan.version),
        "plan": Comment(describe(plan)),
        "script_name": SCRIPT_NAME,
        "requirements": f"transformers=={architecture(model).transformers_version}\n" if generated else "",
        "entry_point": _OWN_SCRIPT if script is None else checks.text("script", script),
        "source_dir": "" if source_dir is None else checks.text("source_dir", source_dir),
        "instance_type": cluster.instance.name,
        "instance_count": cluster.nodes,
        "framework_version": container.framework_version,
        "py_version": container.py_version,
        "distribution": {
            "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
            "mpi": _mpi(cluster.instance),
        },
        "hyperparameters": checks.hyperparameters(own, extra_hyperparameters, parameters),
        "metrics": list(_METRICS),
        "base_job_name": checks.base_job_name(job_name, model.name),
        "volume_gb": _volume_gb(model, cluster, checkpoints=checkpoint_s3_uri is not None),
        "max_run_seconds": checks.run_seconds(max_run_seconds),
        "checkpoint_s3_uri": checkpoint_s3_uri,
        "inputs": inputs,
    }
    flags = {
        "generated": generated,
        "source_dir": source_dir is not None,
        "to_be_written": script is None,
        "checkpoints": checkpoint_s3_uri is not None,
        "data": bool(inputs),
    }
    return render("estimator_smp_v1.py.in", values=values, flags=flags)


def _require_launchable(cluster: Cluster, plan: Plan, sdk: str) -> None:
    if sdk == "v3":
        raise ExportError(
            "No cell can be written for version 3 of the SageMaker Python SDK: AWS documents SMP v1 with version 2"
            ' only; use sdk="v2".'
        )
    if sdk not in ("auto", "v2"):
        raise ExportError(f'sdk must be "auto" or "v2", not {sdk!r}.')
    if plan.library != "smp-v1":
        raise ExportError(f"Cells are written for plans of smp-v1, not of {plan.library!r}.")
    if cluster.instance.custom or not cluster.instance.name.startswith("ml."):
        raise ExportError(
            f"{cluster.instance.name!r} is no SageMaker instance type, so no job can be started on it: choose one such"
            " as ml.p4d.24xlarge."
        )
    require_supported_instance(plan.library, cluster.instance)


def _require_sdk_takes(parameters: Mapping[str, Any]) -> None:
    accepted = checks.launch_facts()["sdk"]["placement_strategies"]
    placement = parameters.get("placement_strategy", accepted[0])
    if placement not in accepted:
        raise ExportError(
            f"The SageMaker SDK refuses placement_strategy={placement!r}, though the library takes it: use"
            f" {' or '.join(accepted)}, or pass it to smp.init in the script."
        )
    if "default_partition" in parameters and "partitions" not in parameters:
        raise ExportError(
            "The SageMaker SDK needs `partitions` wherever default_partition is given: add it to the plan."
        )


def _hardware(cluster: Cluster) -> str:
    price = cluster.usd_per_hour
    cost = "price unknown" if price is None else f"about ${price:,.2f} an hour"
    return f"{cluster.nodes} x {cluster.instance.name} ({cluster.gpus} GPUs, {cost})"


def _mpi(instance: Instance) -> dict[str, Any]:
    """Launcher options: one process a GPU. The SDK's default flags (btl_vader) must not be repeated."""
    options = checks.launch_facts()["mpi"]
    launcher: dict[str, Any] = {"enabled": True, "processes_per_host": instance.gpus}
    if instance.efa and instance.gpudirect_rdma:
        launcher["custom_mpi_options"] = options["efa_with_gpudirect_rdma"]
    elif instance.efa and instance.name in options["efa_without_gpudirect_rdma_on"]:
        launcher["custom_mpi_options"] = options["efa"]
    return launcher


def _steps(model: Model, cluster: Cluster, job: Job, plan: Plan) -> int:
    if job.tokens is None:
        return _TRIAL_STEPS
    per_step = global_batch_size(plan, cluster) * model.sequence_length(job.sequence_length)
    return math.ceil(job.tokens / per_step)


def _volume_gb(model: Model, cluster: Cluster, *, checkpoints: bool) -> int:
    """Disk of a node in GB, for instances without disks of their own.

    Three checkpoints (two kept, one being written) of 20 bytes a parameter, spread over the nodes.
    """
    held = 3 * 20 * model.parameter_count / cluster.nodes / 1e9 if checkpoints else 0
    return 100 + math.ceil(held)
