"""The content of a job outside SageMaker: torchrun starts it on a cluster with a shared file system."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ExportError
from smp_advisor.export import checks
from smp_advisor.export.launch import Launch, launch
from smp_advisor.export.options import JobOptions
from smp_advisor.export.script import training_script
from smp_advisor.files import data_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.export.launch import ScriptCheck
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]{0,400}")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_PARTITION = re.compile(r"[A-Za-z0-9_.,-]{1,100}")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,60}[A-Za-z0-9])?")
_ENVIRONMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,100}")


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Options of a job on a HyperPod, Kubernetes or Slurm cluster.

    Raises
    ------
    ExportError
        The cluster would reject or misread an option.
    """

    script: str | None = None
    """Path of your training script on the cluster; None for the generated script."""
    data: str | None = None
    """Directory of the training data on the shared file system; None for random data."""
    shared_directory: str = ""
    """Directory of the shared file system, the same on all nodes; empty for ``/fsx``."""
    job_name: str | None = None
    """Name of the job; None for one derived from the name of the model."""
    image_uri: str | None = None
    """Container image; required for Kubernetes."""
    namespace: str = ""
    """Namespace of the job in Kubernetes; empty for ``default``."""
    volume_claim: str = ""
    """Persistent volume claim of the shared file system in Kubernetes; empty for ``fsx-claim``."""
    node_type: str | None = None
    """Label ``node.kubernetes.io/instance-type`` of the nodes; None for the name of the instance with ``ml.``, as on
    HyperPod, and for no choice of nodes on hardware of your own."""
    partition: str | None = None
    """Partition of the job in Slurm."""
    time_limit_hours: int | None = None
    """Time limit in Slurm; None for the run's duration at the upper end of its interval."""
    trainer: str | None = None
    """Trainer of the generated script, see `JobOptions`."""
    objective: str | None = None
    """Objective of fine-tuning, see `JobOptions`."""
    environment: Mapping[str, str] | None = None
    """Environment variables of the processes."""
    extra_hyperparameters: Mapping[str, Any] | None = None
    """Additional options of the script."""

    def __post_init__(self) -> None:
        defaults = data_file("export", "clusters")["defaults"]
        for name, key in (("shared_directory", "directory"), ("namespace", "namespace"), ("volume_claim", "claim")):
            object.__setattr__(self, name, getattr(self, name) or defaults[key])
        for name in ("shared_directory", "data"):
            _check_directory(name, getattr(self, name))
        if self.script is not None:
            checks.text("script", self.script)
        for name in ("job_name", "namespace", "volume_claim"):
            _check_name(name, getattr(self, name))
        if self.job_name is not None and not self.job_name[0].isalpha():
            # Kubernetes derives the names of services from it.
            raise ExportError(f"job_name must start with a letter, unlike {self.job_name!r}.")
        _check_text("partition", self.partition, _PARTITION, "the name of a partition of Slurm")
        _check_text("node_type", self.node_type, _LABEL, "the label of a node, for example 'p4d.24xlarge'")
        _check_text("image_uri", self.image_uri, _IMAGE, "the address of an image")
        if self.time_limit_hours is not None:
            checks.integer("time_limit_hours", self.time_limit_hours, 8760)
        environment: dict[Any, Any] = dict(self.environment or {})
        for name, value in environment.items():
            if not (isinstance(name, str) and _ENVIRONMENT.fullmatch(name) and isinstance(value, str)):
                raise ExportError(f"environment must map names of variables to strings, not {name!r} to {value!r}.")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> ClusterOptions:
        """Create options from keyword arguments."""
        checks.option_names("A cluster job", cls, options)
        return cls(**options)


def _check_directory(name: str, value: object) -> None:
    if value is not None and not PurePosixPath(checks.text(name, value)).is_absolute():
        raise ExportError(f"{name} must be an absolute path on the cluster, for example '/fsx', not {value!r}.")


def _check_name(name: str, value: object) -> None:
    longest = data_file("export", "clusters")["limits"]["name_characters"]
    if value is not None and not (isinstance(value, str) and len(value) <= longest and _NAME.fullmatch(value)):
        raise ExportError(
            f"{name} must have up to {longest} lowercase letters, digits and inner dashes, not {value!r}."
        )


def _check_text(name: str, value: object, pattern: re.Pattern[str], meaning: str) -> None:
    if value is not None and not (isinstance(value, str) and pattern.fullmatch(value)):
        raise ExportError(f"{name} must be {meaning}, not {value!r}.")


@dataclass(frozen=True, kw_only=True)
class ClusterJob:
    """One job: its launch, its options and the script that it runs."""

    launch: Launch
    options: ClusterOptions
    script: str
    """Text of the generated script; empty for the user's own."""

    @property
    def name(self) -> str:
        """Name of the job, valid in Kubernetes."""
        if self.options.job_name is not None:
            return self.options.job_name
        longest = data_file("export", "clusters")["limits"]["name_characters"]
        return re.sub(r"[^a-z0-9]+", "-", self.launch.base_job_name.lower()).strip("-")[:longest].strip("-")

    @property
    def directory(self) -> str:
        """Folder of the job on the shared file system."""
        return str(PurePosixPath(self.options.shared_directory) / "smp-advisor" / self.name)

    @property
    def arguments(self) -> list[str]:
        """Arguments of the script, as SageMaker passes hyperparameters."""
        values = dict(self.launch.hyperparameters)
        if "checkpoint_every" in values:
            values["checkpoint_directory"] = f"{self.directory}/checkpoints"
        return [part for name, value in values.items() for part in (f"--{name}", _as_argument(value))]

    @property
    def environment(self) -> dict[str, str]:
        """Variables in which the generated script finds its folders, and those of the user."""
        own = {"SM_MODEL_DIR": f"{self.directory}/model", "SM_OUTPUT_DATA_DIR": f"{self.directory}/output"}
        if self.options.data is not None:
            own["SM_CHANNEL_TRAIN"] = self.options.data
        machine = self.launch.cluster.instance
        if machine.efa:
            own["FI_PROVIDER"] = "efa"
        return own | dict(self.options.environment or {})

    @property
    def objection(self) -> str:
        """Why the plan is not expected to run; empty if it is."""
        return " ".join(self.launch.run.objections)


def _as_argument(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value) if isinstance(value, list | dict) else str(value)


def cluster_job(
    model: Model,
    cluster: Cluster,
    job: Job,
    plan: Plan,
    *,
    min_fit_probability: float,
    script_check: ScriptCheck | None = None,
    **options: Any,
) -> ClusterJob:
    """Collect the content of a job."""
    chosen = ClusterOptions.of(options)
    names = ("script", "image_uri", "trainer", "objective", "extra_hyperparameters")
    own = JobOptions(**{name: getattr(chosen, name) for name in names})
    content = launch(
        model,
        cluster,
        job,
        plan,
        own,
        min_fit_probability=min_fit_probability,
        on_sagemaker=False,
        reads_data=chosen.data is not None,
        script_check=script_check,
    )
    text = ""
    if content.training is not None:
        weights = "SM_CHANNEL_MODEL" in (chosen.environment or {})
        if content.training.trainer == "trl" and chosen.data is not None and not weights:
            raise ExportError(
                "Fine-tuning starts from weights: pass environment={'SM_CHANNEL_MODEL': ...} with the directory of a"
                " model of transformers (save_pretrained)."
            )
        text = training_script(model, cluster, job, plan, trainer=chosen.trainer, objective=chosen.objective)
    return ClusterJob(launch=content, options=chosen, script=text)
