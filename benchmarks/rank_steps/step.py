"""One rank's training step on fake tensors: its pipeline stage, its passes and its live memory."""

from __future__ import annotations

import contextlib
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.fake import build_fake, fake_inputs
from smp_advisor.profiling.gpu_kernels import cuda_autocast_rules, gpu_kernels
from smp_advisor.profiling.inputs import example_inputs
from smp_advisor.profiling.known_values import KnownValuesMode
from smp_advisor.profiling.rehearsal.division import Boundary, Stage, find_boundary
from smp_advisor.profiling.rehearsal.single_process import by_name, named_batch
from smp_advisor.profiling.step import loss_of

from .division import (
    divide_tensors,
    flat_storages,
    gathering_again,
    main_blocks,
    mesh_of,
    recomputed,
    reduction,
    repeated_layers,
    shard,
    shard_flat,
    with_buckets,
)
from .live_memory import LiveMemory, Peak, RankOptimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import DeviceMesh

    from smp_advisor.profiling.profiled_model import ProfiledModel

    from .rank import Rank

__all__ = ["Part", "RankStep", "fake_process_group", "own_blocks", "part_of", "passes"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A model's part on one stage."""

    module: nn.Module
    """Module to call with the received hidden states and the inputs."""
    received: Tensor | None
    """Hidden states from the stage before it; None on the first."""
    elsewhere: tuple[Tensor, ...]
    """Parameters of other stages, which only give shapes to code that runs on every stage."""


def own_blocks(paths: Sequence[str], rank: Rank) -> range:
    """Positions of the blocks of the rank's stage."""
    ends = list(accumulate(rank.stage_blocks))
    if ends[-1] != len(paths):
        raise ProfileError(
            f"The model runs {len(paths)} blocks in sequence and the plan divides {ends[-1]} into stages, so its"
            " pipeline cannot be traced."
        )
    return range(ends[rank.stage] - rank.stage_blocks[rank.stage], ends[rank.stage])


def passes(rank: Rank) -> Iterator[tuple[Literal["forward", "backward"], int]]:
    """Passes of the stage in order, with their microbatch: as many forward passes as may be in flight, then 1F1B."""
    waiting = 0
    for index in range(rank.microbatches):
        yield "forward", index
        if index - waiting + 1 == rank.in_flight:
            yield "backward", waiting
            waiting += 1
    for index in range(waiting, rank.microbatches):
        yield "backward", index


def part_of(
    model: nn.Module, paths: Sequence[str], rank: Rank, inputs: Mapping[str, Any], recompute: Callable[[], None]
) -> Part:
    """The model's part on the rank's stage."""
    own = own_blocks(paths, rank)
    places = _Places(model, paths)
    with places:
        boundary = find_boundary(model, paths, rank.stages, lambda: by_name(model, inputs))
    elsewhere = _without_others(model, paths, own, places)
    recompute()
    module = Stage(model, paths, boundary, own, by_name)
    return Part(module=module, received=_received(boundary) if own.start else None, elsewhere=elsewhere)


def _received(boundary: Boundary) -> Tensor:
    return torch.empty_like(boundary.hidden, device="cpu")


class _Places:
    """Modules with parameters outside the blocks that run after the last block."""

    def __init__(self, model: nn.Module, paths: Sequence[str]) -> None:
        self.model, self.paths = model, paths
        self.after: set[int] = set()
        self._has_left = False
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        def left(*_: Any) -> None:
            self._has_left = True

        def ran(module: nn.Module, *_: Any) -> None:
            if self._has_left:
                self.after.add(id(module))

        self._handles = [module.register_forward_hook(ran) for module in self.model.modules() if module._parameters]
        self._handles.append(self.model.get_submodule(self.paths[-1]).register_forward_hook(left))

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()


def _without_others(model: nn.Module, paths: Sequence[str], own: range, places: _Places) -> tuple[Tensor, ...]:
    """Replace the parameters of other stages by plain tensors, and return these."""
    first, last = own.start == 0, own.stop == len(paths)
    blocks = {id(m): i for i, path in enumerate(paths) for m in model.get_submodule(path).modules()}

    def owns(module: nn.Module) -> bool:
        if id(module) in blocks:
            return blocks[id(module)] in own
        return last if id(module) in places.after else first

    # A weight that an own module shares with another one, such as a tied embedding, is here, too.
    owned = {id(p) for module in model.modules() if owns(module) for p in module._parameters.values()}
    elsewhere: list[Tensor] = []
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and id(parameter) not in owned:
                del module._parameters[name]
                plain = parameter.detach()
                setattr(module, name, plain)
                elsewhere.append(plain)
    return tuple(elsewhere)


@contextmanager
def fake_process_group(world: int, rank: int) -> Iterator[None]:
    """Be rank `rank` of `world` processes inside the block."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend

    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@dataclass(kw_only=True)
class RankStep:
    """A model on fake tensors, and the rank that trains it."""

    model: nn.Module
    rank: Rank
    mode: FakeTensorMode
    inputs: Mapping[str, Any]
    """Fake inputs of one forward pass, by name or by position (``_0``)."""
    expressed: list[str] = field(default_factory=list)
    """Forms in which PyTorch expressed the plan, one phrase each."""
    not_traced: list[str] = field(default_factory=list)
    """Parts that the model does not support, one sentence each."""

    @classmethod
    def of(cls, profiled: ProfiledModel, rank: Rank) -> RankStep:
        """Build the model and its inputs from fake tensors."""
        mode, dtype = KnownValuesMode(), torch.bfloat16 if rank.half_parameters else torch.float32
        mode.replay.stop()
        model = build_fake(lambda: profiled.build(attention=rank.attention), mode, dtype)
        example = example_inputs(model)
        batch = fake_inputs(named_batch(example.make(rank.samples, rank.sequence)), mode, dtype)
        return cls(model=model.train(), rank=rank, mode=mode, inputs=batch)

    def run(self) -> Peak:
        """Divide the model, and trace a step whose optimizer state exists."""
        memory = LiveMemory()
        with contextlib.ExitStack() as stack:
            stack.enter_context(gpu_kernels(self.rank.attention, lambda *_: None))
            stack.enter_context(flat_storages())
            part, paths = self.divided(stack)
            stack.enter_context(self.mode)
            stack.enter_context(memory.watching())
            memory.ignore(part.elsewhere)
            memory.track([*part.module.parameters(), *part.module.buffers()], "parameters")
            memory.track(self.inputs, "inputs")
            # FSDP1 has empty parameters for those of other shards.
            parameters = [p for p in part.module.parameters() if p.requires_grad and p.numel()]
            optimizer = RankOptimizer.of(self.rank, parameters, memory)
            if self.rank.shard_level < 3:
                memory.track(with_buckets(parameters), "gradients")
            memory.restart()
            if self.rank.autocast:
                stack.enter_context(cuda_autocast_rules())
            stack.enter_context(_head_marks(self.model, paths, memory))
            self._passes(part, memory)
            memory.track([p.grad for p in parameters], "gradients")
            memory.phase = "optimizer"
            optimizer.step()
        return memory.peak(_category)

    def divided(self, stack: contextlib.ExitStack) -> tuple[Part, tuple[str, ...]]:
        """Divide the model outside the fake mode, since process groups have values.

        Layers are recomputed until `stack` is closed.
        """
        rank, model = self.rank, self.model
        mesh = mesh_of(rank)
        layers = repeated_layers(model)
        if rank.tensor > 1:
            phrases, sentences = divide_tensors(
                model, layers, mesh["tensor"], getattr(model, "config", None), sequence_parallel=rank.sequence_parallel
            )
            self.expressed += phrases
            self.not_traced += sentences
        if rank.stages > 1:
            part, layers = self._stage(layers, stack)
        else:
            stack.enter_context(recomputed(model, layers, rank.checkpoint))
            part = Part(module=model, received=None, elsewhere=())
        part = replace(part, module=self._data_parallel(part.module, layers, mesh))
        if rank.checkpoint and not layers:
            self.not_traced.append("Activation checkpointing: the model has no repeated layers.")
        elif rank.checkpoint:
            self.expressed.append("activation checkpointing by torch.utils.checkpoint")
        return part, layers

    def _stage(self, layers: tuple[str, ...], stack: contextlib.ExitStack) -> tuple[Part, tuple[str, ...]]:
        rank, model, blocks = self.rank, self.model, main_blocks(self.model)
        own = [blocks[i] for i in own_blocks(blocks, rank)]
        layers = tuple(path for path in layers if any(f"{path}.".startswith(f"{block}.") for block in own))

        def recompute() -> None:
            stack.enter_context(recomputed(model, layers, rank.checkpoint))

        with self.mode:
            part = part_of(model, blocks, rank, self.inputs, recompute)
        flight = f"{rank.in_flight} microbatch{'es' if rank.in_flight > 1 else ''} in flight"
        self.expressed.append(f"pipeline stage {rank.stage} of {rank.stages}: {len(own)} blocks, {flight}")
        return part, layers

    def _data_parallel(self, module: nn.Module, paths: Sequence[str], mesh: DeviceMesh) -> nn.Module:
        rank, layers = self.rank, [self.model.get_submodule(path) for path in paths]
        if rank.shard_level == 3:
            replicas = f", {rank.replicas} replicas" if rank.replicas > 1 else ""
            form = "FullyShardedDataParallel (FSDP1)" if rank.flat_parameters else "fully_shard (FSDP2)"
            self.expressed.append(f"{form} of {len(layers)} layers over {rank.shards} GPUs{replicas}")
            if rank.flat_parameters:
                return shard_flat(module, layers, rank, mesh)
            shard(module, layers, rank, mesh)
        elif rank.replicas * rank.shards > 1:
            self.expressed.append(f"buckets of DistributedDataParallel over {rank.replicas * rank.shards} GPUs")
        if rank.shard_level in {1, 2}:
            self.expressed.append(f"optimizer state of equal shares over {rank.shards} GPUs")
        return module

    def _passes(self, part: Part, memory: LiveMemory) -> None:
        rank = self.rank
        outputs: dict[int, Tensor] = {}
        for kind, index in passes(rank):
            with reduction(part.module, rank, last=index == rank.microbatches - 1):
                if kind == "forward":
                    memory.begin_forward()
                    outputs[index] = self._forward(part)
                    memory.begin_backward()
                else:
                    memory.phase = "backward"
                    self._backward(outputs.pop(index), memory)

    @staticmethod
    def _backward(output: Tensor, memory: LiveMemory) -> None:
        """Backward pass of one microbatch, from its loss or from the gradient that the next stage sends."""
        gradient = torch.empty_like(output) if output.ndim > 1 else None
        memory.track([gradient], "communication")
        output.backward(gradient)  # type: ignore[no-untyped-call]

    def _forward(self, part: Part) -> Tensor:
        """Loss of one microbatch, or the hidden states for the next stage."""
        received = () if part.received is None else (torch.empty_like(part.received, requires_grad=True),)
        autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.rank.autocast)
        with autocast, gathering_again() if self.rank.sequence_parallel else contextlib.nullcontext():
            if self.rank.stages > 1:
                output: Tensor = part.module(*received, **self.inputs)
                return output
            return loss_of(by_name(part.module, self.inputs))


def _category(phase: str, head: bool, is_saved: bool) -> str:  # noqa: FBT001 - the callback's form
    """Category of memory that is neither state nor communication."""
    if phase == "optimizer":
        return "optimizer_step"
    if head:
        return "logits"
    return "activations" if is_saved else "recomputation"


@contextlib.contextmanager
def _head_marks(model: nn.Module, paths: Sequence[str], memory: LiveMemory) -> Iterator[None]:
    """Mark what runs between the last block's forward pass and its backward pass."""
    handles = []

    def entering(*_: Any) -> None:
        if memory.phase == "forward":
            memory.is_head = False

    def left(_: Tensor) -> None:
        memory.is_head = False

    def leaving(_: nn.Module, __: Any, output: Any) -> None:
        if memory.phase != "forward":
            return
        memory.is_head = True
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaf.register_hook(left)  # type: ignore[no-untyped-call]
                return

    for path in paths:
        module = model.get_submodule(path)
        handles += [module.register_forward_pre_hook(entering), module.register_forward_hook(leaving)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
