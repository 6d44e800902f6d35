"""EST502 and EST504: degrees and processes, compared with the cluster."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from smp_advisor.estimators.configuration import count
from smp_advisor.libraries import mismatches
from smp_advisor.libraries.groups import divisors, nearest_divisor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.estimators.cases import Case, Change, Hit

_REPORTED = ("ddp is off", "horovod is off", "The container of")
"""Starts of mismatches that other checks report."""
_PIPELINE = ("pipeline_parallel_degree", "partitions")


def degrees(case: Case) -> Iterator[Hit]:
    """EST502: processes per node, degrees that do not divide the world size, and other mismatches with the cluster."""
    hits = list(_processes(case))
    if case.world is not None and case.smp_launcher == "torchrun":
        hits += _version_2(case, case.world)
    elif case.world is not None and case.smp_launcher == "mpi":
        hits += _version_1(case, case.world)
    yield from hits
    plan, cluster = case.back.plan, case.back.cluster
    if hits or plan is None or cluster is None or case.processes != cluster.instance.gpus:
        return
    for sentence in mismatches(plan, cluster):  # of the library's own rules
        problem, _, remedy = sentence.rstrip(".").partition(": ")
        if not problem.startswith(_REPORTED):
            remedy = remedy[:1].upper() + remedy[1:]
            yield case.hit("EST502", "cluster", "parameters", problem=problem, remedy=remedy)


def _processes(case: Case) -> Iterator[Hit]:
    processes, instance, nodes = case.configuration.get("processes_per_host"), case.instance, case.nodes
    if not isinstance(processes, int) or isinstance(processes, bool) or instance is None:
        return
    gpus = instance.gpus
    if processes > gpus or processes < 1:
        variant = "too many processes"
    elif processes < gpus and nodes is not None and case.configuration.form != "manifest":  # pods share an instance
        variant = "idle GPUs on several nodes" if nodes > 1 else "idle GPUs on one node"
    else:
        return
    values: dict[str, Any] = {"processes": processes, "instance": instance.name, "idle": gpus - processes}
    values["gpus"] = f"{gpus} GPU{'s' if gpus > 1 else ''}"
    fixes = case.setting_change("processes_per_host", gpus)
    yield case.hit("EST502", variant, "processes_per_host", fixes=fixes, **values)


def _version_1(case: Case, world: int) -> Iterator[Hit]:
    pipeline, tensor = case.parameter(*_PIPELINE), case.parameter("tensor_parallel_degree")
    if pipeline is None or tensor is None:
        return
    if world % (pipeline * tensor):
        new_pipeline, new_tensor = _nearest_pair(world, pipeline, tensor)
        written = [name for name in _PIPELINE if name in case.configuration.parameters]
        pipeline_name = next(iter(written), _PIPELINE[0])
        fixes: tuple[Change, ...] = ()
        words = []
        if new_tensor != tensor:
            fixes += case.change("tensor_parallel_degree", new_tensor)
            words.append(f"tensor_parallel_degree to {new_tensor}")
        if new_pipeline != pipeline:
            for name in written:
                fixes += case.change(name, new_pipeline)
            words.append(f"{pipeline_name} to {new_pipeline}")
        product = _product({pipeline_name: pipeline, "tensor_parallel_degree": tensor})
        values: dict[str, Any] = {"world": world, "product": product, "changes": " and ".join(words)}
        yield case.hit("EST502", "product", "tensor_parallel_degree", *_PIPELINE, fixes=fixes, **values)
        return
    replicas = world // (pipeline * tensor)
    degree = case.parameter("sharded_data_parallel_degree")
    if degree is not None and replicas % degree:
        nearest = nearest_divisor(replicas, degree)
        fixes = case.change("sharded_data_parallel_degree", nearest)
        values = {"degree": degree, "replicas": replicas, "nearest": nearest}
        yield case.hit("EST502", "shards", "sharded_data_parallel_degree", fixes=fixes, **values)
    # More GPUs than one replica uses require ddp, or Horovod with TensorFlow.
    parameters = case.configuration.values()
    switch = case.record.replication if case.record is not None else ""
    if replicas < 2 or parameters.get(switch) or case.configuration.unknown("parameters", switch):
        return
    if parameters.get("tensor_parallel_degree", 1) != 1 or parameters.get("sharded_data_parallel_degree", 1) != 1:
        return  # the rules of those parameters report it
    # The script must use Horovod too, so the estimator alone cannot turn it on.
    fixes = case.change(switch, value=True) if case.configuration.framework != "tensorflow" else ()
    yield case.hit("EST505", "replicas", switch, *_PIPELINE, replicas=replicas, switch=switch, fixes=fixes)


def _product(degrees: dict[str, int]) -> str:
    """Return the degrees above 1 and their product: ``hybrid_shard_degree 6 x tensor_parallel_degree 2 = 12``."""
    factors = [f"{name} {degree}" for name, degree in degrees.items() if degree > 1]
    return f"{' x '.join(factors)} = {math.prod(degrees.values())}" if len(factors) > 1 else factors[0]


def _version_2(case: Case, world: int) -> Iterator[Hit]:
    for name in ("tensor_parallel_degree", "expert_parallel_degree", "context_parallel_degree"):
        degree = case.parameter(name)
        if degree is not None and world % degree:
            nearest = nearest_divisor(world, degree)
            values: dict[str, Any] = {"name": name, "degree": degree, "world": world, "nearest": nearest}
            yield case.hit("EST502", "degree", name, fixes=case.change(name, nearest), **values)
            return
    tensor, expert = case.parameter("tensor_parallel_degree"), case.parameter("expert_parallel_degree")
    entry = case.configuration.parameters.get("hybrid_shard_degree")
    shards = count(entry.value) if entry is not None else None
    unknown = case.configuration.unknown("parameters", "hybrid_shard_degree")
    if unknown or tensor is None or expert is None or shards is None:
        return
    if world % (shards * tensor * expert):
        replicas = world // (tensor * expert) if world % (tensor * expert) == 0 else world // tensor
        nearest = nearest_divisor(replicas, shards)
        degrees = {"hybrid_shard_degree": shards, "tensor_parallel_degree": tensor, "expert_parallel_degree": expert}
        values = {"world": world, "product": _product(degrees), "changes": f"hybrid_shard_degree to {nearest}"}
        fixes = case.change("hybrid_shard_degree", nearest)
        yield case.hit("EST502", "product", "hybrid_shard_degree", fixes=fixes, **values)


def tensor_parallelism(case: Case) -> Iterator[Hit]:
    """EST504: degrees that are not powers of two within a node, or do not divide the model."""
    degree = case.parameter("tensor_parallel_degree")
    if degree is None or degree < 2:
        return
    name = "tensor_parallel_degree"
    instance, model = case.instance, case.back.model
    heads = model.shape.heads if model is not None else 0
    if heads and heads % degree:
        nearest = max(divisor for divisor in divisors(math.gcd(heads, case.world or heads)) if divisor <= degree)
        values: dict[str, Any] = {"degree": degree, "heads": heads, "nearest": nearest}
        yield case.hit("EST504", "heads", name, fixes=case.change(name, nearest), **values)
    elif instance is not None and degree > instance.gpus:
        yield case.hit("EST504", "node", name, degree=degree, instance=instance.name, gpus=instance.gpus)
    elif degree & (degree - 1) and not (case.world is not None and case.world % degree):
        lower = 1 << (degree.bit_length() - 1)
        yield case.hit("EST504", "power of two", name, degree=degree, lower=lower, upper=2 * lower)


def _nearest_pair(world: int, pipeline: int, tensor: int) -> tuple[int, int]:
    """Return the nearest degrees whose product divides the world. The tensor parallel degree changes first."""

    def distance(pair: tuple[int, int]) -> tuple[float, bool, float]:
        stages, ranks = pair
        moved = abs(math.log(stages / pipeline)) + abs(math.log(ranks / tensor))
        return moved, stages != pipeline, -ranks

    pairs = [(stages, ranks) for stages in divisors(world) for ranks in divisors(world // stages)]
    return min(pairs, key=distance)
