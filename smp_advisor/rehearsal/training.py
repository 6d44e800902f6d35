"""Records of passes and updates, and of the parameters that take part.

The seed of each rank's backward pass is 1 + rank / 1000: gradients that are averaged are equal all the same, and those
that are not differ even where the data are equal.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.optim.swa_utils import AveragedModel
from torch.utils.weak import WeakIdKeyDictionary

from smp_advisor.rehearsal.observer import Ended, around, bytes_of, digest_of, figures_of, local, tensors_in

if TYPE_CHECKING:
    from smp_advisor.rehearsal.observer import Observer

MARK = 1e-3
_MOST_RANKS, _LARGEST_STATE_BYTES = 4, 256 * 2**20
_OF_ANOTHER_PHASE = 8
"""Steps of another optimizer in a row, after which those of the first one have ended: a search of the rate before."""
_ENDING = (lr_scheduler.LambdaLR, lr_scheduler.OneCycleLR, lr_scheduler.CosineAnnealingLR, lr_scheduler.PolynomialLR)
"""Schedules whose end can be computed."""
_LATER = (1, 10, 100, 1000, 10_000)
_LONGEST_SCHEDULE, _ZERO, _NEARLY_ZERO = 10_000_000, 1e-13, 0.02


class Training:
    """Passes and updates, and the parameters that take part."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.optimizers: dict[int, tuple[int, Any]] = {}
        """The number of each, and itself: the identity of one that has ended is that of another on some rank."""
        self.first: dict[int, tuple[Any, list[float]]] = {}
        """Each parameter of an optimizer, with its figures before its first update."""
        self.models: dict[int, Any] = {}
        self.with_gradient: set[int] = set()
        self.used: dict[int, Any] = {}
        """Parameters of which the first losses are functions."""
        self.stepping = self.quiet = 0
        self.first_optimizer = self.since_first = 0
        self.is_in_backward = 0
        self.is_poisoned = self.is_trained = False
        self.schedules: list[Any] = []
        observer.options["training"] = self

    def install(self) -> None:
        self._passes()
        self._schedules()
        register_optimizer_step_pre_hook(self._before)  # type: ignore[arg-type]
        register_optimizer_step_post_hook(self._after)  # type: ignore[arg-type]
        from torch.distributed.checkpoint import state_dict

        @around(state_dict, "_init_optim_state")
        def quiet(original: Any, *arguments: Any, **options: Any) -> Any:
            self.quiet += 1  # it steps with gradients of zero
            try:
                return original(*arguments, **options)
            finally:
                self.quiet -= 1

    def _passes(self) -> None:
        observer = self.observer

        @around(torch.Tensor, "backward")
        def marked(
            original: Any, tensor: Any, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False,
            inputs: Any = None,
        ) -> Any:  # fmt: skip
            observer.backwards += 1
            if observer.updates == 0:
                self.used |= _parameters_of(tensor)
            if tensor.numel() == 1:
                observer.put("backward", loss=float(local(tensor.detach())), site=observer.site())
                marks = observer.looks and not observer.has_tensor_parallel
                if observer.world > 1 and gradient is None and marks:
                    gradient = torch.full_like(tensor, 1 + MARK * observer.rank)
            return original(tensor, gradient, retain_graph, create_graph, inputs)

        @around(torch.autograd, "backward")
        def passed(original: Any, *arguments: Any, **options: Any) -> Any:
            observer.all_backwards += 1
            self.is_in_backward += 1
            try:
                return original(*arguments, **options)
            finally:
                self.is_in_backward -= 1

        counted: Any = WeakIdKeyDictionary()  # libraries pass attributes of a parameter to its copy

        @around(torch.nn.Module, "register_parameter")
        def registered(original: Any, module: Any, name: str, parameter: Any) -> None:
            original(module, name, parameter)
            if parameter is not None and parameter.device.type == "cpu" and parameter not in counted:
                counted[parameter] = True
                observer.holds(parameter.numel())

        @around(torch.utils, "swap_tensors")
        def swapped(original: Any, *tensors: Any) -> None:
            counted.clear()  # weak references prevent a swap
            original(*tensors)

        @around(torch.nn.Module, "__call__")
        def called(original: Any, module: Any, *arguments: Any, **options: Any) -> Any:
            is_top = observer.depth == 0 and not self.is_in_backward
            trains = is_top and torch.is_grad_enabled() and module.training
            if is_top:
                observer.passes += 1
                observer.options["counts"].total_passes += 1
                if trains:
                    self._note(module, arguments, options)
                elif observer.looks and not torch.is_grad_enabled():
                    observer.put("evaluation", digest=digest_of([arguments, options])[0], site=observer.site())
                self.is_trained = trains and id(module) in self.models
            observer.depth += 1
            try:
                result = original(module, *arguments, **options)
            finally:
                observer.depth -= 1
            return self._provoked(result, is_top=is_top)

    def _note(self, module: Any, arguments: Any, options: Any) -> None:
        observer = self.observer
        inputs = [
            entry for entry in itertools.chain(arguments, options.values()) if next(tensors_in(entry), None) is not None
        ]
        if not inputs or not observer.looks or next(module.parameters(), None) is None:
            return
        if id(module) not in self.models:
            self.models[id(module)] = module
            if observer.updates == 0:
                self._same_start(module)
            shards = max((getattr(unit._handle, "world_size", 1) for unit in observer.fsdp_units), default=1)
            elements = shards * sum(p.numel() for p in module.parameters())
            observer.put("model", name=type(module).__name__, elements=elements, host_elements=observer.host_elements)
        if observer.updates == 0:
            observer.once(
                "random", state=hashlib.sha1(bytes_of(torch.get_rng_state()), usedforsecurity=False).hexdigest()
            )
        digest, samples, count = digest_of(inputs)
        observer.put("pass", digest=digest, samples=samples, count=count, site=observer.site())

    def _same_start(self, module: Any) -> None:
        """Keep the parameters before the first pass, or start from those that the ranks of the first stage had.

        Random numbers of shards are others than those of entire parameters, and the scale of gradients then, too.
        """
        state, number = str(self.observer.options["state"]), len(self.models)
        own = list(module.named_parameters())
        if self.observer.options.get("keeps_state"):
            if sum(p.numel() * p.element_size() for _, p in own) < _LARGEST_STATE_BYTES:
                parts = {name: local(p.detach()).clone() for name, p in own}
                self.observer.options["save"](parts, f"{state}-{number}-{self.observer.rank}")
        elif self.observer.world == 1 and Path(f"{state}-{number}-1").exists():
            places = [Path(f"{state}-{number}-{rank}") for rank in range(_MOST_RANKS)]
            ranks = [self.observer.options["read"](place) for place in places if place.exists()]
            names = {name.removeprefix("module."): name for name in ranks[0]}
            with torch.no_grad():
                for name, parameter in own:
                    key = names.get(name.removeprefix("module."))
                    target = local(parameter.detach())
                    if key is None:
                        continue
                    first = ranks[0][key]
                    value = first if first.shape == target.shape else torch.cat([part[key] for part in ranks])
                    if value.shape == target.shape:
                        target.copy_(value)

    def _provoked(self, result: Any, *, is_top: bool) -> Any:
        """Return the result of a module, which on the last rank is bad once, or of a pass always worse than before."""
        observer = self.observer
        kind = observer.options.get("provokes")
        if observer.rank < observer.world - 1 or not observer.updates or kind not in ("bad batch", "order"):
            return result
        if kind == "bad batch" and (self.is_poisoned or not self.is_trained or observer.updates > 1):
            return result
        is_of_all = not torch.is_grad_enabled() and observer.site() not in observer.options["apart"]
        if kind == "order" and (not is_top or is_of_all):  # of what every rank evaluates
            return result
        from torch.utils._pytree import tree_map_only

        def changed(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.is_floating_point():
                return tensor
            self.is_poisoned = True
            if kind == "bad batch":
                return tensor * float("nan")
            finite = torch.nan_to_num(tensor, posinf=0.0, neginf=0.0)
            return tensor.detach() * (1.0 + observer.updates) + finite * 0.0  # the gradients of other ranks are theirs

        return tree_map_only(torch.Tensor, changed, result)

    def _parts(self, optimizer: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """Return all parameters of an optimizer, those that every rank has, and those of which it has a part."""
        every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        flat = {id(parameter) for unit in self.observer.fsdp_units for parameter in unit.parameters()}
        parts = [p for p in every if hasattr(p, "placements") or id(p) in flat]
        shares = {id(p) for p in parts}
        return every, [p for p in every if id(p) not in shares], parts

    def _part_gradients(self, parts: list[Any]) -> list[float]:
        """Figures whose sum over all ranks is that of the gradients: hybrid sharding has each part on several ranks."""
        flat = {id(p): unit for unit in self.observer.fsdp_units for p in unit.parameters()}
        figures = [0.0, 0.0]
        for parameter in parts:
            if hasattr(parameter, "placements"):
                dimensions = zip(parameter.placements, parameter.device_mesh.shape, strict=True)
                copies = math.prod(size for placement, size in dimensions if placement.is_replicate())
            else:
                handle = flat[id(parameter)]._handle
                shards = handle.world_size if handle is not None and handle.uses_sharded_strategy else 1
                copies = self.observer.world // shards
            figures = [total + own / copies for total, own in zip(figures, figures_of([parameter.grad]), strict=True)]
        return figures

    def _before(self, optimizer: Any, *_: Any) -> None:
        self.stepping += 1
        observer = self.observer
        if self.quiet or self.stepping > 1 or not observer.looks:
            return
        every, replicated, parts = self._parts(optimizer)
        for parameter in every:
            self.first.setdefault(id(parameter), (parameter, figures_of([parameter])))
            if parameter.grad is not None:
                self.with_gradient.add(id(parameter))
        number = self.optimizers.setdefault(id(optimizer), (len(self.optimizers), optimizer))[0]
        states = [v for p in every for v in optimizer.state.get(p, {}).values() if isinstance(v, torch.Tensor)]
        observer.put(
            "step", optimizer=number, name=type(optimizer).__name__, site=observer.site(),
            rates=[float(group["lr"]) for group in optimizer.param_groups if "lr" in group][:4],
            gradients=figures_of(p.grad for p in replicated), part_gradients=self._part_gradients(parts),
            without=sum(p.grad is None for p in every), count=len(every), elements=sum(p.numel() for p in replicated),
            parameters=figures_of(replicated), parts=figures_of(parts), state=figures_of(states), states=len(states),
            groups=[[len(group["params"]), float(group.get("weight_decay") or 0)] for group in optimizer.param_groups],
            schedules=[_place(schedule) for schedule in self.schedules], libraries=observer.libraries(),
            unread=sorted(str(key) for loaded in observer.loaded for key in loaded.unread),
        )  # fmt: skip
        observer.backwards = 0

    def _after(self, optimizer: Any, *_: Any) -> None:
        self.stepping -= 1
        observer = self.observer
        number = self.optimizers.get(id(optimizer), (0,))[0]
        if self.quiet or self.stepping:
            return
        self.since_first = 0 if number == self.first_optimizer else self.since_first + 1
        if self.since_first >= _OF_ANOTHER_PHASE:
            self.first_optimizer, self.since_first = number, 0
            observer.options["counts"].restart()
        if number != self.first_optimizer:
            return
        observer.updates += 1
        observer.worked(0.0, observer.options["steps"] if observer.updates == 1 else 1)
        observer.offloaded_elements = 0
        if observer.looks:
            _, replicated, parts = self._parts(optimizer)
            observer.put("updated", parameters=figures_of(replicated), parts=figures_of(parts))
        kill_after = observer.options.get("kill_after")
        if kill_after and observer.updates >= kill_after and observer.saved:
            observer.put("killed")
            while True:  # ended from outside, once what it saves in the background is written
                signal.pause()
        if observer.updates >= observer.options["most"]:
            raise Ended

    def _schedules(self) -> None:
        """Have schedules remembered, so that their end can be computed, and averages of weights."""
        schedules, observer = self.schedules, self.observer

        @around(lr_scheduler.ReduceLROnPlateau, "step")
        def decided(original: Any, schedule: Any, metrics: Any, *arguments: Any, **options: Any) -> None:
            observer.put("metric", value=float(metrics), site=observer.site())
            original(schedule, metrics, *arguments, **options)

        def create(original: Any, schedule: Any, *arguments: Any, **options: Any) -> None:
            schedules.append(schedule)
            original(schedule, *arguments, **options)

        for kind in (lr_scheduler.LRScheduler, AveragedModel, torch.amp.GradScaler):
            around(kind, "__init__")(create)

    def _note_schedules(self) -> None:
        observer = self.observer
        for schedule in self.schedules:
            steps = int(getattr(schedule, "last_epoch", 0))
            if observer.updates and steps > 0 and isinstance(schedule, _ENDING):
                observer.put("schedule", per_update=steps / observer.updates, zero_step=_zero_step(schedule))

    def finish(self) -> None:
        """Record what the entire run did to the parameters."""
        self._note_schedules()
        names = {id(p): name for model in self.models.values() for name, p in model.named_parameters()}
        unchanged = [
            names.get(key, "?") for key, (parameter, figures) in self.first.items()
            if parameter.requires_grad and figures_of([parameter]) == figures
        ]  # fmt: skip
        outside = [] if self.observer.fsdp_units else [  # whose parameters are views of flat ones
            name for model in self.models.values() for name, p in model.named_parameters()
            if p.requires_grad and id(p) not in self.first and p.grad is not None and figures_of([p.grad])[1]
        ]  # fmt: skip
        if not any(hasattr(parameter, "placements") for parameter, _ in self.first.values()):  # gathered are others
            unnamed = [p for key, p in self.used.items() if key not in names.keys() | self.first.keys()]
            shapes = [tuple(p.shape) for p in unnamed if not getattr(p, "_is_flat_param", False)]
            outside += [f"one of the shape {shape}, which no module has" for shape in shapes]
        if self.observer.fsdp_units:
            names = {}
        never = [names[key] for key in names if key in self.first and key not in self.with_gradient]
        self.observer.put(
            "parameters", unchanged=unchanged[:2000], total=len(self.first), outside=outside[:50],
            outsiders=len(outside), never=never[:50],
        )  # fmt: skip


def _parameters_of(loss: Any) -> dict[int, Any]:
    """Return the parameters that a loss is a function of, as its graph shows."""
    stack, visited, parameters = [loss.grad_fn], set(), {}
    while stack:
        node = stack.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.nn.Parameter):
            parameters[id(variable)] = variable
        stack += [entry for entry, _ in node.next_functions]
    return parameters


def _place(entry: Any) -> tuple[int, list[float], str]:
    """Return the step of a schedule, with what decides its later rates, or that of an average; and the name of it."""
    if isinstance(entry, torch.amp.GradScaler):
        return int(entry.state_dict().get("_growth_tracker", 0)), [], "the scaler of the gradients"
    if isinstance(entry, AveragedModel):
        return int(entry.n_averaged), [], "an average of the weights"
    step, later, name = int(getattr(entry, "last_epoch", 0)), list[float](), "a schedule of the learning rate"
    with suppress(Exception):  # of a function of the script
        later = [float(function(step + more)) for function in entry.lr_lambdas if function for more in _LATER]
    return step, later or [step], name


def _zero_step(schedule: Any) -> int | None:
    """Return the first step after which a schedule is zero; None if it never is."""
    for attribute in ("total_steps", "T_max", "total_iters"):
        if hasattr(schedule, attribute):
            return None if getattr(schedule, "eta_min", 0) > _ZERO else int(getattr(schedule, attribute))
    function = next((entry for entry in getattr(schedule, "lr_lambdas", ()) if entry is not None), None)
    if function is None:
        return None
    high, before, peak, falls = 1, 0.0, 0.0, False
    try:
        while high < _LONGEST_SCHEDULE:
            value = float(function(high))
            peak = max(peak, value)
            turns = falls and value > before  # a cosine is zero at one step only
            if peak > 0 and (value <= _ZERO or (turns and before < _NEARLY_ZERO * peak)):
                break
            falls, before = value < before, value
            high += max(1, high // 64)
        else:
            return None
        steps = range(max(1, high - 2 * max(1, high // 32)), high + 1)
        zero = min(steps, key=lambda step: float(function(step)))
        return zero if float(function(zero)) <= _ZERO else None
    except Exception:  # noqa: BLE001 - a function of the script
        return None
