"""What each rank of a rehearsal does: its share of a training step, compared with the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor

from smp_advisor.profiling.rehearsal.dividing import divide
from smp_advisor.profiling.rehearsal.schedule import in_flight, record
from smp_advisor.profiling.rehearsal.stage import Boundary, Stage, ranges
from smp_advisor.profiling.step import call_model, loss_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.profiling.rehearsal.degrees import Degrees

__all__ = ["Prepared", "by_name", "named_batch", "reference", "work"]

_LEARNING_RATE = 0.1
_MOMENTUM = 0.9
"""SGD: Adam's first step is the sign of the gradient, which magnifies rounding where a gradient is near zero."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What all ranks start from."""

    model: nn.Module
    config: Any
    paths: tuple[str, ...]
    """Blocks of the row that tensor parallelism divides and a pipeline is cut in."""
    boundary: Boundary | None
    """Of a pipeline."""
    batches: tuple[dict[str, Any], ...]
    """One for each replica, all its microbatches together."""
    degrees: Degrees
    loss: float
    """Of one process, which trained on all batches; here and below."""
    gradients: Mapping[str, Tensor]
    stepped: Mapping[str, Tensor]
    """Parameters after one step of the optimizer."""


def named_batch(inputs: Any) -> dict[str, Any]:
    """Inputs by name; those by place are numbered."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    return {f"_{place}": value for place, value in enumerate(inputs)}


def by_name(model: nn.Module, batch: Mapping[str, Any]) -> Any:
    """The model's output for a batch of `named_batch`."""
    if all(name[:1] == "_" and name[1:].isdigit() for name in batch):
        return call_model(model, [batch[f"_{place}"] for place in range(len(batch))])
    return call_model(model, batch)


def microbatches_of(batch: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Equal parts of a batch."""
    size = next(value.shape[0] for value in batch.values() if isinstance(value, Tensor) and value.ndim)

    def part(value: Any, place: int) -> Any:
        whole = isinstance(value, Tensor) and value.ndim and value.shape[0] == size
        return value.chunk(count)[place] if whole else value

    return [{name: part(value, place) for name, value in batch.items()} for place in range(count)]


def reference(model: nn.Module, batches: Sequence[Mapping[str, Any]], microbatches: int) -> dict[str, Any]:
    """One process's step over all batches: loss, gradients, and parameters after it; the model is left as it was."""
    model.zero_grad(set_to_none=True)
    total = len(batches) * microbatches
    loss_sum = 0.0
    for batch in batches:
        for part in microbatches_of(batch, microbatches):
            loss = loss_of(by_name(model, part)) / total
            loss.backward()  # type: ignore[no-untyped-call]
            loss_sum += float(loss.detach())
    named = {name: p for name, p in model.named_parameters() if p.grad is not None}
    gradients = {name: p.grad.clone() for name, p in named.items() if p.grad is not None}
    # With momentum the first step is the gradient times the learning rate, as without.
    stepped = {name: p.detach() - _LEARNING_RATE * gradients[name] for name, p in named.items()}
    model.zero_grad(set_to_none=True)
    return {"loss": loss_sum, "gradients": gradients, "stepped": stepped}


def work(prepared: Prepared, rank: int) -> dict[str, Any]:
    """One rank's share of the step; plain data."""
    degrees, model = prepared.degrees, prepared.model
    mesh = init_device_mesh(
        "cpu", (degrees.pipeline, degrees.data, degrees.tensor), mesh_dim_names=("pipeline", "data", "tensor")
    )
    stage, replica = mesh["pipeline"].get_local_rank(), mesh["data"].get_local_rank()
    own = ranges(len(prepared.paths), degrees.pipeline)[stage] if degrees.pipeline > 1 else range(len(prepared.paths))
    own_paths = [prepared.paths[place] for place in own]
    divided = ""
    if degrees.tensor > 1:
        divided = divide(model, own_paths, mesh["tensor"], prepared.config)
    batch = prepared.batches[replica]
    if degrees.pipeline > 1:
        losses, slots = _pipelined(prepared, mesh, own, own_paths, batch)
    else:
        losses, slots = _whole(prepared, mesh, own_paths, batch), []
    loss = torch.tensor([sum(losses) / len(losses) if losses else 0.0, float(bool(losses))])
    dist.all_reduce(loss)
    _synchronize(prepared, mesh, own_paths)
    mine = {name: p for name, p in model.named_parameters() if p.grad is not None and _owned(name, prepared, own_paths)}
    gradients = {name: _full(p.grad) for name, p in mine.items()}
    held_state = _step(mine, degrees, mesh)
    farthest, name = _farthest(gradients, prepared.gradients)
    moved, _ = _farthest({name: _full(p.detach()) for name, p in mine.items()}, prepared.stepped)
    return {
        "rank": rank,
        "stage": stage,
        "divided": divided,
        "blocks": len(own),
        "loss": float(loss[0] / loss[1]),
        "order": [f"{kind[0].upper()}{microbatch}" for kind, microbatch in slots],
        "in_flight": in_flight(slots),
        "difference": farthest,
        "worst": name,
        "moved": moved,
        "compared": sorted(gradients),
        "held": sum(_local(p).numel() for p in mine.values()),
        "held_state": held_state,
    }


def _whole(prepared: Prepared, mesh: DeviceMesh, own_paths: list[str], batch: Mapping[str, Any]) -> list[float]:
    """A step without a pipeline."""
    model, degrees = prepared.model, prepared.degrees
    if degrees.sharding == "full":
        for path in own_paths:
            fully_shard(model.get_submodule(path), mesh=mesh["data"])
        fully_shard(model, mesh=mesh["data"])
    losses = []
    for part in microbatches_of(batch, degrees.microbatches):
        loss = loss_of(by_name(model, part))
        (loss / degrees.microbatches).backward()  # type: ignore[no-untyped-call]
        losses.append(float(loss.detach()))
    return losses


def _pipelined(
    prepared: Prepared, mesh: DeviceMesh, own: range, own_paths: list[str], batch: Mapping[str, Any]
) -> tuple[list[float], list[tuple[str, int]]]:
    """A step as one stage of a pipeline: losses on the last stage, and the passes in the order they ran."""
    degrees, boundary = prepared.degrees, prepared.boundary
    if boundary is None:
        raise ValueError("a pipeline has no boundary")
    module = Stage(prepared.model, prepared.paths, boundary, own, by_name)
    if degrees.sharding == "full":
        for path in own_paths:
            fully_shard(prepared.model.get_submodule(path), mesh=mesh["data"])
        fully_shard(module, mesh=mesh["data"])
    # Newer releases of PyTorch read from these whether a gradient comes back.
    hidden = boundary.hidden.detach().requires_grad_()
    stage = PipelineStage(
        module,
        mesh["pipeline"].get_local_rank(),
        degrees.pipeline,
        torch.device("cpu"),
        input_args=() if module.first else (hidden,),
        output_args=torch.empty(1, device="meta", requires_grad=True) if module.last else hidden,
        group=mesh["pipeline"].get_group(),
    )
    slots = record(stage)
    kind = ScheduleGPipe if degrees.schedule == "simple" else Schedule1F1B
    schedule = kind(stage, degrees.microbatches, loss_fn=lambda output, _: output.mean())
    losses: list[Tensor] = []
    if module.last:
        schedule.step(target=torch.zeros(degrees.microbatches), losses=losses, **batch)
    else:
        schedule.step(**batch)
    return [float(loss.detach()) for loss in losses], slots


def _synchronize(prepared: Prepared, mesh: DeviceMesh, own_paths: list[str]) -> None:
    """Add up what several ranks know of one gradient."""
    degrees = prepared.degrees
    for name, parameter in prepared.model.named_parameters():
        if degrees.pipeline > 1 and not _in_blocks(name, prepared.paths):
            # Embedding, head, final norm; a tied weight gets a gradient on the first and on the last stage.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(_local(parameter.grad), group=mesh["pipeline"].get_group())
        replicated = degrees.data > 1 and degrees.sharding != "full" and _owned(name, prepared, own_paths)
        if replicated and parameter.grad is not None:
            dist.all_reduce(_local(parameter.grad), group=mesh["data"].get_group())
            _local(parameter.grad).div_(degrees.data)


def _step(mine: Mapping[str, nn.Parameter], degrees: Degrees, mesh: DeviceMesh) -> int:
    """One step of the optimizer; elements of state that this rank keeps."""
    if degrees.sharding != "optimizer":
        plain = torch.optim.SGD(mine.values(), lr=_LEARNING_RATE, momentum=_MOMENTUM)
        plain.step()
        return _elements(plain)
    # Its buckets want plain tensors: the rank's own part of a divided parameter, in the same memory.
    parts = []
    for parameter in mine.values():
        part = nn.Parameter(_local(parameter.detach()))
        part.grad = None if parameter.grad is None else _local(parameter.grad)
        parts.append(part)
    sharded = ZeroRedundancyOptimizer(
        parts, torch.optim.SGD, process_group=mesh["data"].get_group(), lr=_LEARNING_RATE, momentum=_MOMENTUM
    )
    sharded.step()
    return _elements(sharded.optim)


def _elements(optimizer: torch.optim.Optimizer) -> int:
    return sum(
        _local(value).numel()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    )


def _owned(name: str, prepared: Prepared, own_paths: Sequence[str]) -> bool:
    return not _in_blocks(name, prepared.paths) or _in_blocks(name, own_paths)


def _in_blocks(name: str, paths: Sequence[str]) -> bool:
    return any(name.startswith(f"{path}.") for path in paths)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _full(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise ValueError("a parameter has no gradient")
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()


def _farthest(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> tuple[float, str]:
    """Largest relative distance, and whose it is; a gradient that only one of the two has is infinitely far."""
    farthest, worst = 0.0, next(iter(found), "")
    for name, value in found.items():
        target = expected.get(name)
        if target is None:
            distance = 0.0 if not value.any() else float("inf")
        else:
            # A gradient that is zero but for rounding (the bias of a key) has no length to compare with.
            length = max(float(target.norm()), 1e-6 * value.numel() ** 0.5)
            distance = float((value - target).norm()) / length
        if distance > farthest:
            farthest, worst = distance, name
    return farthest, worst
