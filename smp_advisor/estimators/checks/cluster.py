"""EST502, EST504: degrees and processes against the cluster."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from smp_advisor.estimators.checks.case import Case, Hit
from smp_advisor.library import mismatches
from smp_advisor.library.world import divisors, nearest_divisor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.estimators.checks.case import Change

__all__ = ["degrees", "tensor_parallelism"]

_PIPELINE = ("pipeline_parallel_degree", "partitions")
_STOPS = "The library stops every rank at its start, when the cluster is already paid for"


def degrees(case: Case) -> Iterator[Hit]:
    """EST502: processes a node, degrees that divide the world size, and whatever else does not suit the cluster."""
    found = list(_processes(case))
    if case.world is not None and case.library == "smp-v2":
        found += _version_2(case, case.world)
    elif case.world is not None and case.library.startswith("smp-v1"):
        found += _version_1(case, case.world)
    yield from found or _others(case)


def _others(case: Case) -> Iterator[Hit]:
    """What the library's own rules of plans and clusters say of a plan whose degrees divide."""
    plan, cluster = case.back.plan, case.back.cluster
    if plan is None or cluster is None or case.processes != cluster.instance.gpus:
        return
    for sentence in mismatches(plan, cluster):
        what, _, remedy = sentence.rstrip(".").partition(": ")
        if not what.startswith(("ddp is off", "horovod is off")):
            values = {"what": what, "consequence": _STOPS, "remedy": remedy[:1].upper() + remedy[1:]}
            yield Hit(id="EST502", span=case.span_of("parameters"), values=values)


def _processes(case: Case) -> Iterator[Hit]:
    stated, instance, nodes = case.configuration.get("processes_per_host"), case.instance, case.nodes
    if not isinstance(stated, int) or isinstance(stated, bool) or instance is None:
        return
    changes = case.setting_change("processes_per_host", instance.gpus)
    what = f"{stated} processes a host and {instance.name} has {instance.gpus} GPU{'s' if instance.gpus > 1 else ''}"
    remedy = f"One process a GPU: {instance.gpus}"
    if stated > instance.gpus or stated < 1:
        consequence = "MPI does not start more processes than there are devices: the job fails at once"
        values = {"what": what, "consequence": consequence, "remedy": remedy}
        yield Hit(id="EST502", span=case.span_of("processes_per_host"), values=values, changes=changes)
    elif stated < instance.gpus and nodes is not None:
        several = nodes > 1
        consequence = (
            "Over several nodes the job can crash with network time-outs, and GPUs that are paid for stand idle"
            if several
            else f"{instance.gpus - stated} GPUs that are paid for stand idle"
        )
        yield Hit(
            id="EST502",
            span=case.span_of("processes_per_host"),
            values={"what": what, "consequence": consequence, "remedy": remedy},
            severity="error" if several else "warning",
            changes=changes,
        )


def _version_1(case: Case, world: int) -> Iterator[Hit]:
    pipeline, tensor = case.parameter(*_PIPELINE), case.parameter("tensor_parallel_degree")
    if pipeline is None or tensor is None:
        return
    if world % (pipeline * tensor):
        what = (
            f"{world} processes are not a multiple of pipeline_parallel_degree x tensor_parallel_degree"
            f" ({pipeline} x {tensor} = {pipeline * tensor})"
        )
        new_pipeline, new_tensor = _nearest_pair(world, pipeline, tensor)
        changes: tuple[Change, ...] = ()
        said = []
        if new_tensor != tensor:
            changes += case.change("tensor_parallel_degree", new_tensor)
            said.append(f"tensor_parallel_degree to {new_tensor}")
        if new_pipeline != pipeline:
            for name in _PIPELINE:
                if name in case.configuration.parameters:
                    changes += case.change(name, new_pipeline)
            said.append(f"{_pipeline_name(case)} to {new_pipeline}")
        values = {"what": what, "consequence": _STOPS, "remedy": f"Set {' and '.join(said)}"}
        yield Hit(id="EST502", span=case.span_of("tensor_parallel_degree", *_PIPELINE), values=values, changes=changes)
        return
    replicas = world // (pipeline * tensor)
    shards = case.parameter("sharded_data_parallel_degree")
    if shards is not None and replicas % shards:
        near = nearest_divisor(replicas, shards)
        values = {
            "what": f"sharded_data_parallel_degree {shards} does not divide the {replicas} data-parallel replicas",
            "consequence": _STOPS,
            "remedy": f"Set it to {near}",
        }
        changes = case.change("sharded_data_parallel_degree", near)
        yield Hit(id="EST502", span=case.span_of("sharded_data_parallel_degree"), values=values, changes=changes)
    yield from _without_replication(case, replicas)


def _pipeline_name(case: Case) -> str:
    return next((name for name in _PIPELINE if name in case.configuration.parameters), _PIPELINE[0])


def _without_replication(case: Case, replicas: int) -> Iterator[Hit]:
    """More GPUs than one replica takes need ddp, or Horovod with TensorFlow."""
    known = case.configuration.values()
    switch = "horovod" if case.library == "smp-v1-tensorflow" else "ddp"
    if replicas < 2 or known.get("ddp") or known.get("horovod") or case.configuration.unknown("parameters", switch):
        return
    if known.get("tensor_parallel_degree", 1) != 1 or known.get("sharded_data_parallel_degree", 1) != 1:
        return  # said by the rules of those
    values = {
        "what": f"The GPUs hold {replicas} replicas of the model and {switch} is off",
        "consequence": _STOPS,
        "remedy": f"Set {switch} to True",
    }
    # Horovod is also the script's: an estimator alone cannot switch it on.
    changes = case.change("ddp", value=True) if switch == "ddp" else ()
    yield Hit(id="EST505", span=case.span_of("ddp", *_PIPELINE), values=values, changes=changes)


def _version_2(case: Case, world: int) -> Iterator[Hit]:
    tensor, expert = case.parameter("tensor_parallel_degree"), case.parameter("expert_parallel_degree")
    context = case.parameter("context_parallel_degree")
    stated = case.configuration.parameters.get("hybrid_shard_degree")
    shards = stated.value if stated is not None else 0
    unknown = case.configuration.unknown("parameters", "hybrid_shard_degree")
    for name, degree in (
        ("tensor_parallel_degree", tensor),
        ("expert_parallel_degree", expert),
        ("context_parallel_degree", context),
    ):
        if degree is not None and world % degree:
            near = nearest_divisor(world, degree)
            values = {
                "what": f"{name} {degree} does not divide the {world} GPUs",
                "consequence": _STOPS,
                "remedy": f"Set it to {near}",
            }
            yield Hit(id="EST502", span=case.span_of(name), values=values, changes=case.change(name, near))
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
        rest = world // (tensor * expert) if world % (tensor * expert) == 0 else world // tensor
        near = nearest_divisor(rest, shards)
        factors = [f"hybrid_shard_degree {shards}"]
        factors += [f"tensor_parallel_degree {tensor}"] if tensor > 1 else []
        factors += [f"expert_parallel_degree {expert}"] if expert > 1 else []
        product = f"{' x '.join(factors)} = {shards * tensor * expert}" if len(factors) > 1 else factors[0]
        values = {
            "what": f"{world} GPUs are not a multiple of {product}",
            "consequence": _STOPS,
            "remedy": f"Set hybrid_shard_degree to {near}",
        }
        span = case.span_of("hybrid_shard_degree")
        yield Hit(id="EST502", span=span, values=values, changes=case.change("hybrid_shard_degree", near))


def tensor_parallelism(case: Case) -> Iterator[Hit]:
    """EST504: powers of two within a node, and degrees that divide the model."""
    degree = case.parameter("tensor_parallel_degree")
    if degree is None or degree < 2:
        return
    span = case.span_of("tensor_parallel_degree")
    instance, model = case.instance, case.back.model
    heads = model.shape.heads if model is not None else 0
    if heads and heads % degree:
        near = max(one for one in divisors(math.gcd(heads, case.world or heads)) if one <= degree)
        values = {
            "what": f"tensor_parallel_degree {degree} does not divide the model's {heads} attention heads",
            "consequence": "The library leaves layers that it cannot divide whole on every GPU, or stops",
            "remedy": f"Set it to {near}",
        }
        yield Hit(
            id="EST504", span=span, values=values, severity="error", changes=case.change("tensor_parallel_degree", near)
        )
        return
    if instance is not None and degree > instance.gpus:
        values = {
            "what": f"tensor_parallel_degree {degree} is larger than a node, {instance.name} with {instance.gpus} GPUs",
            "consequence": "Every layer's all-reduces cross the network between nodes, many times slower than NVLink",
            "remedy": f"At most {instance.gpus}, with pipeline parallelism or sharding for the rest",
        }
        yield Hit(id="EST504", span=span, values=values)
    elif degree & (degree - 1) and not (case.world is not None and case.world % degree):
        lower = 1 << (degree.bit_length() - 1)
        values = {
            "what": f"tensor_parallel_degree {degree} is no power of two",
            "consequence": "Hidden sizes and heads rarely divide by it, and collectives are slower",
            "remedy": f"{lower} or {2 * lower}",
        }
        yield Hit(id="EST504", span=span, values=values)


def _nearest_pair(world: int, pipeline: int, tensor: int) -> tuple[int, int]:
    """Degrees whose product divides the world, as near as can be; the tensor degree moves first."""

    def distance(pair: tuple[int, int]) -> tuple[float, bool, float]:
        stages, ranks = pair
        moved = abs(math.log(stages / pipeline)) + abs(math.log(ranks / tensor))
        return moved, stages != pipeline, -ranks

    pairs = [(stages, ranks) for stages in divisors(world) for ranks in divisors(world // stages)]
    return min(pairs, key=distance)
