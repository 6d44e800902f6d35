"""Live memory of a step by category: every storage with its size, its purpose, and when it exists."""

from __future__ import annotations

import weakref
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from smp_advisor.profiling.patching import patched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .rank import Rank

__all__ = ["LiveMemory", "Peak", "RankOptimizer"]

_PLAIN = (Tensor, torch.nn.Parameter, FakeTensor)
_COMMUNICATION = ("fsdp::", "c10d::")
"""Starts of names of operators whose operands are gathered parameters and gradients that wait for their reduction."""


@dataclass(slots=True)
class _Storage:
    """One storage, or a part of its life with a constant size."""

    size: int
    begin: int
    """Event with which it begins to exist."""
    phase: str
    head: bool
    """Whether it was allocated outside the blocks, between the last block's forward and backward pass."""
    category: str = ""
    """Empty if the phase decides it."""
    end: int | None = None
    is_saved: bool = False
    """Whether it outlives the forward pass in which it was allocated."""


@dataclass(frozen=True, slots=True)
class Peak:
    """Live memory at the highest point of a step."""

    by_category: dict[str, int]
    """Bytes by category."""
    phase: str
    """``forward``, ``backward`` or ``optimizer``."""

    @property
    def total(self) -> int:
        """Bytes."""
        return sum(self.by_category.values())


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that follows every storage from its allocation to its release, including changes of its size.

    FSDP changes the size of the storages of gathered parameters instead of releasing them. Weights of stages that are
    elsewhere are ignored.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = "forward"
        self.is_head = False
        self.live_bytes = 0
        self._is_paused = False
        self._clock = 0
        self._live: dict[int, _Storage] = {}
        self._storages: list[_Storage] = []
        self._highest = (-1, 0, "forward")
        """Bytes, event and phase of the peak."""

    def track(self, tensors: Iterable[Any], category: str) -> None:
        """Count the storages of tensors under a category, whether they are new or not."""
        for storage in self._storages_of(tensors):
            self._add(storage)
            self._live[storage._cdata].category = category

    def ignore(self, tensors: Iterable[Any]) -> None:
        """Leave the storages of tensors out."""
        for storage in self._storages_of(tensors):
            key = storage._cdata
            self._live[key] = _Storage(0, self._clock, "", head=False)
            weakref.finalize(storage, self._live.pop, key, None)

    def begin_forward(self) -> None:
        """Start of a forward pass. What the backward passes before it left are accumulated gradients."""
        for storage in self._live.values():
            if storage.phase == "backward" and storage.size:
                storage.category = "gradients"
        self.phase, self.is_head = "forward", False

    def begin_backward(self) -> None:
        """End of a forward pass: what it allocated and still exists is saved for the backward pass."""
        for storage in self._live.values():
            storage.is_saved = storage.is_saved or storage.phase == "forward"
        self.phase = "backward"

    def restart(self) -> None:
        """Begin the step to be measured: earlier peaks do not count."""
        self._storages = [storage for storage in self._storages if storage.end is None]
        self._highest = (self.live_bytes, self._clock, "forward")

    def peak(self, categories: Callable[[str, bool, bool], str]) -> Peak:
        """Live memory at the peak."""
        _, when, phase = self._highest
        sizes: dict[str, int] = defaultdict(int)
        for storage in self._storages:
            if storage.begin <= when and (storage.end is None or storage.end > when) and storage.size:
                name = storage.category or categories(storage.phase, storage.head, storage.is_saved)
                sizes[name] += storage.size
        return Peak(dict(sizes), phase)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follow allocations and changes of size inside the block."""
        resize, shapes = torch.UntypedStorage.resize_, ShardingPropagator._propagate_tensor_meta_non_cached

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            self._resized(storage)
            return result

        def unwatched(*arguments: Any) -> Any:
            before, self._is_paused = self._is_paused, True
            try:
                return shapes(*arguments)
            finally:
                self._is_paused = before

        with (
            patched(torch.UntypedStorage, "resize_", resized),
            # Distributed tensors compute the shape of a result by running its operator on tensors of the full size.
            patched(ShardingPropagator, "_propagate_tensor_meta_non_cached", unwatched),
            self,
        ):
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in _PLAIN for kind in types):
            return NotImplemented  # distributed tensors first run their own operators on plain ones
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # on fake tensors, it would be a copy
        result = func(*args, **(kwargs or {}))
        if self._is_paused:
            return result
        for storage in self._storages_of(result):
            self._add(storage)
        if func.name().startswith(_COMMUNICATION):
            self._name(self._storages_of((args, kwargs, result)), "communication")
        elif func._overloadpacket is torch.ops.aten._to_copy:
            self._record_cast(args[0], result)
        return result

    def _record_cast(self, source: Any, copy: Any) -> None:
        """A 16-bit copy of a weight, which autocast caches, counts as parameters."""
        original = next(self._storages_of(source), None)
        if original is not None and (record := self._live.get(original._cdata)) and record.category == "parameters":
            self._name(self._storages_of(copy), "parameters")

    def _name(self, storages: Iterable[torch.UntypedStorage], category: str) -> None:
        for storage in storages:
            record = self._live.get(storage._cdata)
            if record is not None and not record.category:
                record.category = category

    @staticmethod
    def _storages_of(tensors: Any) -> Iterator[torch.UntypedStorage]:
        for leaf in tree_leaves(tensors):
            if not isinstance(leaf, Tensor):
                continue
            inner = getattr(leaf, "_local_tensor", leaf)
            try:
                yield inner.untyped_storage()
            except (NotImplementedError, RuntimeError):  # sparse, or quantized by a wrapper
                continue

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._live:
            return
        self._begin(key, storage.nbytes())
        weakref.finalize(storage, self._remove, key)

    def _begin(self, key: int, size: int, category: str = "") -> None:
        self._clock += 1
        record = _Storage(size, self._clock, self.phase, self.is_head, category)
        self._live[key] = record
        self._storages.append(record)
        self.live_bytes += size
        if self.live_bytes > self._highest[0]:
            self._highest = (self.live_bytes, self._clock, self.phase)

    def _remove(self, key: int) -> None:
        record = self._live.pop(key, None)
        if record is not None:
            self._clock += 1
            record.end = self._clock
            self.live_bytes -= record.size

    def _resized(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        record = self._live.get(key)
        if record is None:
            self._add(storage)
            record = self._live[key]
        elif record.size != storage.nbytes():
            self._remove(key)
            self._begin(key, storage.nbytes(), record.category)
        self._live[key].category = self._live[key].category or "communication"


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
