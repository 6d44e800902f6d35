"""A plan in the formats of other launchers: Kubernetes (Kubeflow's PyTorchJob) and Slurm."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Any

import yaml

from smp_advisor.arguments import require_types
from smp_advisor.errors import ExportError
from smp_advisor.export.cluster_job import cluster_job
from smp_advisor.export.describing import summary_lines
from smp_advisor.export.template import comment_lines
from smp_advisor.files import data_file
from smp_advisor.libraries.plan import Plan

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.export.cluster_job import ClusterJob
    from smp_advisor.export.launch import ScriptCheck
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


_CODE = "/opt/smp-advisor"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the mount point that NCCL and data loaders use


def _require_documented(job: ClusterJob, launcher: str) -> None:
    if job.launch.library.of_sagemaker:
        raise ExportError(
            f"A {launcher} job of {job.launch.library.title} is not documented by AWS: use library='fsdp'."
        )


def pytorch_job(job: ClusterJob) -> str:
    """The manifest: a ConfigMap with the generated script, and the PyTorchJob."""
    content = job.launch
    _require_documented(job, "Kubernetes")
    if job.options.image_uri is None:
        raise ExportError(
            "A Kubernetes job requires a container image: pass image_uri= with the address of an image that has PyTorch"
            f" {content.container.framework_version}."
        )
    documents = []
    if job.script:
        data = {"train_smp.py": job.script, "requirements.txt": content.requirements}
        longest = data_file("export", "clusters")["limits"]["config_map_bytes"]
        if sum(len(text.encode()) for text in data.values()) > longest:
            raise ExportError(f"The script is longer than the {longest:,} bytes of a ConfigMap: pass script= instead.")
        documents.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(job, "-code"), "data": data})
    policy: dict[str, Any] = {"cleanPodPolicy": "None", "backoffLimit": 3}
    if job.objection:
        policy["suspend"] = True
    replicas = {"Master": _replica(job, 1)}
    if content.cluster.nodes > 1:
        replicas["Worker"] = _replica(job, content.cluster.nodes - 1)
    documents.append(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": _metadata(job, ""),
            "spec": {
                "nprocPerNode": str(content.cluster.instance.gpus),
                "runPolicy": policy,
                "pytorchReplicaSpecs": replicas,
            },
        }
    )
    head = summary_lines(content)
    if job.objection:
        reason = f"The advisor does not expect this job to train, so it is suspended. {job.objection}"
        head.append(f"# {comment_lines(reason)}")
    body = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return "\n".join(head) + f"\n{body}"


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """Writes texts of several lines as blocks, and no aliases."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the signature of PyYAML
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _metadata(job: ClusterJob, suffix: str) -> dict[str, str]:
    return {"name": f"{job.name}{suffix}", "namespace": job.options.namespace}


def _replica(job: ClusterJob, count: int) -> dict[str, Any]:
    """One kind of pods. The operator numbers them in RANK, and names the first in MASTER_ADDR."""
    content = job.launch
    machine = content.cluster.instance
    resources: dict[str, int] = {"nvidia.com/gpu": machine.gpus}
    if machine.efa:
        resources["vpc.amazonaws.com/efa"] = data_file("export", "clusters")["efa"].get(machine.name, 1)
    script = f"{_CODE}/train_smp.py" if job.script else str(job.options.script)
    torchrun = (
        f'torchrun --nnodes={content.cluster.nodes} --nproc-per-node={machine.gpus} --node-rank="$RANK"'
        ' --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT"'
    )
    steps = [f"mkdir -p {shlex.quote(job.directory)}/{{model,output,checkpoints}}"]
    if job.script and content.requirements.strip():
        steps.append(f"python -m pip install --quiet -r {_CODE}/requirements.txt")
    steps.append(f"exec {torchrun} {shlex.join([script, *job.arguments])}")
    mounts = [
        {"name": "shared", "mountPath": job.options.shared_directory},
        {"name": "shm", "mountPath": _SHARED_MEMORY},
    ]
    volumes: list[dict[str, Any]] = [
        {"name": "shared", "persistentVolumeClaim": {"claimName": job.options.volume_claim}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    if job.script:
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
    return {
        "replicas": count,
        "restartPolicy": "OnFailure",
        "template": {
            "spec": {
                **({"nodeSelector": {"node.kubernetes.io/instance-type": label}} if label else {}),
                "containers": [container],
                "volumes": volumes,
            }
        },
    }


_END = "END_OF_FILE_OF_SMP_ADVISOR"


def sbatch(job: ClusterJob) -> str:
    """The batch script."""
    content = job.launch
    _require_documented(job, "Slurm")
    seconds = content.run.seconds[2] if content.run.seconds else content.run.max_run_seconds
    hours = job.options.time_limit_hours or max(1, math.ceil(seconds / 3600))
    directives = {
        "job-name": job.name,
        "nodes": str(content.cluster.nodes),
        "ntasks-per-node": "1",
        "gpus-per-node": str(content.cluster.instance.gpus),
        "exclusive": "",
        "time": f"{hours}:00:00",
        "output": f"{job.name}-%j.log",
        **({"partition": job.options.partition} if job.options.partition else {}),
    }
    lines = [
        "#!/usr/bin/env bash",
        *(f"#SBATCH --{name}={value}" if value else f"#SBATCH --{name}" for name, value in directives.items()),
        *summary_lines(content),
        "set -euo pipefail",
        "",
    ]
    if job.objection:
        lines += [
            "# The advisor does not expect this job to train. To start it anyway, set this variable to yes.",
            "START_ANYWAY=no",
            'if [ "$START_ANYWAY" != yes ]; then',
            f"    echo {shlex.quote(job.objection)} >&2",
            "    exit 1",
            "fi",
            "",
        ]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in job.environment.items()]
    lines += [f"mkdir -p {shlex.quote(job.directory)}/{{model,output,checkpoints}}", ""]
    script = job.options.script or f"{job.directory}/train_smp.py"
    if job.script:
        if _END in job.script:
            raise ExportError("The generated script contains the mark of its end: export its cell instead.")
        lines += [f"cat >{shlex.quote(script)} <<'{_END}'", job.script.rstrip("\n"), _END]
        lines += [f"cat >{shlex.quote(f'{job.directory}/requirements.txt')} <<'{_END}'"]
        lines += [job.launch.requirements.rstrip("\n"), _END, ""]
    container = ["--container-image", job.options.image_uri] if job.options.image_uri else []
    if container:
        container += ["--container-mounts", f"{job.options.shared_directory}:{job.options.shared_directory}"]
    torchrun = [
        "torchrun",
        f"--nnodes={content.cluster.nodes}",
        f"--nproc-per-node={content.cluster.instance.gpus}",
        "--rdzv-backend=c10d",
    ]
    lines += [
        "# Packages of requirements.txt have to be installed on the nodes or in the image.",
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)',
        " \\\n    ".join(
            [
                shlex.join(["srun", *container]),
                f'{shlex.join(torchrun)} --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$head:29500"',
                shlex.join([script, *job.arguments]),
            ]
        ),
    ]
    return "\n".join(lines) + "\n"


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
    """The job of a plan for another launcher than SageMaker's.

    Parameters
    ----------
    model, cluster, job, plan
        The model, the hardware, the training job and the plan.
    format
        ``"kubernetes"`` (a PyTorchJob of the Kubeflow training operator) or ``"slurm"`` (a batch script), both for FSDP
        and DDP.
    min_fit_probability
        Required probability that the plan fits. A Slurm job below it stops with the reason, and a Kubernetes job is
        suspended.
    script_check
        Check of a script of the user, whose warnings are in the header.
    options
        Options of the job, see `smp_advisor.export.cluster_job.ClusterOptions`.

    Raises
    ------
    ExportError
        The format cannot express the job, or an option is invalid.
    """
    require_types({"format": (format, str), "plan": (plan, Plan)}, "export")
    if format not in FORMATS:
        raise ExportError(f"format must be one of {', '.join(FORMATS)}, not {format!r}.")
    content = cluster_job(
        model, cluster, job, plan, min_fit_probability=min_fit_probability, script_check=script_check, **options
    )
    if format == "slurm":
        return sbatch(content)
    return pytorch_job(content)


def format_cell(text: str, format: str) -> str:  # noqa: A002
    """Notebook cell that writes an exported job into a file."""
    return f"%%writefile {FORMATS[format]}\n{text}"
