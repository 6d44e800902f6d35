"""Optimizer of a rank with the state that exists after its first step."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.profiling.traced_rank.live_memory import LiveMemory
    from smp_advisor.profiling.traced_rank.rank import Rank

__all__ = ["RankOptimizer"]

_LATE_BYTES = 4
"""Bytes per parameter of `Rank.copy_bytes` without fp32 gradients: their copy exists in the step only."""


@dataclass(frozen=True, kw_only=True)
class RankOptimizer:
    """The optimizer, and the fp32 copies that it updates instead of 16-bit parameters."""

    parameters: Sequence[nn.Parameter]
    optimizer: torch.optim.Optimizer
    copies: Sequence[nn.Parameter]
    """The rank's part of each parameter in fp32; empty if it updates the parameters themselves."""

    @classmethod
    def of(cls, rank: Rank, parameters: Sequence[nn.Parameter], memory: LiveMemory) -> RankOptimizer:
        """Create the optimizer with its state, under the active fake mode."""
        copies: list[nn.Parameter] = []
        if rank.copy_bytes:
            copies = [_copy(parameter, rank) for parameter in parameters]
            memory.track(copies, "fp32_copies")
            if rank.copy_bytes > _LATE_BYTES:
                for copy in copies:
                    copy.grad = torch.empty_like(copy, requires_grad=False)
                memory.track([copy.grad for copy in copies], "fp32_copies")
        updated = copies or parameters
        names: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
        optimizer: torch.optim.Optimizer
        if rank.moments == len(names):
            optimizer = torch.optim.AdamW(updated, foreach=rank.foreach)
        else:
            optimizer = torch.optim.SGD(updated, momentum=0.9 * rank.moments, foreach=rank.foreach)
            names = ("momentum_buffer",) * rank.moments
        for parameter in updated:
            moments: dict[str, Tensor] = {name: torch.zeros_like(parameter.detach()) for name in names}
            if rank.moments == 2:
                moments["step"] = torch.tensor(1.0)
            optimizer.state[parameter] = moments
        memory.track([list(state.values()) for state in optimizer.state.values()], "optimizer_state")
        return cls(parameters=parameters, optimizer=optimizer, copies=copies)

    def step(self) -> None:
        """Clip the gradients and update the parameters."""
        meshes: dict[Any, list[nn.Parameter]] = defaultdict(list)
        for parameter in self.parameters:  # norms of tensors on different meshes cannot be combined
            meshes[getattr(parameter, "device_mesh", None)].append(parameter)
        for parameters in meshes.values():
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for copy in self.copies:
            if copy.grad is None:
                copy.grad = torch.empty_like(copy, requires_grad=False)
        self.optimizer.step()


def _copy(parameter: nn.Parameter, rank: Rank) -> nn.Parameter:
    """The rank's part of a parameter in fp32: its shard, or an equal share of a replica."""
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    if rank.shard_level >= 3:
        return nn.Parameter(local.detach().float())
    share = -(-local.numel() // (rank.shards if rank.shard_level else 1))
    return nn.Parameter(torch.empty(share, dtype=torch.float32))
