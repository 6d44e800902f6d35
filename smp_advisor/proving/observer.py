"""Records the behavior of a script in a child process: updates, modes, saved keys, collectives, settings and lines."""

from __future__ import annotations

import builtins
import json
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

_MOST_KEYS = 2000
_COLLECTIVES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "all_to_all_single",
    "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "reduce",
    "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list",
)  # fmt: skip


def replace(owner: object, **attributes: object) -> None:
    """Replace functions in a child process that ends with its run; types are those of the originals by design."""
    for name, value in attributes.items():
        setattr(owner, name, value)


class Observer:
    """Behavior of a script, in order. Each process of a run has its own observer."""

    def __init__(self, script: Path, steps: int, most_losses: int) -> None:
        self.script = str(script)
        self.steps_left, self.most_losses = steps, most_losses
        self.losses: list[tuple[float, int]] = []
        """Value and line of each backward pass."""
        self.updates: list[dict[str, Any]] = []
        """Of each update: the backward passes before it, and squares of gradients and parameters."""
        self.modes: list[tuple[bool, bool, int]] = []
        """Changes of the mode of a model: training, gradients, line of the call."""
        self.saves: list[dict[str, Any]] = []
        self.loads: list[dict[str, Any]] = []
        self.collectives: list[str] = []
        self.settings: dict[str, Any] = {}
        """Settings of the plan as the script has them: batch size, precision, and others."""
        self.structure: dict[str, int] = {}
        """How many parameters the optimizers update, and how many of them are sharded or replicated."""
        self.hits: set[int] = set()
        """Lines of the statements that ran."""
        self.notes: set[str] = set()
        """Properties that decide what can be compared, and the stand-ins that the script used."""
        self.loader: Any = None
        """The loader that gave a batch last."""
        self._depth = 0
        self._prepares = False
        self._random_state: object = None
        self._replicas: list[Any] = []
        self._shards: list[Any] = []
        self._trained: dict[int, torch.Tensor] = {}

    def line(self) -> int:
        """Line of the script that is running; 0 if none is."""
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the only way to the line of the caller
        while frame is not None and frame.f_code.co_filename != self.script:
            frame = frame.f_back
        return 0 if frame is None else frame.f_lineno

    def add_loss(self, value: float) -> None:
        """Record one backward pass, and whether random numbers were drawn since the last one."""
        self._note_draws()
        if len(self.losses) == self.most_losses:
            self.notes.add("many losses")
            raise SystemExit(0)
        if getattr(self.loader, "requested_size", None) is not None:
            self.settings.setdefault("batch_size", self.loader.requested_size)
        self.notes.add(f"{getattr(self.loader, 'source', 'other')} batches")
        self.losses.append((value, self.line()))

    def _note_draws(self) -> None:
        """Note whether random numbers were drawn since the last call."""
        _, keys, *places = np.random.get_state()  # noqa: NPY002 - of scripts
        state = (torch.get_rng_state().numpy().tobytes(), np.asarray(keys).tobytes(), places, random.getstate())
        if self._random_state not in (None, state):
            self.notes.add("random")
        self._random_state = state

    def _draw_alike(self) -> None:
        """Before a forward pass that trains: give all processes the same random numbers after it.

        Otherwise an evaluation on the first rank alone would give it other batches than the rest.
        """
        self._note_draws()
        torch.default_generator.manual_seed(len(self.losses))
        np.random.seed(len(self.losses))  # noqa: NPY002 - of scripts
        random.seed(len(self.losses))
        self._random_state = None
        self._note_draws()

    def add_save(self, content: object, path: object) -> None:
        """Record the keys of a saved object."""
        name = Path(path).name if isinstance(path, str | Path) else "file"
        self.saves.append({
            "name": name, "keys": keys_of(content), "line": self.line(), "after": len(self.collectives),
            "shard": _shard_in(content),
        })  # fmt: skip

    def install(self) -> None:
        """Observe PyTorch in this process."""
        replace(builtins, __smp_hit__=self.hits.add)
        self._observe_backward()
        self._observe_losses()
        self._observe_forward()
        self._observe_files()
        self._observe_collectives()
        self._observe_wrappers()
        register_optimizer_step_pre_hook(self._before_update)
        register_optimizer_step_post_hook(self._after_update)

    def _observe_backward(self) -> None:
        original: Any = torch.Tensor.backward

        def backward(tensor: torch.Tensor, *arguments: Any, **options: Any) -> None:
            self.add_loss(float(tensor.detach().float().mean()))
            original(tensor, *arguments, **options)
            if self._replicas:
                self.collectives.append("gradients")

        run: Any = torch.autograd.backward

        def run_inside(*arguments: Any, **options: Any) -> None:
            self._depth += 1  # checkpointed layers run again
            try:
                run(*arguments, **options)
            finally:
                self._depth -= 1

        replace(torch.Tensor, backward=backward)
        replace(torch.autograd, backward=run_inside)

    def _observe_losses(self) -> None:
        """Note labels that a mean loss weighs or leaves out: parts of a batch have different sums of weights."""
        functional: Any = torch.nn.functional
        for name in ("cross_entropy", "nll_loss"):
            compute: Any = getattr(functional, name)

            def loss(scores: Any, target: Any, *arguments: Any, _loss: Any = compute, **options: Any) -> Any:
                left_out = options.get("ignore_index", arguments[2] if len(arguments) > 2 else -100)
                weighted = options.get("weight", arguments[0] if arguments else None) is not None
                counts = not target.is_floating_point() and (weighted or bool((target == left_out).any()))
                if torch.is_grad_enabled() and counts:
                    self.notes.add("left out")
                return _loss(scores, target, *arguments, **options)

            replace(functional, **{name: loss})

    def _observe_forward(self) -> None:
        original = torch.nn.Module.__call__

        def called(module: torch.nn.Module, *arguments: Any, **options: Any) -> Any:
            if self._depth == 0 and next(module.parameters(), None) is not None:
                mode = (module.training, torch.is_grad_enabled())
                if all(mode):
                    self._draw_alike()
                if not self.modes or self.modes[-1][:2] != mode:
                    self.modes.append((*mode, self.line()))
                if any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in module.modules()):  # noqa: SLF001
                    self.notes.add("batch_norm")
            self._depth += 1
            try:
                return original(module, *arguments, **options)
            finally:
                self._depth -= 1

        replace(torch.nn.Module, __call__=called)

    def _observe_files(self) -> None:
        save_object: Any = torch.save
        load_object: Any = torch.load

        def name_of(f: Any) -> str:
            """Name of a file; empty for a buffer, such as those of objects that are sent."""
            return Path(str(name)).name if isinstance(name := getattr(f, "name", f), str | Path) else ""

        def save(obj: object, f: Any, *arguments: Any, **options: Any) -> None:
            if name_of(f):
                self.add_save(obj, name_of(f))
            save_object(obj, f, *arguments, **options)

        def load(f: Any, *arguments: Any, **options: Any) -> Any:
            if name_of(f):
                self.loads.append({"name": name_of(f), "line": self.line(), "after": len(self.collectives)})
            return load_object(f, *arguments, **{**options, "map_location": "cpu"})

        replace(torch, save=save, load=load)

    def _observe_collectives(self) -> None:
        for name in _COLLECTIVES:
            original = getattr(torch.distributed, name)

            def collective(*arguments: Any, _original: Any = original, _name: str = name, **options: Any) -> Any:
                result = _original(*arguments, **options)
                group = options.get("group")
                if group is None or torch.distributed.get_world_size(group) == torch.distributed.get_world_size():
                    self.collectives.append(_name)
                return result

            replace(torch.distributed, **{name: collective})

    def _observe_wrappers(self) -> None:
        from torch.distributed.checkpoint import state_dict
        from torch.distributed.fsdp import FullyShardedDataParallel

        for kind, wrapped in ((DistributedDataParallel, self._replicas), (FullyShardedDataParallel, self._shards)):
            create: Any = kind.__init__

            def wrap(self: Any, *arguments: Any, _create: Any = create, _found: Any = wrapped, **options: Any) -> None:
                _create(self, *arguments, **options)
                _found.append(self)

            replace(kind, __init__=wrap)

        prepare: Any = state_dict._init_optim_state  # noqa: SLF001 - it steps with gradients of zero

        def prepared(*arguments: Any, **options: Any) -> None:
            self._prepares = True
            prepare(*arguments, **options)
            self._prepares = False

        replace(state_dict, _init_optim_state=prepared)

    def _is_sharded(self, parameter: torch.Tensor, managed: set[int]) -> bool:
        if isinstance(parameter, DTensor):
            return any(placement.is_shard() for placement in parameter.placements)
        return id(parameter) in managed

    def _squares(self, tensors: Iterable[tuple[torch.Tensor, torch.Tensor | None]]) -> list[float]:
        """Sums of squares of replicated tensors and of this process's shards; each with the parameter that it is of."""
        managed = {id(p) for module in self._shards for p in module.parameters()}
        sums = [0.0, 0.0]
        for parameter, value in tensors:
            if value is not None:
                local = value.to_local() if isinstance(value, DTensor) else value
                sums[self._is_sharded(parameter, managed)] += float(local.detach().double().square().sum())
        return sums

    def _before_update(self, optimizer: Any, *_: Any) -> None:
        if self._prepares:
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._trained.update({id(p): p for p in parameters if p.grad is not None})
        gradients = self._squares((p, p.grad) for p in parameters)
        self.updates.append({"losses": len(self.losses), "gradients": gradients, "line": self.line()})

    def _after_update(self, optimizer: Any, *_: Any) -> None:
        if self._prepares:
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.updates[-1]["parameters"] = self._squares((p, p) for p in parameters)
        self.steps_left -= 1
        if self.steps_left <= 0:
            raise SystemExit(0)

    def _describe_wrappers(self) -> None:
        """Count which trained parameters are sharded or replicated, and wrapped models that are not trained."""
        sharded = {id(p) for module in self._shards for p in module.parameters()}
        replicated = {id(p) for module in self._replicas for p in module.parameters()}
        trained = self._trained.values()
        idle = [m for m in (*self._replicas, *self._shards) if not any(id(p) in self._trained for p in m.parameters())]
        inner = {id(part) for module in self._shards for part in module.modules() if part is not module}
        self.structure = {
            "trained": len(trained),
            "sharded": sum(self._is_sharded(p, sharded) for p in trained),
            "replicated": sum(id(p) in replicated for p in trained),
            "wrappers": len(self._replicas),
            "idle": sum(id(module) not in inner and any(True for _ in module.parameters()) for module in idle),
        }

    def write(self, path: Path, error: str) -> None:
        """Write the record as JSON."""
        self._describe_wrappers()
        names = ("losses", "modes", "saves", "loads", "collectives", "settings", "structure")
        record = {name: getattr(self, name) for name in names} | {
            "updates": [update for update in self.updates if "parameters" in update], "hits": sorted(self.hits),
            "notes": sorted(self.notes), "stopped": self.steps_left <= 0, "error": error,
        }  # fmt: skip
        path.write_text(json.dumps(record), encoding="utf-8")


def _shard_in(content: object, name: str = "", depth: int = 5) -> str:
    """Path of the first tensor of which `content` has only the part of this process; empty without one."""
    if isinstance(content, DTensor):
        return name if any(placement.is_shard() for placement in content.placements) else ""
    if isinstance(content, torch.nn.Module):
        content = content.state_dict()
    if not isinstance(content, dict) or not depth:
        return ""
    inner = (_shard_in(value, f"{name}/{key}", depth - 1) for key, value in list(content.items())[:_MOST_KEYS])
    return next(filter(None, inner), "")


def keys_of(content: object, depth: int = 2) -> Any:
    """Keys of nested dictionaries; the type of anything else."""
    if isinstance(content, dict) and depth:
        return {str(key): keys_of(value, depth - 1) for key, value in list(content.items())[:_MOST_KEYS]}
    if isinstance(content, torch.nn.Module):
        return {"module": sorted(content.state_dict())}
    return "number" if isinstance(content, int | float) else type(content).__name__
