"""Kubernetes manifests of training jobs on HyperPod: what starts, on which GPUs, over which network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.configuration import Configuration, Setting, constant, inner_table, plain_of, undescribed
from smp_advisor.review.reading.values import Collection, Mapping

if TYPE_CHECKING:
    from collections.abc import Iterator

_READ = ("HyperPodPyTorchJob", "PyTorchJob")
_TYPE = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"


def looks_like_manifest(table: Mapping) -> bool:
    """Whether a YAML text is an object of Kubernetes."""
    return {"apiVersion", "kind"} <= table.entries.keys()


def configuration_of_manifest(table: Mapping) -> Configuration:
    """The job of a HyperPodPyTorchJob or of Kubeflow's PyTorchJob."""
    kind = str(constant(table, "kind"))
    if kind not in _READ:
        raise AdvisorError(
            f"The text is a Kubernetes manifest of kind {kind!r:.60}, which is not read: paste a"
            " HyperPodPyTorchJob or PyTorchJob, or the recipe or cell that makes it."
        )
    configuration = Configuration("manifest", f"The {kind}", table.span)
    specs = list(_replicas(table))
    nodes = sum(count for count, _ in specs)
    containers = [container for _, pod in specs for container in _containers(pod)]
    configuration.tables["manifest"] = table
    configuration.settings["instance_count"] = Setting(nodes or 1, table.span)
    for _, pod in specs:
        selector = inner_table(pod, "nodeSelector")
        for name in _TYPE:
            configuration.take(selector, name, "instance_type")
    limits = [_limits(container) for container in containers]
    gpus = [value for values in limits if isinstance(value := values.get(_GPU), int)]
    if gpus:
        configuration.settings["processes_per_host"] = Setting(max(gpus))
    configuration.set(requests_efa=any(EFA in values for values in limits), command=_command(containers))
    entry = next((word for word in _command(containers).split() if word.endswith(".py")), None)
    if entry is not None:
        configuration.set(entry_point=entry)
    why = "its script is in the image or on a volume: check the script itself with check_script"
    configuration.use(undescribed(configuration.title, why))
    return configuration


def _replicas(table: Mapping) -> Iterator[tuple[int, Mapping]]:
    """Pods of the job with their number."""
    spec = inner_table(table, "spec")
    listed = spec.get("replicaSpecs") if spec is not None else None
    groups = list(listed.items) if isinstance(listed, Collection) else []
    kubeflow = inner_table(spec, "pytorchReplicaSpecs")
    groups += [entry.value for entry in kubeflow.entries.values()] if kubeflow is not None else []
    for group in groups:
        if isinstance(group, Mapping):
            pod = inner_table(inner_table(group, "template"), "spec")
            count = constant(group, "replicas")
            if pod is not None:
                yield count if isinstance(count, int) else 1, pod


def _containers(pod: Mapping) -> list[Mapping]:
    listed = pod.get("containers")
    return [item for item in listed.items if isinstance(item, Mapping)] if isinstance(listed, Collection) else []


def _limits(container: Mapping) -> dict[str, Any]:
    resources = plain_of(inner_table(container, "resources") or Mapping())
    return {**resources.get("requests", {}), **resources.get("limits", {})}


def _command(containers: list[Mapping]) -> str:
    words = [
        str(getattr(item, "value", ""))
        for container in containers
        for name in ("command", "args")
        for item in (container.get(name).items if isinstance(container.get(name), Collection) else ())  # type: ignore[union-attr]
    ]
    return " ".join(words)
