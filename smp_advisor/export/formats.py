"""A plan in the formats of other launchers: Kubernetes (Kubeflow's PyTorchJob) and Slurm.

torchrun starts the job on a cluster with a shared file system.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import yaml

from smp_advisor.core.files import data_file, sentence
from smp_advisor.errors import ExportError
from smp_advisor.export.job_cell import summary
from smp_advisor.export.launch import Launch, ScriptCheck, launch
from smp_advisor.export.options import (
    VARIABLE,
    JobOptions,
    option_names,
    require_integer,
    require_patterns,
    require_text,
)
from smp_advisor.export.script import written
from smp_advisor.export.template import Comment, comments, render
from smp_advisor.libraries.library import get_library

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Options of a job on a HyperPod, Kubernetes or Slurm cluster, without those that it would reject or misread."""

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
            path = getattr(self, name)
            require_text(name, path)
            if path is not None and not PurePosixPath(path).is_absolute():
                raise ExportError(f"{name} must be an absolute path on the cluster, for example '/fsx', not {path!r}.")
        require_text("script", self.script)
        require_patterns(self, data_file("export", "clusters")["patterns"])
        require_integer("time_limit_hours", self.time_limit_hours, 8760)
        environment: dict[Any, Any] = dict(self.environment or {})
        for name, value in environment.items():
            if not (isinstance(name, str) and VARIABLE.fullmatch(name) and isinstance(value, str)):
                raise ExportError(f"environment must map names of variables to strings, not {name!r} to {value!r}.")


@dataclass(frozen=True, kw_only=True)
class ClusterJob:
    """One job: its launch, its options and the script that it runs."""

    launch: Launch
    options: ClusterOptions
    files: Mapping[str, str]
    """Texts of the generated script and the files next to it; empty for the user's own."""

    @property
    def name(self) -> str:
        """Name of the job, valid in Kubernetes."""
        if self.options.job_name is not None:
            return self.options.job_name
        name = re.sub(r"[^a-z0-9]+", "-", self.launch.base_job_name.lower())
        return name.strip("-")[: data_file("export", "clusters")["limits"]["name_characters"]].strip("-")

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
        texts = {
            key: json.dumps(value) if isinstance(value, list | dict) else str(value) for key, value in values.items()
        }
        return [part for name, text in texts.items() for part in (f"--{name}", text)]

    @property
    def environment(self) -> dict[str, str]:
        """Variables in which the generated script finds its folders, and those of the user."""
        own = {"SM_MODEL_DIR": f"{self.directory}/model", "SM_OUTPUT_DATA_DIR": f"{self.directory}/output"}
        if self.options.data is not None:
            own["SM_CHANNEL_TRAIN"] = self.options.data
        if self.launch.cluster.instance.efa:
            own["FI_PROVIDER"] = "efa"
        return own | dict(self.options.environment or {})


_CODE = "/opt/smp-advisor"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the mount point that NCCL and data loaders use


def pytorch_job(job: ClusterJob) -> str:
    """Return the manifest: a ConfigMap with the generated script, and the PyTorchJob."""
    content, objection = job.launch, " ".join(job.launch.run.objections)
    if job.options.image_uri is None:
        raise ExportError(sentence("export", "no_image", content=content))
    documents = []
    if job.files:
        longest, texts = data_file("export", "clusters")["limits"]["config_map_bytes"], dict(job.files)
        if sum(len(text.encode()) for text in texts.values()) > longest:
            raise ExportError(f"The script is longer than the {longest:,} bytes of a ConfigMap: pass script= instead.")
        metadata = {"name": f"{job.name}-code", "namespace": job.options.namespace}
        documents.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": texts})
    counts = {"Master": 1, "Worker": content.cluster.nodes - 1}
    spec = {
        "nprocPerNode": str(content.cluster.instance.gpus),
        "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": 3} | ({"suspend": True} if objection else {}),
        "pytorchReplicaSpecs": {kind: _replica(job, count) for kind, count in counts.items() if count},
    }
    metadata = {"name": job.name, "namespace": job.options.namespace}
    documents.append({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata, "spec": spec})
    reason = "The advisor does not expect this job to train, so it is suspended. " if objection else ""
    body = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return f"{comments([*summary(content), reason + objection])}\n{body}"


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """Writes texts of several lines as blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _replica(job: ClusterJob, count: int) -> dict[str, Any]:
    """Return one kind of pods. The operator numbers them in RANK, and names the first in MASTER_ADDR."""
    content, shared = job.launch, job.options.shared_directory
    machine = content.cluster.instance
    resources = {"nvidia.com/gpu": machine.gpus}
    if machine.efa:
        resources["vpc.amazonaws.com/efa"] = data_file("export", "clusters")["efa"].get(machine.name, 1)
    script = f"{_CODE}/{content.script}" if job.files else str(job.options.script)
    torchrun = (
        f'torchrun --nnodes={content.cluster.nodes} --nproc-per-node={machine.gpus} --node-rank="$RANK"'
        ' --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT"'
    )
    steps = [f"mkdir -p {shlex.quote(job.directory)}/{{model,output,checkpoints}}"]
    if job.files and content.requirements.strip():
        steps.append(f"python -m pip install --quiet -r {_CODE}/requirements.txt")
    steps.append(f"exec {torchrun} {shlex.join([script, *job.arguments])}")
    mounts = [{"name": "shared", "mountPath": shared}, {"name": "shm", "mountPath": _SHARED_MEMORY}]
    volumes: list[dict[str, Any]] = [
        {"name": "shared", "persistentVolumeClaim": {"claimName": job.options.volume_claim}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    if job.files:
        mounts.append({"name": "code", "mountPath": _CODE})
        volumes.append({"name": "code", "configMap": {"name": f"{job.name}-code"}})
    container = {
        "name": "pytorch",  # the name that the operator requires
        "image": job.options.image_uri,
        # Kubernetes replaces $(NAME) in commands; $$( is a dollar sign and a parenthesis.
        "command": ["/bin/bash", "-c", " && ".join(steps).replace("$(", "$$(")],
        "env": [{"name": name, "value": value.replace("$(", "$$(")} for name, value in job.environment.items()],
        "resources": {"limits": dict(resources), "requests": dict(resources)},
        "volumeMounts": mounts,
    }
    # Hardware of the user has the label that its administrator chose, if any.
    label = job.options.node_type or (None if machine.custom else machine.name)
    pod: dict[str, Any] = {"nodeSelector": {"node.kubernetes.io/instance-type": label}} if label else {}
    pod |= {"containers": [container], "volumes": volumes}
    return {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": pod}}


_END = "END_OF_FILE_OF_SMP_ADVISOR"


def sbatch(job: ClusterJob) -> str:
    """Return the batch script."""
    content, image, shared = job.launch, job.options.image_uri, job.options.shared_directory
    seconds = content.run.seconds[2] if content.run.seconds else content.run.max_run_seconds
    if any(_END in text for text in job.files.values()):
        raise ExportError("The generated script contains the mark of its end: export its cell instead.")
    lines = []
    for name, text in job.files.items():
        lines += [f"cat >{shlex.quote(f'{job.directory}/{name}')} <<'{_END}'", text.rstrip("\n"), _END]
    container = ["--container-image", image, "--container-mounts", f"{shared}:{shared}"] if image else []
    script = job.options.script or f"{job.directory}/{content.script}"
    texts = {
        "name": job.name,
        "partition": job.options.partition or "",
        "summary": comments(summary(content)),
        "objection": shlex.quote(" ".join(objections)) if (objections := content.run.objections) else "",
        "environment": "\n".join(f"export {name}={shlex.quote(value)}" for name, value in job.environment.items()),
        "directory": shlex.quote(job.directory),
        "files": "\n".join(lines),
        "srun": shlex.join(["srun", *container]),
        "torchrun": f"--nnodes={content.cluster.nodes} --nproc-per-node={content.cluster.instance.gpus}",
        "script": shlex.join([script, *job.arguments]),
    }
    values: dict[str, object] = {name: Comment(text) for name, text in texts.items()}
    values |= {
        "nodes": content.cluster.nodes,
        "gpus": content.cluster.instance.gpus,
        "hours": job.options.time_limit_hours or max(1, math.ceil(seconds / 3600)),
    }
    return render("job.sbatch.in", **values)


FORMATS = {"kubernetes": "job.yaml", "slurm": "job.sbatch"}
"""Formats, and the name of the file that `format_cell` writes."""


def exported(
    model: Model,
    cluster: Cluster,
    job: Job,
    plan: Plan,
    *,
    format: str,  # noqa: A002 - the word that users know
    min_fit_probability: float = 0.95,
    script_check: ScriptCheck | None = None,
    **options: Any,
) -> str:
    """Return the job of a plan for another launcher than SageMaker's.

    A Slurm job of a plan below `min_fit_probability` stops with the reason, and a Kubernetes job is suspended. The
    warnings of `script_check` are in the header. The options are those of `ClusterOptions`.
    """
    if format not in FORMATS:
        raise ExportError(
            f"format must be one of {', '.join(FORMATS)}, not {format!r}; advice.cell() starts a SageMaker job."
        )
    if (library := get_library(plan.library)).of_sagemaker:
        title = library.title
        raise ExportError(f"A {format.title()} job of {title} is not documented by AWS: use library='fsdp'.")
    option_names("A cluster job", ClusterOptions, options)
    chosen = ClusterOptions(**options)
    names = ("script", "image_uri", "trainer", "objective", "extra_hyperparameters")
    job_options, has_data = JobOptions(**{name: getattr(chosen, name) for name in names}), chosen.data is not None
    checked: dict[str, Any] = {"min_fit_probability": min_fit_probability, "script_check": script_check}
    content = launch(model, cluster, job, plan, job_options, elsewhere=True, reads_data=has_data, **checked)
    files = {}
    if content.training is not None:
        weights = "SM_CHANNEL_MODEL" in (chosen.environment or {})
        if content.training.trainer == "trl" and has_data and not weights:
            raise ExportError(sentence("export", "weights_by_variable"))
        files = {content.script: written(content.training), "requirements.txt": content.requirements}
        files |= content.companions
    write = sbatch if format == "slurm" else pytorch_job
    return write(ClusterJob(launch=content, options=chosen, files=files))


def format_cell(text: str, format: str) -> str:  # noqa: A002
    """Notebook cell that writes an exported job into a file."""
    return f"%%writefile {FORMATS[format]}\n{text}"
