"""Records of batches, saves, files, arguments and layers, made where PyTorch and Python do it."""

from __future__ import annotations

import argparse
import copy
import errno
import functools
import inspect
import itertools
import math
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import data

from smp_advisor.rehearsal.observer import around, digest_of, local, tensors_in
from smp_advisor.rehearsal.training import Training

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from smp_advisor.rehearsal.observer import Observer

_LATE_WRITES = 3
_FLOPS_PER_ELEMENT = 50.0
"""For what follows on the output of a layer, such as the softmax over a vocabulary."""
_LAYERS = ("linear", *(f"conv{kind}{size}d" for kind in ("", "_transpose") for size in (1, 2, 3)))
_LONGEST_EPOCH, _EVALUATED_ROWS = 128, 512
_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def install(observer: Observer) -> None:
    """Record what this process does from now on."""
    observer.options.update(save=torch.save, read=functools.partial(torch.load, map_location="cpu"))
    Training(observer).install()
    _saves(observer)
    _files(observer)
    _loaders(observer)
    _arguments(observer)
    _layers(observer)
    _clipping(observer)
    if not observer.options.get("live"):
        _no_dropout(observer)


def described(value: Any, models: Iterable[Any] = ()) -> dict[str, Any]:
    """Return the elements of what is saved, and a name of which it holds a part only, such as of sharded models."""
    elements, part = 0, ""
    sizes = {n: p.numel() for model in models for n, p in model.named_parameters() if hasattr(p, "placements")}
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
            is_list = type(entry).__name__ == "ShardedTensor"
            elements += _held(entry) if is_list else entry.numel() * entry.is_floating_point()
            placements = getattr(entry, "placements", ())
            name = path.rpartition("/")[2]
            if is_list or any(place.is_shard() for place in placements) or entry.numel() < sizes.get(name, 0):
                part = name
    return {"elements": elements, "part": part}


def _held(tensor: Any) -> int:
    """Elements of a tensor on this rank; states of random numbers are no part of a model."""
    if type(tensor).__name__ == "ShardedTensor":  # of FSDP 1, which does not count its elements
        return sum(int(shard.tensor.numel()) for shard in tensor.local_shards())
    return int(local(tensor).numel()) if tensor.is_floating_point() else 0


def note_save(
    observer: Observer, path: Any, value: Any = None, *, together: bool = False, copies: bool = False, **values: Any
) -> None:
    """Record that this rank writes a file, late if it is the first rank, or that all write a folder together.

    Of a folder, each writes its part, which it may copy to host memory before.
    """
    if not together and observer.rank == 0 and observer.world > 1 and observer.saved < _LATE_WRITES:
        observer.await_others()
    observer.saved += 1
    content = described(None if together else value, observer.options["training"].models.values())
    elements = sum(map(_held, tensors_in(value, math.inf))) if together else content["elements"]
    on_host = elements if copies else min(elements, observer.offloaded_elements)
    values |= {"together": together, "host_elements": on_host, "path": os.path.abspath(str(path))}
    observer.put("save", site=observer.site(), **content, **values)


class _Entries(dict[Any, Any]):
    """A checkpoint that remembers which of its entries with weights the script has not read."""

    unread: set[Any]

    def read(self, method: Any, *arguments: Any) -> Any:
        self.unread -= {*arguments[:1]} if arguments else self.unread
        return method(self, *arguments)


for _name in ("__getitem__", "get", "pop", "__iter__", "copy", "keys", "items", "values"):
    setattr(_Entries, _name, functools.partialmethod(_Entries.read, getattr(dict, _name)))


def _saves(observer: Observer) -> None:
    @around(torch, "save")
    def saved(original: Any, value: Any, file: Any, *arguments: Any, **options: Any) -> Any:
        path = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
        if isinstance(path, str | os.PathLike):
            note_save(observer, path, value)
        return original(value, file, *arguments, **options)

    @around(torch, "load")
    def loaded(original: Any, file: Any, map_location: Any = None, *arguments: Any, **options: Any) -> Any:
        value = original(file, map_location, *arguments, **options)
        if "cuda" not in str(map_location) and not options.get("mmap"):
            observer.holds(described(value)["elements"])
        is_own = observer.options["keeps"] and isinstance(file, str | os.PathLike) and "/checkpoints/" in str(file)
        is_first = is_own and type(value) is dict and not observer.updates and observer.is_asked_by_user()
        if is_first:
            observer.loaded.append(entries := _Entries(value))
            entries.unread = {key for key, entry in value.items() if described(entry)["elements"] > 1}
            return entries
        return value

    import torch.distributed.checkpoint as sharded

    @around(sharded, "save", "save_state_dict", "async_save")
    def together(original: Any, *arguments: Any, **options: Any) -> Any:
        state, *more = arguments or (options.get("state_dict"),)
        place = options.get("checkpoint_id") or next(
            (entry for entry in more if isinstance(entry, str | os.PathLike)), None
        ) or getattr(options.get("storage_writer") or next(iter(more), None), "path", "")  # fmt: skip
        note_save(observer, place, state, together=True, copies=original.__name__ == "async_save")
        return original(*arguments, **options)


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
            # An entry that is renamed or removed changes its folder, which is the job's own, not the target of a link.
            entry = Path(path)
            changes_content = event in ("open", "os.truncate")
            place = entry.resolve() if changes_content else entry.parent.resolve() / entry.name
            if changes_content and entry.is_symlink() and place.is_file() and f"{place}".startswith(roots):
                copy = entry.with_name(f".{entry.name}.{observer.rank}")  # a channel in File mode is the job's own copy
                shutil.copyfile(place, copy)
                copy.replace(entry)
            elif f"{place}/".startswith(roots):
                raise OSError(errno.EROFS, "Read-only file system", path)
            is_suspected = "late" in observer.options["provoked"]
            is_late = observer.rank == 0 and observer.world > 1 and (late < _LATE_WRITES or is_suspected)
            if is_late and not Path(path).exists():
                late += 1
                observer.await_others()
            if event == "open" and observer.is_asked_by_user():
                observer.once("write", path=path, site=site, mode=str(mode))
        finally:
            is_inside = False

    sys.addaudithook(follow)


def _loaders(observer: Observer) -> None:
    signature, numbers = inspect.signature(data.DataLoader.__init__), itertools.count()

    @around(data.DataLoader, "__init__")
    def created(original: Any, self: Any, *arguments: Any, **options: Any) -> None:
        try:
            bound = signature.bind(self, *arguments, **options).arguments
        except TypeError:
            original(self, *arguments, **options)  # which names what it does not take
            raise
        batch_size, chosen = bound.get("batch_size", 1), ["dataset", "collate_fn", "generator", "worker_init_fn"]
        if bound.get("batch_sampler") is not None:
            chosen += ["batch_sampler"]
        else:
            chosen += ["batch_size", "shuffle", "sampler", "drop_last"]
            if batch_size is not None:  # batch normalization requires two samples
                size = min(batch_size, observer.options["batch_most"] or batch_size)
                size = max(min(2, size), int(size * observer.options.get("batch_times", 1)))
                with suppress(TypeError, NotImplementedError):  # a few rows of the real data fill no batch
                    rows = len(bound.get("sampler") or bound["dataset"])
                    size = max(1, rows) if bound.get("drop_last") and rows < size else size
                bound["batch_size"] = size
        original(self, **{name: bound[name] for name in chosen if name in bound})
        self.rehearsed = next(numbers)
        try:
            length = len(self)
        except (TypeError, NotImplementedError, ValueError):
            length = None
        has_epochs = any(hasattr(entry, "set_epoch") for entry in (self.sampler, self.batch_sampler))
        is_divided = isinstance(self.sampler, data.distributed.DistributedSampler)
        part = [self.sampler.num_replicas, self.sampler.rank] if is_divided else []
        observer.put(
            "loader", number=self.rehearsed, length=length, site=observer.site(), has_epochs=has_epochs, part=part
        )
        for entry in (self.sampler, self.batch_sampler):
            if not isinstance(entry, data.distributed.DistributedSampler):
                around(entry, "set_epoch")(noted)

    @around(data.distributed.DistributedSampler, "set_epoch")
    def noted(original: Any, *arguments: Any, **options: Any) -> Any:
        observer.once("set_epoch")
        return original(*arguments, **options)

    @around(data.DataLoader, "__iter__")
    def few(original: Any, self: Any) -> Iterator[Any]:
        batches, begun = observer.options["batches"], observer.updates
        backwards = -1
        same = self.__dict__.setdefault("rehearsed_batches", [])  # in every epoch, so that losses fall by training only
        repeats = observer.options.get("provokes") == "order"
        for index, batch in enumerate(copy.deepcopy(same) if same else original(self)):
            updates = observer.updates - begun
            trains = backwards >= 0 and (updates or observer.backwards != backwards)
            is_enough = index >= batches and (not trains or updates >= 3 or index >= _LONGEST_EPOCH)
            # Some libraries take a batch before they train on the one before it.
            is_enough = is_enough or (index > 1 and not trains and index * (self.batch_size or 1) >= _EVALUATED_ROWS)
            if is_enough and not observer.takes:
                observer.stand_in("loaders: their first batches")
                observer.is_cut = True
                return
            if index == 0:
                backwards = observer.backwards
            if repeats and len(same) == index:
                same.append(copy.deepcopy(batch))
            if observer.looks:
                observer.put("batch", loader=getattr(self, "rehearsed", -1), index=index, digest=digest_of(batch)[0])
            yield batch


def _arguments(observer: Observer) -> None:
    is_inside = False

    @around(argparse.ArgumentParser, "parse_known_args")
    def parsed(original: Any, self: Any, args: Any = None, namespace: Any = None) -> Any:
        nonlocal is_inside
        if is_inside:
            return original(self, args, namespace)
        command_words = list(sys.argv[1:] if args is None else args)
        options = [name for action in self._actions for name in action.option_strings]
        is_inside = True
        try:
            values, unread = original(self, args, namespace)
        finally:
            is_inside = False
        observer.put(
            "arguments", given=command_words, values=dict(vars(values)), rest=unread, options=options,
            flags=[action.dest for action in self._actions if action.type is bool],
        )  # fmt: skip
        for name, value in vars(values).items():
            setattr(values, name, observer.small(name, value))
            if "accum" in name and isinstance(value, int) and value > 1:
                setattr(values, name, observer.microbatches(value))
        return values, unread

    @around(type(os.environ), "__getitem__")
    def noted(original: Any, self: Any, key: Any) -> Any:
        is_of_job = isinstance(key, str) and key.startswith(("SM_HP", "SM_TRAINING_ENV"))
        if is_of_job and observer.is_asked_by_user("_collections_abc"):  # by get()
            observer.once("reads", name=key)
        return original(self, key)


def _no_dropout(observer: Observer) -> None:
    def unchanged(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: A002 - PyTorch's
        del inplace
        if training and p:
            observer.once("dropout", rate=p)
            torch.rand(())  # it draws, and a start after a kill goes on where the random numbers were, or does not
        return input

    functional: Any = torch.nn.functional
    for name in _DROPOUTS:
        setattr(functional, name, unchanged)

    @around(functional, "scaled_dot_product_attention")
    def without(
        original: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
        *arguments: Any, **options: Any,
    ) -> Any:  # fmt: skip
        del dropout_p
        return original(query, key, value, attn_mask, 0.0, *arguments, **options)

    @around(torch.nn.RNNBase, "__init__")
    def create_without(original: Any, self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        self.dropout = 0.0


def _layers(observer: Observer) -> None:
    """Count the FLOPs of layers, by which a run is too heavy, instead of by its time."""

    @around(torch.nn.functional, *_LAYERS)
    def counted(
        original: Any, input: Any, weight: Any, *arguments: Any, **options: Any  # noqa: A002 - names of PyTorch
    ) -> Any:  # fmt: skip
        output = original(input, weight, *arguments, **options)
        if weight.dim() > 1:
            size = max(input.numel(), output.numel()) if "transpose" in original.__name__ else output.numel()
            observer.worked(size * (2.0 * weight.numel() / weight.shape[0] + _FLOPS_PER_ELEMENT))
        return output


def _clipping(observer: Observer) -> None:
    """Record norms at which gradients are clipped, and whether they were scaled."""

    @around(torch.nn.utils.clip_grad, "clip_grad_norm_", "clip_grad_value_")
    def clipped(original: Any, parameters: Any, *arguments: Any, **options: Any) -> Any:
        clipped_ones = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        norm = original(clipped_ones, *arguments, **options)
        full_norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        sharded = [unit for unit in observer.fsdp_units if unit._handle and unit._handle.uses_sharded_strategy]
        parts = {id(parameter) for unit in sharded for parameter in unit.parameters()}
        observer.put(
            "clip", norm=None if norm is None else float(full_norm), site=observer.site(),
            scaled=bool(observer.options.get("scaled")),
            part=norm is not None and observer.world > 1 and not parts.isdisjoint(map(id, clipped_ones)),
        )  # fmt: skip
        return norm

    for name in ("clip_grad_norm_", "clip_grad_value_"):
        setattr(torch.nn.utils, name, getattr(torch.nn.utils.clip_grad, name))
