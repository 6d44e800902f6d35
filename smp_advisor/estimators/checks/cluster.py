"""EST502 and EST504: degrees and processes, compared with the cluster."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from smp_advisor.estimators.cases import Case, Hit
from smp_advisor.libraries import mismatches
from smp_advisor.libraries.groups import divisors, nearest_divisor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.estimators.cases import Change

_REPORTED = ("ddp is off", "horovod is off", "The container of")
"""Starts of mismatches that other checks report."""
_PIPELINE = ("pipeline_parallel_degree", "partitions")
_REPLICATION = {"pytorch": "ddp", "tensorflow": "horovod"}
"""Parameter that turns on data parallelism, by framework."""


def degrees(case: Case) -> Iterator[Hit]:
    """EST502: processes per node, degrees that do not divide the world size, and other mismatches with the cluster."""
    hits = list(_processes(case))
    if case.world is not None and case.smp_launcher == "torchrun":
        hits += _version_2(case, case.world)
    elif case.world is not None and case.smp_launcher == "mpi":
        hits += _version_1(case, case.world)
    yield from hits or _others(case)


def _others(case: Case) -> Iterator[Hit]:
    """Mismatches that the library's own rules report, if the degrees divide."""
    plan, cluster = case.back.plan, case.back.cluster
    if plan is None or cluster is None or case.processes != cluster.instance.gpus:
        return
    for sentence in mismatches(plan, cluster):
        problem, _, remedy = sentence.rstrip(".").partition(": ")
        if not problem.startswith(_REPORTED):
            values = {"problem": problem, "remedy": remedy[:1].upper() + remedy[1:]}
            yield Hit(id="EST502", span=case.span_of("parameters"), variant="cluster", values=values)


def _processes(case: Case) -> Iterator[Hit]:
    processes, instance, nodes = case.configuration.get("processes_per_host"), case.instance, case.nodes
    if not isinstance(processes, int) or isinstance(processes, bool) or instance is None:
        return
    gpus = instance.gpus
    if processes > gpus or processes < 1:
        variant = "too many processes"
    elif processes < gpus and nodes is not None:
        variant = "idle GPUs on several nodes" if nodes > 1 else "idle GPUs on one node"
    else:
        return
    yield Hit(
        id="EST502",
        span=case.span_of("processes_per_host"),
        variant=variant,
        values={
            "processes": processes,
            "instance": instance.name,
            "gpus": f"{gpus} GPU{'s' if gpus > 1 else ''}",
            "idle": gpus - processes,
        },
        changes=case.setting_change("processes_per_host", gpus),
    )


def _version_1(case: Case, world: int) -> Iterator[Hit]:
    pipeline, tensor = case.parameter(*_PIPELINE), case.parameter("tensor_parallel_degree")
    if pipeline is None or tensor is None:
        return
    if world % (pipeline * tensor):
        new_pipeline, new_tensor = _nearest_pair(world, pipeline, tensor)
        changes: tuple[Change, ...] = ()
        words = []
        if new_tensor != tensor:
            changes += case.change("tensor_parallel_degree", new_tensor)
            words.append(f"tensor_parallel_degree to {new_tensor}")
        if new_pipeline != pipeline:
            for name in _PIPELINE:
                if name in case.configuration.parameters:
                    changes += case.change(name, new_pipeline)
            words.append(f"{_pipeline_name(case)} to {new_pipeline}")
        yield Hit(
            id="EST502",
            span=case.span_of("tensor_parallel_degree", *_PIPELINE),
            variant="product",
            values={
                "world": world,
                "product": _product({_pipeline_name(case): pipeline, "tensor_parallel_degree": tensor}),
                "changes": " and ".join(words),
            },
            changes=changes,
        )
        return
    replicas = world // (pipeline * tensor)
    degree = case.parameter("sharded_data_parallel_degree")
    if degree is not None and replicas % degree:
        nearest = nearest_divisor(replicas, degree)
        yield Hit(
            id="EST502",
            span=case.span_of("sharded_data_parallel_degree"),
            variant="shards",
            values={"degree": degree, "replicas": replicas, "nearest": nearest},
            changes=case.change("sharded_data_parallel_degree", nearest),
        )
    yield from _without_replication(case, replicas)


def _product(degrees: dict[str, int]) -> str:
    """The degrees above 1 and their product: ``hybrid_shard_degree 6 x tensor_parallel_degree 2 = 12``."""
    factors = [f"{name} {degree}" for name, degree in degrees.items() if degree > 1]
    return f"{' x '.join(factors)} = {math.prod(degrees.values())}" if len(factors) > 1 else factors[0]


def _pipeline_name(case: Case) -> str:
    return next((name for name in _PIPELINE if name in case.configuration.parameters), _PIPELINE[0])


def _without_replication(case: Case, replicas: int) -> Iterator[Hit]:
    """More GPUs than one replica uses require ddp, or Horovod with TensorFlow."""
    parameters = case.configuration.values()
    switch = _REPLICATION[case.record.framework] if case.record is not None else ""
    if replicas < 2 or any(map(parameters.get, _REPLICATION.values())):
        return
    if case.configuration.unknown("parameters", switch):
        return
    if parameters.get("tensor_parallel_degree", 1) != 1 or parameters.get("sharded_data_parallel_degree", 1) != 1:
        return  # the rules of those parameters report it
    # The script must use Horovod too, so the estimator alone cannot turn it on.
    changes = case.change(switch, value=True) if switch == _REPLICATION["pytorch"] else ()
    values = {"replicas": replicas, "switch": switch}
    yield Hit(
        id="EST505",
        span=case.span_of(_REPLICATION["pytorch"], *_PIPELINE),
        variant="replicas",
        values=values,
        changes=changes,
    )


def _version_2(case: Case, world: int) -> Iterator[Hit]:
    tensor, expert = case.parameter("tensor_parallel_degree"), case.parameter("expert_parallel_degree")
    context = case.parameter("context_parallel_degree")
    entry = case.configuration.parameters.get("hybrid_shard_degree")
    shards = entry.value if entry is not None else 0
    unknown = case.configuration.unknown("parameters", "hybrid_shard_degree")
    for name, degree in (
        ("tensor_parallel_degree", tensor),
        ("expert_parallel_degree", expert),
        ("context_parallel_degree", context),
    ):
        if degree is not None and world % degree:
            nearest = nearest_divisor(world, degree)
            yield Hit(
                id="EST502",
                span=case.span_of(name),
                variant="degree",
                values={"name": name, "degree": degree, "world": world, "nearest": nearest},
                changes=case.change(name, nearest),
            )
            return
    if (
        unknown
        or tensor is None
        or expert is None
        or isinstance(shards, bool)
        or not isinstance(shards, int)
        or shards < 1
    ):
        return
    if world % (shards * tensor * expert):
        replicas = world // (tensor * expert) if world % (tensor * expert) == 0 else world // tensor
        nearest = nearest_divisor(replicas, shards)
        degrees = {"hybrid_shard_degree": shards, "tensor_parallel_degree": tensor, "expert_parallel_degree": expert}
        yield Hit(
            id="EST502",
            span=case.span_of("hybrid_shard_degree"),
            variant="product",
            values={
                "world": world,
                "product": _product(degrees),
                "changes": f"hybrid_shard_degree to {nearest}",
            },
            changes=case.change("hybrid_shard_degree", nearest),
        )


def tensor_parallelism(case: Case) -> Iterator[Hit]:
    """EST504: degrees that are not powers of two within a node, or do not divide the model."""
    degree = case.parameter("tensor_parallel_degree")
    if degree is None or degree < 2:
        return
    span = case.span_of("tensor_parallel_degree")
    instance, model = case.instance, case.back.model
    heads = model.shape.heads if model is not None else 0
    if heads and heads % degree:
        nearest = max(divisor for divisor in divisors(math.gcd(heads, case.world or heads)) if divisor <= degree)
        yield Hit(
            id="EST504",
            span=span,
            variant="heads",
            values={"degree": degree, "heads": heads, "nearest": nearest},
            changes=case.change("tensor_parallel_degree", nearest),
        )
    elif instance is not None and degree > instance.gpus:
        values = {"degree": degree, "instance": instance.name, "gpus": instance.gpus}
        yield Hit(id="EST504", span=span, variant="node", values=values)
    elif degree & (degree - 1) and not (case.world is not None and case.world % degree):
        lower = 1 << (degree.bit_length() - 1)
        values = {"degree": degree, "lower": lower, "upper": 2 * lower}
        yield Hit(id="EST504", span=span, variant="power of two", values=values)


def _nearest_pair(world: int, pipeline: int, tensor: int) -> tuple[int, int]:
    """The nearest degrees whose product divides the world. The tensor parallel degree changes first."""

    def distance(pair: tuple[int, int]) -> tuple[float, bool, float]:
        stages, ranks = pair
        moved = abs(math.log(stages / pipeline)) + abs(math.log(ranks / tensor))
        return moved, stages != pipeline, -ranks

    pairs = [(stages, ranks) for stages in divisors(world) for ranks in divisors(world // stages)]
    return min(pairs, key=distance)
