"""A job as a PyTorchJob of the Kubeflow training operator, for Amazon EKS and HyperPod on EKS."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import yaml

from smp_advisor.errors import ExportError
from smp_advisor.export import header
from smp_advisor.export.cluster_job import cluster_facts
from smp_advisor.export.literal import comment_lines

if TYPE_CHECKING:
    from smp_advisor.export.cluster_job import ClusterJob

__all__ = ["pytorch_job"]

_CODE = "/opt/smp-advisor"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the mount point that NCCL and data loaders use


def pytorch_job(job: ClusterJob) -> str:
    """The manifest: a ConfigMap with the generated script, and the PyTorchJob.

    Raises
    ------
    ExportError
        The library starts in SageMaker's containers only, there is no image, or the script is too long.
    """
    content = job.launch
    if content.library.of_sagemaker:
        raise ExportError(
            f"A Kubernetes job of {content.library.title} is not documented by AWS: export a HyperPod recipe, or use"
            " library='fsdp'."
        )
    if job.options.image_uri is None:
        raise ExportError(
            "A Kubernetes job requires a container image: pass image_uri= with the address of an image that has PyTorch"
            f" {content.container.framework_version}."
        )
    documents = []
    if job.script:
        data = {"train_smp.py": job.script, "requirements.txt": content.requirements}
        longest = cluster_facts()["limits"]["config_map_bytes"]
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
    head = header.summary_lines(content)
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
        resources["vpc.amazonaws.com/efa"] = cluster_facts()["efa"].get(machine.name, 1)
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
