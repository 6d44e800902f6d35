"""Records of a training, made where PyTorch does it: passes, updates, batches, saves and arguments.

The seed of each rank's backward pass is 1 + rank / 1000: gradients that are averaged are equal all the same, and those
that are not differ even where the data are equal.
"""

from __future__ import annotations

import argparse
import errno
import functools
import hashlib
import itertools
import math
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils import data

from smp_advisor.rehearsal.observer import Ended, bytes_of, digest_of, figures_of, local, tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.rehearsal.observer import Observer

MARK = 1e-3
_LATE_WRITES = 3
_FLOPS_PER_ELEMENT = 50.0
"""For what follows on the output of a layer, such as the softmax over a vocabulary."""
_MOST_RANKS, _LARGEST_STATE_BYTES = 4, 256 * 2**20
_LONGEST_EPOCH = 128
_LONGEST_SCHEDULE, _ZERO, _NEARLY_ZERO = 10_000_000, 1e-13, 0.02
_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def install(observer: Observer) -> None:
    """Record what this process does from now on."""
    observer.options.update(save=torch.save, read=functools.partial(torch.load, map_location="cpu"))
    _Training(observer).install()
    _saves(observer)
    _files(observer)
    _loaders(observer)
    _arguments(observer)
    _layers(observer)
    _clipping(observer)
    if not observer.options.get("live"):
        _no_dropout(observer)


class _Training:
    """Passes and updates, and the parameters that take part."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.optimizers: dict[int, int] = {}
        self.first: dict[int, tuple[Any, list[float]]] = {}
        """Each parameter of an optimizer, with its figures before its first update."""
        self.models: dict[int, Any] = {}
        self.with_gradient: set[int] = set()
        self.used: dict[int, Any] = {}
        """Parameters of which the first losses are functions."""
        self.stepping = self.quiet = 0
        self.is_in_backward = 0
        self.is_poisoned = False
        self.schedules: list[Any] = []
        observer.options["training"] = self

    def install(self) -> None:
        self._passes()
        self._schedules()
        register_optimizer_step_pre_hook(self._before)  # type: ignore[arg-type]
        register_optimizer_step_post_hook(self._after)  # type: ignore[arg-type]
        from torch.distributed.checkpoint import state_dict

        prepare = getattr(state_dict, "_init_optim_state", None)
        if prepare is not None:  # it takes a step with gradients of zero

            def quiet(*arguments: Any, **options: Any) -> Any:
                self.quiet += 1
                try:
                    return prepare(*arguments, **options)
                finally:
                    self.quiet -= 1

            state_dict._init_optim_state = quiet

    def _passes(self) -> None:
        observer = self.observer
        backward: Any = torch.Tensor.backward

        def marked(
            tensor: Any, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, inputs: Any = None,
        ) -> Any:  # fmt: skip
            observer.backwards += 1
            if observer.updates == 0:
                self.used |= _parameters_of(tensor)
            if tensor.numel() == 1:
                observer.put("backward", loss=float(local(tensor.detach())), site=observer.site())
                marks = observer.looks and not observer.has_tensor_parallel
                if observer.world > 1 and gradient is None and marks:
                    gradient = torch.full_like(tensor, 1 + MARK * observer.rank)
            return backward(tensor, gradient, retain_graph, create_graph, inputs)

        torch.Tensor.backward = marked  # type: ignore[method-assign]
        differentiate: Any = torch.autograd.backward

        def recomputing(*arguments: Any, **options: Any) -> Any:
            self.is_in_backward += 1
            try:
                return differentiate(*arguments, **options)
            finally:
                self.is_in_backward -= 1

        torch.autograd.backward = recomputing
        call: Any = torch.nn.Module.__call__

        def called(module: Any, *arguments: Any, **options: Any) -> Any:
            is_top = observer.depth == 0 and not self.is_in_backward
            trains = is_top and torch.is_grad_enabled() and module.training
            if is_top:
                observer.passes += 1
                observer.options["counts"].total_passes += 1
                if trains:
                    self._note(module, arguments, options)
            observer.depth += 1
            try:
                result = call(module, *arguments, **options)
            finally:
                observer.depth -= 1
            return self._poisoned(result) if trains and id(module) in self.models else result

        torch.nn.Module.__call__ = called  # type: ignore[method-assign]

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
                observer.enter("forward and backward")
                self._same_start(module)
            observer.put(
                "model", name=type(module).__name__, elements=sum(p.numel() for p in module.parameters()),
                bytes=sum(p.numel() * p.element_size() for p in module.parameters()),
            )  # fmt: skip
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

    def _poisoned(self, result: Any) -> Any:
        observer = self.observer
        is_last = observer.rank == observer.world - 1
        if (
            not (observer.options.get("provokes") == "bad batch" and is_last and observer.updates == 1)
            or self.is_poisoned
        ):
            return result
        self.is_poisoned = True
        from torch.utils._pytree import tree_map_only

        return tree_map_only(
            torch.Tensor, lambda tensor: tensor * float("nan") if tensor.is_floating_point() else tensor, result
        )

    def _parts(self, optimizer: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """All parameters of an optimizer, those that every rank has, and those of which it has a part."""
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
        number = self.optimizers.setdefault(id(optimizer), len(self.optimizers))
        states = [v for p in every for v in optimizer.state.get(p, {}).values() if isinstance(v, torch.Tensor)]
        if observer.updates == 0:
            observer.enter("first update")
        observer.put(
            "step", optimizer=number, name=type(optimizer).__name__, site=observer.site(),
            rates=[float(group["lr"]) for group in optimizer.param_groups if "lr" in group][:4],
            gradients=figures_of(p.grad for p in replicated), part_gradients=self._part_gradients(parts),
            without=sum(p.grad is None for p in every), count=len(every), elements=sum(p.numel() for p in replicated),
            parameters=figures_of(replicated), parts=figures_of(parts), state=figures_of(states), states=len(states),
            backwards=observer.backwards,
            groups=[[len(group["params"]), float(group.get("weight_decay") or 0)] for group in optimizer.param_groups],
        )  # fmt: skip
        observer.backwards = 0

    def _after(self, optimizer: Any, *_: Any) -> None:
        self.stepping -= 1
        observer = self.observer
        if self.quiet or self.stepping or self.optimizers.get(id(optimizer)) != 0:
            return
        observer.updates += 1
        observer.enter("steps")
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
        """Have schedules remembered, so that their end can be computed."""
        from torch.optim import lr_scheduler

        schedules, observer = self.schedules, self.observer
        decide = lr_scheduler.ReduceLROnPlateau.step

        def decided(schedule: Any, metrics: Any, *arguments: Any, **options: Any) -> None:
            observer.put("metric", value=float(metrics), site=observer.site())
            decide(schedule, metrics, *arguments, **options)

        lr_scheduler.ReduceLROnPlateau.step = decided  # type: ignore[method-assign, assignment]
        kinds = ("LambdaLR", "OneCycleLR", "CosineAnnealingLR", "PolynomialLR")
        for kind in (getattr(lr_scheduler, name) for name in kinds):

            def create(schedule: Any, *arguments: Any, _create: Any = kind.__init__, **options: Any) -> None:
                schedules.append(schedule)
                _create(schedule, *arguments, **options)

            kind.__init__ = create  # type: ignore[method-assign, assignment]

    def _note_schedules(self) -> None:
        observer = self.observer
        for schedule in self.schedules:
            steps = int(getattr(schedule, "last_epoch", 0))
            if observer.updates and steps > 0:
                observer.put("schedule", per_update=steps / observer.updates, zero_step=_zero_step(schedule))

    def finish(self) -> None:
        """Record what the entire run did to the parameters."""
        self._note_schedules()
        names = {id(p): name for model in self.models.values() for name, p in model.named_parameters()}
        unchanged = [
            names.get(key, "?") for key, (parameter, figures) in self.first.items()
            if parameter.requires_grad and figures_of([parameter]) == figures
        ]  # fmt: skip
        outside = [
            name for model in self.models.values() for name, p in model.named_parameters()
            if p.requires_grad and id(p) not in self.first and p.grad is not None and figures_of([p.grad])[1]
        ]  # fmt: skip
        if not any(
            hasattr(parameter, "placements") for parameter, _ in self.first.values()
        ):  # gathered ones are others
            unknown = [p for key, p in self.used.items() if key not in names.keys() | self.first.keys()]
            outside += [f"one of the shape {tuple(p.shape)}, which no module has" for p in unknown]
        if self.observer.fsdp_units:  # their parameters are views of flat ones
            outside, names = [], {}
        never = [names[key] for key in names if key in self.first and key not in self.with_gradient]
        self.observer.put(
            "parameters", unchanged=unchanged[:2000], total=len(self.first), outside=outside[:50],
            outsiders=len(outside), never=never[:50],
        )  # fmt: skip


def _parameters_of(loss: Any) -> dict[int, Any]:
    """Parameters that a loss is a function of, as its graph shows."""
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


def _zero_step(schedule: Any) -> int | None:
    """The first step after which a schedule is zero; None if it never is."""
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


def described(value: Any) -> dict[str, Any]:
    """Elements of what is saved, a name of which it holds a part only, and names of tensors."""
    elements, part, names = 0, "", []
    stack: list[tuple[str, Any, int]] = [("", value, 0)]
    while stack:
        path, entry, depth = stack.pop()
        if isinstance(entry, torch.nn.Module):
            entry = entry.state_dict()
        if isinstance(entry, dict) and depth < 6:
            stack.extend((f"{path}/{key}", item, depth + 1) for key, item in entry.items())
        elif isinstance(entry, list | tuple) and depth < 6:
            stack.extend((f"{path}/{key}", item, depth + 1) for key, item in enumerate(entry))
        elif isinstance(entry, torch.Tensor):
            elements += entry.numel()
            names.append(path)
            placements = getattr(entry, "placements", ())
            if any(place.is_shard() for place in placements) or type(entry).__name__ == "ShardedTensor":
                part = path.rpartition("/")[2]
    return {"elements": elements, "part": part, "names": names[:3]}


def note_save(observer: Observer, path: Any, value: Any, **values: Any) -> None:
    """Record that this rank writes a file or a folder, late if it is the first rank."""
    observer.enter("save")
    if observer.rank == 0 and observer.world > 1 and observer.saved < _LATE_WRITES:
        observer.await_others()
    observer.saved += 1
    observer.put("save", path=os.path.abspath(str(path)), site=observer.site(), **described(value), **values)


def note_together(observer: Observer, path: Any) -> None:
    """Record that all ranks write a folder together."""
    observer.saved += 1
    observer.put("save", path=os.path.abspath(str(path)), site=observer.site(), together=True, **described(None))


def _saves(observer: Observer) -> None:
    save = torch.save

    def saved(value: Any, file: Any, *arguments: Any, **options: Any) -> Any:
        path = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
        if isinstance(path, str | os.PathLike):
            note_save(observer, path, value)
        return save(value, file, *arguments, **options)

    torch.save = saved
    import torch.distributed.checkpoint as sharded

    for name in ("save", "save_state_dict", "async_save"):
        original = getattr(sharded, name, None)
        if original is not None:

            def together(state: Any, *arguments: Any, _save: Any = original, **options: Any) -> Any:
                place = options.get("checkpoint_id") or next(
                    (entry for entry in arguments if isinstance(entry, str | os.PathLike)), None
                ) or getattr(options.get("storage_writer") or next(iter(arguments), None), "path", "")  # fmt: skip
                note_together(observer, place)
                return _save(state, *arguments, **options)

            setattr(sharded, name, together)


_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink", "shutil.move")
_LISTINGS = ("os.listdir", "os.scandir")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_NOT_FILES = ("/dev/", "/proc/", "/sys/")


def _files(observer: Observer) -> None:
    """Follow what Python opens, lists and makes: the first rank is late with new files, channels are not written."""
    roots = tuple(f"{os.path.realpath(root)}/" for root in observer.options["sources"])
    empty = observer.options["empty"]
    is_inside, late = False, 0

    def follow(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal is_inside, late
        if not (event == "open" or event in _CHANGES or event in _LISTINGS) or is_inside or not arguments:
            return
        if not isinstance(arguments[0], str | os.PathLike):
            return
        is_inside = True
        try:
            path = os.path.abspath(os.fspath(arguments[0]))
            for folder, name in empty.items():
                if isinstance(path, str) and f"{path}/".startswith(f"{folder}/"):
                    observer.once("empty channel", name=name)
            mode, flags = (*arguments[1:3], None, None)[:2] if event == "open" else ("w", None)
            writes = bool(set(mode) & set("wxa+")) if isinstance(mode, str) else bool((flags or 0) & _WRITES)
            if path.endswith("hyperparameters.json"):
                observer.once("reads", name="hyperparameters.json")
            if event in _LISTINGS or not writes or path.startswith(_NOT_FILES) or not (site := observer.site()):
                return
            if f"{os.path.realpath(path)}/".startswith(roots):
                raise OSError(errno.EROFS, "Read-only file system", path)
            is_suspected = "late" in observer.options["provoked"]
            is_late = observer.rank == 0 and observer.world > 1 and (late < _LATE_WRITES or is_suspected)
            if is_late and not Path(path).exists():
                late += 1
                observer.await_others()
            if event == "open" and observer.is_asked_by_user(2):
                observer.once("write", path=path, site=site, mode=str(mode))
        finally:
            is_inside = False

    sys.addaudithook(follow)


def _loaders(observer: Observer) -> None:
    loader: Any = data.DataLoader
    create, iterate = loader.__init__, loader.__iter__
    numbers = itertools.count()

    @functools.wraps(create)
    def created(
        self: Any, dataset: Any, batch_size: Any = 1, shuffle: Any = None, sampler: Any = None,
        batch_sampler: Any = None, num_workers: int = 0, collate_fn: Any = None,
        pin_memory: Any = False, drop_last: bool = False,
        timeout: float = 0, worker_init_fn: Any = None, multiprocessing_context: Any = None, generator: Any = None,
        **_: Any,
    ) -> None:  # fmt: skip
        del num_workers, pin_memory, timeout, multiprocessing_context
        if batch_sampler is not None:
            chosen = {"batch_sampler": batch_sampler}
        else:
            if batch_size is not None:
                # Batch normalization requires two samples.
                batch_size = max(min(2, batch_size), int(batch_size * observer.options.get("batch_times", 1)))
            chosen = {"batch_size": batch_size, "shuffle": shuffle, "sampler": sampler, "drop_last": drop_last}
        create(self, dataset, collate_fn=collate_fn, generator=generator, worker_init_fn=worker_init_fn, **chosen)
        self.rehearsed = next(numbers)
        try:
            length = len(self)
        except (TypeError, NotImplementedError, ValueError):
            length = None
        observer.put(
            "loader", number=self.rehearsed, length=length, batch=batch_size, site=observer.site(),
            sampler=type(getattr(self, "sampler", None)).__name__, iterable=isinstance(dataset, data.IterableDataset),
        )  # fmt: skip

    loader.__init__ = created

    def few(self: Any) -> Iterator[Any]:
        batches, begun = observer.options["batches"], observer.updates
        backwards = -1
        for index, batch in enumerate(iterate(self)):
            updates = observer.updates - begun
            trains = backwards >= 0 and (updates or observer.backwards != backwards)
            is_enough = index >= batches and (not trains or updates >= 3 or index >= _LONGEST_EPOCH)
            if is_enough and not observer.takes:
                observer.stand_in("loaders: their first batches")
                return
            if index == 0:
                backwards = observer.backwards
            if observer.looks:
                observer.put("batch", loader=getattr(self, "rehearsed", -1), index=index, digest=digest_of(batch)[0])
            yield batch

    loader.__iter__ = few
    sampler: Any = data.distributed.DistributedSampler
    set_epoch = sampler.set_epoch

    def noted(self: Any, epoch: int) -> None:
        observer.once("set_epoch")
        set_epoch(self, epoch)

    sampler.set_epoch = noted


_ACCUMULATION = ("accumulation", "accum", "grad_accum")
_BATCH_OPTIONS = ("batch_size", "train_batch_size", "per_device_train_batch_size", "micro_batch_size", "bs")


def _arguments(observer: Observer) -> None:
    parse: Any = argparse.ArgumentParser.parse_known_args
    inside = [0]

    def parsed(self: Any, args: Any = None, namespace: Any = None) -> Any:
        if inside[0]:
            return parse(self, args, namespace)
        command_words = list(sys.argv[1:] if args is None else args)
        options = [name for action in self._actions for name in action.option_strings]
        inside[0] = 1
        try:
            values, unread = parse(self, args, namespace)
        finally:
            inside[0] = 0
        observer.put(
            "arguments", given=command_words, values=dict(vars(values)), rest=unread, options=options,
            flags=[action.dest for action in self._actions if action.type is bool],
        )  # fmt: skip
        for name, value in vars(values).items():
            if any(part in name for part in _ACCUMULATION) and isinstance(value, int) and value > 1:
                observer.accumulates(value, "argument")
                if observer.options.get("fold"):
                    setattr(values, name, 1)
                    observer.options["batch_times"] = value
        return values, unread

    argparse.ArgumentParser.parse_known_args = parsed  # type: ignore[method-assign, assignment]
    kind: Any = type(os.environ)
    read = kind.__getitem__

    def noted(self: Any, key: Any) -> Any:
        is_users = observer.is_asked_by_user() or observer.is_asked_by_user(3)  # by get()
        if isinstance(key, str) and key.startswith(("SM_HP", "SM_TRAINING_ENV")) and is_users:
            observer.once("reads", name=key)
        return read(self, key)

    kind.__getitem__ = noted


def _no_dropout(observer: Observer) -> None:
    def unchanged(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: A002 - PyTorch's
        del inplace
        if training and p:
            observer.once("dropout", rate=p)
        return input

    functional: Any = torch.nn.functional
    for name in _DROPOUTS:
        setattr(functional, name, unchanged)
    attention = functional.scaled_dot_product_attention

    def without(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *arguments: Any,
                **options: Any) -> Any:  # fmt: skip
        del dropout_p
        return attention(query, key, value, attn_mask, 0.0, *arguments, **options)

    functional.scaled_dot_product_attention = without
    create: Any = torch.nn.RNNBase.__init__

    def create_without(self: Any, *arguments: Any, **options: Any) -> None:
        create(self, *arguments, **options)
        self.dropout = 0.0

    torch.nn.RNNBase.__init__ = create_without  # type: ignore[method-assign]


def _layers(observer: Observer) -> None:
    """Count the FLOPs of layers, by which a run is too heavy, instead of by its time."""
    functional: Any = torch.nn.functional
    for name in ("linear", "conv1d", "conv2d", "conv3d"):
        setattr(functional, name, _counted(observer, getattr(functional, name)))


def _counted(observer: Observer, layer: Any) -> Any:
    def counted(input: Any, weight: Any, *arguments: Any, **options: Any) -> Any:  # noqa: A002 - names of PyTorch
        output = layer(input, weight, *arguments, **options)
        if weight.dim() > 1:
            observer.worked(output.numel() * (2.0 * weight.numel() / weight.shape[0] + _FLOPS_PER_ELEMENT))
        return output

    return counted


def _clipping(observer: Observer) -> None:
    """Record norms at which gradients are clipped, and whether they were scaled."""
    clip: Any = torch.nn.utils.clip_grad_norm_

    @functools.wraps(clip)
    def clipped(parameters: Any, max_norm: Any, *arguments: Any, **options: Any) -> Any:
        norm = clip(parameters, max_norm, *arguments, **options)
        full_norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        observer.put("clip", norm=float(full_norm), scaled=bool(observer.options.get("scaled")), site=observer.site())
        return norm

    torch.nn.utils.clip_grad_norm_ = clipped
    torch.nn.utils.clip_grad.clip_grad_norm_ = clipped
