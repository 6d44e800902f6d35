"""One training job as data: what its cell says, whichever SDK it is written for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.export import checks
from smp_advisor.export.script import SCRIPT_NAME, builds, require_writable, requirements
from smp_advisor.export.storage import CHECKPOINT_CHANNEL, FileSystem, Location
from smp_advisor.libraries.groups import global_batch_size
from smp_advisor.libraries.support import require_supported_instance
from smp_advisor.libraries.version import image

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.export.options import JobOptions
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.libraries.version import Image
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["Launch", "launch"]

_TRIAL_STEPS = 100
"""Steps of a job that names no number of tokens: enough to see that it fits and how fast it is."""
_STEPS_BETWEEN_CHECKPOINTS = 500

_OWN_SCRIPT = "train.py"
"""Stands for the script of a model that is the user's code, until they name it."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What a job's cell says."""

    cluster: Cluster
    plan: Plan
    options: JobOptions
    container: Image
    generated: bool
    """Whether the script is the one that `script_cell` writes."""
    script: str
    requirements: str
    """Of the generated script, for the container's pip."""
    hyperparameters: dict[str, Any]
    """The script's options, without the library's parameters."""
    inputs: dict[str, Location]
    checkpoint_s3_uri: str | None
    base_job_name: str
    volume_gb: int

    @property
    def processes(self) -> int:
        """Processes in all: one a GPU."""
        return self.cluster.gpus


def launch(model: Model, cluster: Cluster, job: Job, plan: Plan, options: JobOptions) -> Launch:
    """Work out the job of a plan.

    Raises
    ------
    ExportError
        SageMaker would refuse the job, or misread it.
    InstanceError
        The plan's library does not run on the cluster's instances.
    """
    checks.sagemaker_instance(cluster)
    require_supported_instance(plan.library, cluster.instance)
    generated = options.script is None and builds(model)
    if generated:
        require_writable(model, cluster, job, plan)
    own: dict[str, Any] = {}
    if options.plan_hyperparameters:
        length = {"sequence_length": job.sequence_length} if model.reads_tokens else {}
        own = plan.hyperparameters | length | {"max_steps": _steps(model, cluster, job, plan)}
    inputs = options.channels
    place = options.checkpoint_place
    if place is not None and options.plan_hyperparameters:
        own["checkpoint_every"] = _STEPS_BETWEEN_CHECKPOINTS
    if isinstance(place, FileSystem):
        inputs[CHECKPOINT_CHANNEL] = place
        own["checkpoint_directory"] = f"/opt/ml/input/data/{CHECKPOINT_CHANNEL}"
    return Launch(
        cluster=cluster,
        plan=plan,
        options=options,
        container=image(plan.library, plan.version),
        generated=generated,
        script=SCRIPT_NAME if generated else options.script or _OWN_SCRIPT,
        requirements=requirements(model, plan) if generated else "",
        hyperparameters=checks.hyperparameters(own, options.extra_hyperparameters, plan.parameters),
        inputs=inputs,
        checkpoint_s3_uri=place if isinstance(place, str) else None,
        base_job_name=checks.base_job_name(options.job_name, model.name),
        volume_gb=options.volume_gb or _volume_gb(model, cluster, checkpoints=isinstance(place, str)),
    )


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
