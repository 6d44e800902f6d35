"""One rank's training step on fake tensors, with its live memory."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from smp_advisor.profiling.cuda_autocast import cuda_autocast_rules
from smp_advisor.profiling.gpu_kernels import gpu_kernels
from smp_advisor.profiling.step import call_model, loss_of
from smp_advisor.profiling.traced_rank.blocks import recomputed, repeated_layers
from smp_advisor.profiling.traced_rank.division import mesh_of, reduce_at, shard, with_buckets
from smp_advisor.profiling.traced_rank.live_memory import LiveMemory, Peak

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch._subclasses.fake_tensor import FakeTensorMode

    from smp_advisor.profiling.traced_rank.rank import Rank

__all__ = ["RankStep"]


@dataclass(kw_only=True)
class RankStep:
    """A model on fake tensors, and the rank that trains it."""

    model: nn.Module
    rank: Rank
    mode: FakeTensorMode
    inputs: Any
    """Fake inputs of one forward pass."""
    expressed: list[str] = field(default_factory=list)
    """How PyTorch expressed the plan, one phrase each."""
    not_traced: list[str] = field(default_factory=list)
    """Parts that the model does not support, one sentence each."""
    operations: int = 0

    def run(self) -> Peak:
        """Divide the model, and trace a step whose optimizer state exists."""
        paths = repeated_layers(self.model)
        self._divide(paths)
        memory = LiveMemory()
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.mode)
            stack.enter_context(memory.watching())
            memory.track([*self.model.parameters(), *self.model.buffers()], "parameters")
            memory.track(self.inputs, "inputs")
            optimizer = self._optimizer(parameters)
            memory.track([list(state.values()) for state in optimizer.state.values()], "optimizer_state")
            if not self.rank.shard_level:
                memory.track(with_buckets(parameters), "gradients")
            memory.restart()
            stack.enter_context(gpu_kernels(self.rank.attention, lambda *_: None))
            if self.rank.autocast:
                stack.enter_context(cuda_autocast_rules())
            stack.enter_context(_head_marks(self.model, paths, memory))
            stack.enter_context(recomputed(self.model, paths, self.rank.checkpoint))
            self._passes(memory)
            memory.track([p.grad for p in parameters], "gradients")
            memory.phase = "optimizer"
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
        self.operations = memory.operations
        return memory.peak(_category)

    def _divide(self, paths: Sequence[str]) -> None:
        """Divide the model outside the fake mode, since process groups have values."""
        rank = self.rank
        mesh = mesh_of(rank)
        if rank.shard_level == 3:
            shard(self.model, paths, rank, mesh)
            replicas = f", {rank.replicas} replicas" if rank.replicas > 1 else ""
            self.expressed.append(f"fully_shard (FSDP2) of {len(paths)} layers over {rank.shards} GPUs{replicas}")
        else:
            self.expressed.append(f"buckets of DistributedDataParallel over {rank.replicas} replicas")
        if rank.checkpoint and not paths:
            self.not_traced.append("Activation checkpointing: the model has no repeated layers.")
        elif rank.checkpoint:
            self.expressed.append("activation checkpointing by torch.utils.checkpoint")

    def _optimizer(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer with its state, as after a first step."""
        rank = self.rank
        names: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
        optimizer: torch.optim.Optimizer
        if rank.moments == 2:
            optimizer = torch.optim.AdamW(parameters, foreach=rank.foreach)
        else:
            optimizer = torch.optim.SGD(parameters, momentum=0.9 * rank.moments, foreach=rank.foreach)
            names = ("momentum_buffer",) * rank.moments
        for parameter in parameters:
            moments: dict[str, Tensor] = {name: torch.zeros_like(parameter.detach()) for name in names}
            optimizer.state[parameter] = moments | ({"step": torch.tensor(1.0)} if rank.moments == 2 else {})
        return optimizer

    def _passes(self, memory: LiveMemory) -> None:
        count = self.rank.microbatches
        for index in range(count):
            reduce_at(self.model, self.rank, last=index == count - 1)
            memory.begin_forward()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.rank.autocast):
                loss = loss_of(call_model(self.model, self.inputs))
            memory.begin_backward()
            loss.backward()  # type: ignore[no-untyped-call]
            del loss


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
