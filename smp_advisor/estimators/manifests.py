"""Kubernetes manifests of training jobs on HyperPod: what starts, on which GPUs, over which network."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.arguments.amounts import digits_as_number
from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.configuration import (
    OF_ACCELERATE,
    Configuration,
    Gap,
    Setting,
    constant,
    count,
    inner_table,
    plain_of,
    section,
)
from smp_advisor.estimators.shell import take_command
from smp_advisor.review.reading.commands import commands_of, started
from smp_advisor.review.reading.values import Collection, Constant, Entry, Mapping, Result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.reading.values import Value

_READ = ("HyperPodPyTorchJob", "PyTorchJob")
_TYPE = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_AFFINITY = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
_NEURON = "aws.amazon.com/neuron"
_GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"


def looks_like_manifest(table: Mapping) -> bool:
    """Return whether a YAML text is an object of Kubernetes."""
    return {"apiVersion", "kind"} <= table.entries.keys()


def configuration_of_manifest(table: Mapping) -> Configuration:
    """Return the job of a HyperPodPyTorchJob or of Kubeflow's PyTorchJob."""
    kind = str(constant(table, "kind"))
    if kind not in _READ:
        raise AdvisorError(
            f"The text is a Kubernetes manifest of kind {kind!r:.60}, which is not read: paste a"
            " HyperPodPyTorchJob or PyTorchJob, or the recipe or cell that makes it."
        )
    configuration = Configuration("manifest", f"The {kind}", table.span)
    # Nodes are the sum of replicas: the master is one of them.
    specs = list(_replicas(table))
    numbers = [number for number, _ in specs]
    nodes = None if None in numbers else sum(filter(None, numbers))
    listed = [getattr(pod.get("containers"), "items", []) for _, pod in specs]
    containers = [item for items in listed for item in items if isinstance(item, Mapping)]
    configuration.tables["manifest"] = table
    if nodes is None:
        configuration.gaps.append(Gap("instance_count", "the manifest has a variable in its place", table.span))
    else:
        configuration.settings["instance_count"] = Setting(nodes or 1, table.span)
    for _, pod in specs:
        selector = inner_table(pod, "nodeSelector")
        for name in _TYPE:
            configuration.take(selector, name, "instance_type")
        terms = _tables(section(plain_of(pod), *_AFFINITY), "nodeSelectorTerms")
        rules = [rule for term in terms for rule in _tables(term, "matchExpressions") if rule.get("key") in _TYPE]
        kinds = {str(kind) for rule in rules if rule.get("operator") == "In" for kind in rule.get("values") or ()}
        if kinds and configuration.get("instance_type", min(kinds)) not in kinds:
            del configuration.settings["instance_type"]
            configuration.gaps.append(Gap("instance_type", "nodeSelector and affinity exclude each other", table.span))
        elif len(kinds) == 1:
            configuration.set(instance_type=kinds.pop())
    if re.search("[$<{]", str(configuration.get("instance_type"))):  # a template, as those of envsubst
        del configuration.settings["instance_type"]
        configuration.gaps.append(Gap("instance_type", "the manifest has a variable in its place", table.span))
    # GPUs of a node are a limit, a request, or both.
    resources = [plain_of(inner_table(container, "resources") or Mapping()) for container in containers]
    limits = [section(plain, "requests") | section(plain, "limits") for plain in resources]
    gpus = [number for values in limits if (number := count(digits_as_number(values.get(_GPU))))]
    if gpus:
        configuration.settings["processes_per_host"] = Setting(max(gpus))
    images = " ".join(str(constant(container, "image")) for container in containers)
    configuration.set(
        neuron="neuron" in images or any(name.startswith(_NEURON) for values in limits for name in values)
    )
    names: dict[str, str] = {}
    words: list[str] = []
    for plain in map(plain_of, containers):
        variables = _tables(plain, "env")
        names |= {
            str(variable["name"]): str(variable["value"])
            for variable in variables
            if {"name", "value"} <= variable.keys()
        }
        words += [str(word) for name in ("command", "args") for word in plain.get(name) or ()]
    text = re.sub(r"\$\((\w+)\)", r"${\1}", " ".join(words))
    exported = {name: value for name, value in names.items() if name.startswith(OF_ACCELERATE)}
    take_command(configuration, started(commands_of(text, **names) or [[]]), exported, table.span)
    configuration.set(requests_efa=any(EFA in values for values in limits))
    return configuration


def _tables(plain: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [item for item in plain.get(name) or () if isinstance(item, dict)]


def table_of_call(call: Mapping, kind: str = "HyperPodPyTorchJob") -> Mapping:
    """Return the manifest that a ``HyperPodPytorchJob(...)`` of the HyperPod SDK makes."""
    return Mapping({"kind": Entry(Constant(kind)), "spec": Entry(_camel(call))}, call.span, call.open)


def _camel(value: Value) -> Value:
    """Objects of the SDK as tables with the names of the manifest: ``replica_specs`` is ``replicaSpecs``."""
    if isinstance(value, Result):
        return _camel(value.call.passed)
    if isinstance(value, Collection):
        return Collection([_camel(item) for item in value.items], value.span, value.open)
    if not isinstance(value, Mapping):
        return value
    by_name = {
        re.sub(r"_(\w)", lambda match: match[1].upper(), str(key)): entry for key, entry in value.entries.items()
    }
    entries = {name: replace(entry, value=_camel(entry.value)) for name, entry in by_name.items()}
    return Mapping(entries, value.span, value.open)


def _replicas(table: Mapping) -> Iterator[tuple[int | None, Mapping]]:
    """Pods of the job with their number; None if a variable stands for it."""
    spec = inner_table(table, "spec")
    listed = spec.get("replicaSpecs") if spec is not None else None
    groups = list(listed.items) if isinstance(listed, Collection) else []
    kubeflow = inner_table(spec, "pytorchReplicaSpecs")
    groups += [entry.value for entry in kubeflow.entries.values()] if kubeflow is not None else []
    for group in groups:
        if isinstance(group, Mapping):
            pod = inner_table(inner_table(group, "template"), "spec")
            if pod is not None:
                written = digits_as_number(constant(group, "replicas"))
                number = written if "replicas" in group.entries else 1
                yield number if isinstance(number, int) else None, pod
