"""Ranks of a rehearsal: forked processes that communicate over gloo, each with its share of the training step."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.inputs import microbatches_of
from smp_advisor.profiling.rehearsal.division import Boundary, Stage, divide, ranges
from smp_advisor.profiling.rehearsal.result import Problem
from smp_advisor.profiling.rehearsal.single_process import Reference, by_name, largest_difference
from smp_advisor.profiling.step import checkpointed, loss_of
from smp_advisor.sandbox.deadlock import answer_in, ends_of
from smp_advisor.sandbox.failure import user_source_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from smp_advisor.profiling.rehearsal.result import Degrees
    from smp_advisor.sandbox.deadlock import End


_NEVER = timedelta(days=1)
"""Time limit of a collective: ranks that wait in vain are recognized by their state."""
LEARNING_RATE = 0.1
_MOMENTUM = 0.9
"""Of SGD, because Adam's first step is the sign of the gradient, which magnifies rounding of gradients near zero."""


class RanksFailed(Exception):  # noqa: N818 (an outcome of the rehearsal, which reports it)
    """The ranks did not complete their work."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.text)
        self.problem = problem


def run_ranks(world: int, work: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    """Results of ``work(rank)`` in `world` forks of this process, or `RanksFailed`; tracebacks are in the log."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pids = [_fork(rank, world, work, folder) for rank in range(world)]
        ends = ends_of({pid: _stack_file(folder, rank) for rank, pid in enumerate(pids)}) or {}
        results: list[dict[str, Any]] = [{} for _ in pids]
        for rank in range(world):
            with contextlib.suppress(OSError, ValueError):  # of a rank that crashed or was ended
                results[rank] = json.loads((folder / f"{rank}.json").read_text())
        problem = _failure([ends[pid] for pid in pids], results)
        if problem is not None:
            raise RanksFailed(problem)
        return results


def _stack_file(folder: Path, rank: int) -> Path:
    return folder / f"{rank}.stack"


def _failure(ends: Sequence[End], results: Sequence[Mapping[str, Any]]) -> Problem | None:
    """The problem of the first rank that failed by itself, or of ranks that wait for each other; None if all ended."""
    world = len(ends)
    errors = {rank: result for rank, result in enumerate(results) if "error" in result}
    # gloo's errors are consequences: a rank lost its connection, or received something else.
    own = [rank for rank, error in errors.items() if "gloo" not in error["error"].lower()]
    if own:
        rank = own[0]
        text = f"Rank {rank} of {world} failed first: {errors[rank]['error']}"
        return Problem(kind="failed rank", text=text, rank=rank, line=errors[rank]["line"])
    ended = [rank for rank, result in enumerate(results) if not result and not ends[rank].waited]
    if ended:
        rank, code = ended[0], ends[ended[0]].code
        if code == -signal.SIGKILL:
            text = f"Rank {rank} of {world} was ended from outside."
        else:
            cause = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            text = f"Rank {rank} of {world} crashed first ({cause})."
        return Problem(kind="failed rank", text=text, rank=rank)
    lines = {rank: error["line"] for rank, error in errors.items()}
    lines |= {rank: str(end.line or "") for rank, end in enumerate(ends) if end.waited}
    if not lines:
        return None
    places = {rank: f"at {line}" if line else "outside your code" for rank, line in lines.items()}
    waiting = "; ".join(f"rank {rank} waited {places[rank]}" for rank in sorted(places))
    rule = "Every rank must run the same collectives in the same order."
    text = f"The ranks wait for each other (a hang): {waiting}. {rule}"
    return Problem(kind="hang", text=text, rank=min(lines), line=lines[min(lines)])


def _fork(rank: int, world: int, work: Callable[[int], dict[str, Any]], folder: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        answer_in(_stack_file(folder, rank))
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        store = f"file://{folder}/store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=_NEVER)
        result = work(rank)
        dist.barrier()
        dist.destroy_process_group()
        (folder / f"{rank}.json").write_text(json.dumps(result))
        status = 0
    except BaseException as raised:  # noqa: BLE001 (after any failure, the other ranks must not wait for this one)
        traceback.print_exc()
        error: BaseException = raised
        while error.__cause__ is not None:  # PyTorch wraps the exception of a pipeline stage
            error = error.__cause__
        text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
        line = user_source_line(frames)
        message = {"error": text, "line": "" if line is None else str(line)}
        (folder / f"{rank}.json").write_text(json.dumps(message))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # which closes the connections, so that the other ranks fail, too


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """State that all ranks start from."""

    model: nn.Module
    paths: tuple[str, ...]
    """Paths of the blocks that tensor parallelism and pipeline stages divide."""
    boundary: Boundary | None
    """Interface between pipeline stages; None without a pipeline."""
    batches: tuple[dict[str, Any], ...]
    """One batch per replica, with all its microbatches."""
    degrees: Degrees
    reference: Reference
    """Step of a single process that trained on all batches."""
    checkpointing: bool
    """Whether blocks are recomputed in the backward pass."""
    all_used: bool
    """Whether every trainable parameter gets a gradient in every microbatch."""


def run_rank(prepared: Prepared, rank: int) -> dict[str, Any]:
    """Run one rank's share of the step, and return its results as plain data."""
    degrees, model = prepared.degrees, prepared.model
    mesh = init_device_mesh(
        "cpu", (degrees.pipeline, degrees.data, degrees.tensor), mesh_dim_names=("pipeline", "data", "tensor")
    )
    stage, replica = mesh["pipeline"].get_local_rank(), mesh["data"].get_local_rank()
    own = ranges(len(prepared.paths), degrees.pipeline)[stage] if degrees.pipeline > 1 else range(len(prepared.paths))
    own_paths = [prepared.paths[i] for i in own]
    divided = ""
    if degrees.tensor > 1:
        divided = divide(model, own_paths, mesh["tensor"])
    batch = prepared.batches[replica]
    with ExitStack() as stack:
        if prepared.checkpointing:
            stack.enter_context(checkpointed(model, own_paths, preserve_rng_state=True))
        if degrees.pipeline > 1:
            losses = _pipelined(prepared, mesh, own, own_paths, batch)
        else:
            losses = _unpipelined(prepared, mesh, own_paths, batch)
    loss = torch.tensor([sum(losses) / len(losses) if losses else 0.0, float(bool(losses))])
    dist.all_reduce(loss)
    _synchronize(prepared, mesh, own_paths)
    owned = {name: p for name, p in model.named_parameters() if p.grad is not None and _owns(name, prepared, own_paths)}
    gradients = {name: _full(p.grad) for name, p in owned.items()}
    optimizer_elements = _step(owned, degrees, mesh)
    difference, worst = largest_difference(gradients, prepared.reference.gradients)
    parameter_difference, _ = largest_difference(
        {name: _full(p.detach()) for name, p in owned.items()}, prepared.reference.updated
    )
    return {
        "rank": rank,
        "stage": stage,
        "divided": divided,
        "blocks": len(own),
        "loss": float(loss[0] / loss[1]),
        "difference": difference,
        "worst": worst,
        "parameter_difference": parameter_difference,
        "compared": sorted(gradients),
        "parameter_elements": sum(_local(p).numel() for p in owned.values()),
        "optimizer_elements": optimizer_elements,
    }


def _unpipelined(prepared: Prepared, mesh: DeviceMesh, own_paths: list[str], batch: Mapping[str, Any]) -> list[float]:
    """Losses of a step without a pipeline."""
    model, degrees = prepared.model, prepared.degrees
    if degrees.sharding == "full":
        for path in own_paths:
            fully_shard(model.get_submodule(path), mesh=mesh["data"])
        fully_shard(model, mesh=mesh["data"])
    parts = microbatches_of(batch, degrees.microbatches)
    wrapped = model
    if _is_ddp(degrees):
        group = mesh["data"].get_group()
        wrapped = DistributedDataParallel(model, process_group=group, find_unused_parameters=not prepared.all_used)
    losses = []
    for i, part in enumerate(parts):
        # Only the last backward pass sums gradients over ranks, as in accumulation of gradients.
        accumulates = isinstance(wrapped, DistributedDataParallel) and i < len(parts) - 1
        with wrapped.no_sync() if accumulates else contextlib.nullcontext():  # type: ignore[operator]
            loss = loss_of(by_name(wrapped, part))
            (loss / degrees.microbatches).backward()  # type: ignore[no-untyped-call]
        losses.append(float(loss.detach()))
    # Before the other ranks wait for them: a step without the gradients of one process is refused.
    first = mesh["data"].get_local_rank() * degrees.microbatches
    expected = frozenset().union(*prepared.reference.used[first : first + degrees.microbatches])
    for name, parameter in model.named_parameters():
        if name in expected and parameter.grad is None:
            raise ProfileError(f"parameter {name} gets no gradient on this rank, and gets one in one process.")
    return losses


def _is_ddp(degrees: Degrees) -> bool:
    """Whether PyTorch's DistributedDataParallel sums the gradients; it supports no divided parameters."""
    return degrees.data > 1 and degrees.sharding != "full" and degrees.tensor == degrees.pipeline == 1


def _pipelined(
    prepared: Prepared, mesh: DeviceMesh, own: range, own_paths: list[str], batch: Mapping[str, Any]
) -> list[float]:
    """Run a step as one stage of a pipeline; losses on the last stage."""
    degrees, boundary = prepared.degrees, prepared.boundary
    if boundary is None:
        raise ValueError("a pipeline has no boundary")
    module = Stage(prepared.model, prepared.paths, boundary, own, by_name)
    if degrees.sharding == "full":
        for path in own_paths:
            fully_shard(prepared.model.get_submodule(path), mesh=mesh["data"])
        fully_shard(module, mesh=mesh["data"])
    # Newer PyTorch releases determine from these tensors whether a gradient is returned.
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
    kind = ScheduleGPipe if degrees.schedule == "simple" else Schedule1F1B
    schedule = kind(stage, degrees.microbatches, loss_fn=lambda output, _: output.mean())
    losses: list[Tensor] = []
    if module.last:
        schedule.step(target=torch.zeros(degrees.microbatches), losses=losses, **batch)
    else:
        schedule.step(**batch)
    return [float(loss.detach()) for loss in losses]


def _synchronize(prepared: Prepared, mesh: DeviceMesh, own_paths: list[str]) -> None:
    """Sum the gradients of parameters that several ranks have."""
    degrees = prepared.degrees
    for name, parameter in prepared.model.named_parameters():
        if degrees.pipeline > 1 and not _in_blocks(name, prepared.paths):
            # Embedding, head, final norm. A tied weight gets a gradient on the first and on the last stage.
            if name not in prepared.reference.gradients:  # frozen or unused
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(_local(parameter.grad), group=mesh["pipeline"].get_group())
        replicated = degrees.data > 1 and degrees.sharding != "full" and _owns(name, prepared, own_paths)
        if replicated and not _is_ddp(degrees) and parameter.grad is not None:
            dist.all_reduce(_local(parameter.grad), group=mesh["data"].get_group())
            _local(parameter.grad).div_(degrees.data)


def _step(parameters: Mapping[str, nn.Parameter], degrees: Degrees, mesh: DeviceMesh) -> int:
    """Run one optimizer step, and return this rank's elements of optimizer state."""
    if degrees.sharding != "optimizer":
        plain = torch.optim.SGD(parameters.values(), lr=LEARNING_RATE, momentum=_MOMENTUM)
        plain.step()
        return _elements(plain)
    # Its buckets require plain tensors: the rank's local part of a divided parameter, in the same memory.
    parts = []
    for parameter in parameters.values():
        part = nn.Parameter(_local(parameter.detach()))
        part.grad = None if parameter.grad is None else _local(parameter.grad)
        parts.append(part)
    sharded = ZeroRedundancyOptimizer(
        parts, torch.optim.SGD, process_group=mesh["data"].get_group(), lr=LEARNING_RATE, momentum=_MOMENTUM
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


def _owns(name: str, prepared: Prepared, own_paths: Sequence[str]) -> bool:
    return not _in_blocks(name, prepared.paths) or _in_blocks(name, own_paths)


def _in_blocks(name: str, paths: Sequence[str]) -> bool:
    return any(name.startswith(f"{path}.") for path in paths)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _full(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise ValueError("a parameter has no gradient")
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()
