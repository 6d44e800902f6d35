"""One process group around gloo for every collective, also those of DDP's reducer, FSDP, DTensor and of objects.

It records number, operation, elements and line of each. Averages are sums that are divided here, since what gloo does
with an average differs between releases of PyTorch.
"""

from __future__ import annotations

import math
import os
import re
import sys
from datetime import timedelta
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future

from smp_advisor.core.files import data_file
from smp_advisor.rehearsal.contract import FIRST_HOST, FIRST_NODE
from smp_advisor.rehearsal.observer import WAITS, NotRehearsed, bound, tensors_in

if TYPE_CHECKING:
    from smp_advisor.rehearsal.observer import Observer

NAME = "observed"
_OPERATION = re.compile("reduce|gather|scatter|all_?to_?all|broadcast|barrier|^send$|^recv")
"""Names of the operations of a process group, in each release."""
_OLDER = data_file("rehearsal", "stand_ins")["collectives"]
_FLAT = ("_allgather_base", "all_gather_single", "_reduce_scatter_base", "reduce_scatter_single")
_FIRST = ("_goes_first", "main_process_first")
"""Of Accelerate and transformers, by which the first rank maps rows, and the others then read them from its cache."""
POINT_TO_POINT = ("send", "recv", "recv_anysource")


class ObservedGroup(dist.ProcessGroup):
    """A process group that records what it passes to gloo."""

    observer: Observer
    groups = 0

    def __init__(self, inner: Any, rank: int, size: int) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        ObservedGroup.groups += 1
        self._inner, self._size, self._count = inner, size, 0
        self._label = f"group {ObservedGroup.groups}"
        self._name = ""

    def getBackendName(self) -> str:  # noqa: N802 - the name in PyTorch
        return NAME

    def size(self) -> int:
        return self._size

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    @property
    def pg_name(self) -> str:
        return self._name or str(dist.distributed_c10d._world.pg_names[self])

    def shutdown(self) -> None:
        self._name = self.pg_name  # which PyTorch forgets before it reads it once more
        super().shutdown()

    @property
    def group_name(self) -> Any:
        return self.pg_name

    def run(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Record a collective and do it; all but messages between two ranks are awaited here."""
        observer = self.observer
        self._count += 1
        number = self._count
        tensors = list(tensors_in(arguments, math.inf))
        elements, kind = sum(tensor.numel() for tensor in tensors), str(tensors[0].dtype)[6:] if tensors else ""
        is_message, is_first = name in POINT_TO_POINT, observer.is_called_by(_FIRST)
        observer.put(
            "message" if is_message else "collective", group=self._label, number=number, operation=name,
            elements=elements, type=kind, site=observer.site(), passes=observer.passes, ranks=self._size,
            rows=0 if is_first or observer.is_after_first else observer.rows,
        )  # fmt: skip
        observer.passes, observer.rows, observer.is_after_first = 0, 0, is_first
        averaged = _summed(arguments)
        if name in _FLAT and all(tensor.is_contiguous() for tensor in arguments[:2]):
            # NCCL compares numbers of elements, gloo shapes.
            arguments = (arguments[0].view(-1), arguments[1].view(-1), *arguments[2:])
        original = getattr(self._inner, name, None) or getattr(self._inner, _OLDER.get(name, name), None)
        observer.shared[observer.rank] = WAITS
        if original is None:
            original = self._inner._allgather_base if "gather" in name else self._inner._reduce_scatter_base
            for pair in zip(arguments[0], arguments[1], strict=True):
                work = original(*pair)
                work.wait()
        else:
            work = original(*arguments, **options)
        if not is_message:
            if work is not None:  # a monitored barrier has none
                work.wait()
            observer.shared[observer.rank] = 0
            if averaged:
                for tensor in tensors_in(arguments[:1], math.inf):
                    tensor.div_(self._size)
                future = torch.futures.Future[Any]()
                future.set_result(arguments[0])
                work = _create_work_from_future(future)  # gloo's would write its sum once more
            observer.put("done", group=self._label, number=number)
        return work


def _summed(arguments: tuple[Any, ...]) -> bool:
    """Return whether a reduction requests an average, which then is a sum."""
    for options in arguments:
        operation = getattr(options, "reduceOp", None)
        if operation is not None and operation == dist.ReduceOp.AVG:
            options.reduceOp = dist.ReduceOp.SUM
            return True
    return False


for _name in filter(_OPERATION.search, vars(dist.ProcessGroup)):
    setattr(ObservedGroup, _name, partialmethod(ObservedGroup.run, _name))


def install(observer: Observer) -> None:
    """Make this group the one of every back end that a script names."""
    ObservedGroup.observer = observer

    def create(store: Any, rank: int, size: int, timeout: Any) -> ObservedGroup:
        del timeout  # a wait in vain is seen by counts, not by the clock
        return ObservedGroup(dist.ProcessGroupGloo(store, rank, size, timedelta(days=1)), rank, size)

    dist.Backend.register_backend(NAME, create, devices=["cpu", "cuda"])
    state: Any = dist.distributed_c10d

    def init_process_group(
        original: Any, backend: Any = None, init_method: Any = None, timeout: Any = None, world_size: int = -1,
        rank: int = -1, store: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        del timeout
        if os.environ.get("MASTER_ADDR") == FIRST_HOST:
            os.environ["MASTER_ADDR"] = FIRST_NODE
        observer.put(
            "group", world_size=world_size, rank=rank, address=os.environ.get("MASTER_ADDR"), site=observer.site()
        )
        if world_size > observer.world:
            text = f"a group of {world_size} processes waits in vain, since {observer.world} are started"
            is_fixed = re.search(rf"\b{world_size}\b", " ".join([Path(sys.argv[0]).read_text("utf-8"), *sys.argv]))
            raise NotRehearsed(f"{text}: it starts with WORLD_SIZE") if is_fixed else dist.DistNetworkError(text)
        observer.options["backend"] = str(backend or "nccl").rpartition(":")[2]
        place = {"init_method": init_method} if store is None else {"store": store}
        original(NAME, world_size=world_size, rank=rank, **place)

    def new_group(original: Any, ranks: Any = None, timeout: Any = None, backend: Any = None, **options: Any) -> Any:
        del timeout, backend
        group_options = ("use_local_synchronization", "group_desc")
        return original(ranks, **{name: value for name, value in options.items() if name in group_options})

    def barrier(original: Any, group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        del device_ids
        return original(group, async_op)

    def get_backend(original: Any, group: Any = None) -> str:
        del original, group
        return str(observer.options.get("backend", "nccl")) if observer.is_asked_by_user() else "gloo"

    for function in (init_process_group, new_group, barrier, get_backend):
        name = function.__name__
        original = getattr(dist, name)
        replaced = bound(function, original)
        setattr(state, name, replaced)
        # Parts of PyTorch have the name itself: a mesh makes the group that a script does not.
        for module in [entry for key, entry in sys.modules.items() if key.startswith("torch.distributed")]:
            if vars(module).get(name) is original:
                setattr(module, name, replaced)
    state._get_object_coll_device = lambda group=None: "cpu"  # noqa: ARG005
    state._get_pg_default_device = lambda group=None: torch.device("cpu")  # noqa: ARG005
    for name in ("is_nccl_available", "is_gloo_available"):
        setattr(dist, name, lambda: True)
    dist.get_default_backend_for_device = lambda device: "nccl"  # type: ignore[assignment] # noqa: ARG005
