"""Conditions of a run in a child process: no GPU, few samples per loader in order, no dropout, and one seed."""

from __future__ import annotations

import itertools
import os
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import data

from smp_advisor.proving.observer import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.proving.observer import Observer

_FACTORIES = (
    "tensor", "zeros", "ones", "randn", "rand", "randint", "arange", "empty", "full", "as_tensor", "eye", "linspace",
    "randperm", "zeros_like", "ones_like", "Generator",
)  # fmt: skip
_SEED = 1234
_BATCH = 8
"""Most samples of a batch; two processes, and two microbatches of each, divide it."""
_BATCHES = 4
"""Batches of each loader."""


def _on_cpu(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("cuda"):
        return "cpu"
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return value


def use_cpu() -> None:
    """Redirect devices and the communication backend to the CPU."""
    if torch.cuda.is_available():
        return
    for owner in (torch.Tensor, torch.nn.Module):
        original: Any = owner.to

        def move(value: Any, *arguments: Any, _original: Any = original, **options: Any) -> Any:
            arguments = tuple("cpu" if type(a) is int else _on_cpu(a) for a in arguments)
            return _original(value, *arguments, **{key: _on_cpu(item) for key, item in options.items()})

        replace(owner, to=move, cuda=lambda value, *_, **__: value)
    replace(torch.Tensor, pin_memory=lambda value, *_: value)
    for name in _FACTORIES:
        factory = getattr(torch, name)
        if not isinstance(factory, type):
            on_cpu = _calling(factory, lambda options: {name: _on_cpu(value) for name, value in options.items()})
            setattr(torch, name, on_cpu)
    replace(
        torch.cuda,
        set_device=lambda *_: None,
        current_device=lambda: torch.device("cpu"),
        synchronize=lambda *_: None,
        empty_cache=lambda: None,
    )
    start = torch.distributed.init_process_group

    def init_process_group(backend: Any = None, *arguments: Any, **options: Any) -> None:
        del backend
        start("gloo", *arguments, **{k: v for k, v in options.items() if k not in ("device_id", "rank", "world_size")})

    replace(torch.distributed, init_process_group=init_process_group)
    replace(torch.cuda, device_count=lambda: 1)
    wrap: Any = torch.nn.parallel.DistributedDataParallel.__init__

    def wrap_on_cpu(self: Any, module: Any, *arguments: Any, **options: Any) -> None:
        del arguments
        wrap(self, module, **{k: v for k, v in options.items() if k not in ("device_ids", "output_device")})

    replace(torch.nn.parallel.DistributedDataParallel, __init__=wrap_on_cpu)
    replace(
        torch.multiprocessing, spawn=lambda function, args=(), **_: function(int(os.environ.get("RANK", "0")), *args)
    )
    # Gathered states are not offloaded: PyTorch 2.13 crashes if they are on the CPU already.
    from torch.distributed import fsdp
    from torch.distributed.checkpoint import state_dict

    for module, name, option in (
        (state_dict, "StateDictOptions", "cpu_offload"),
        (fsdp, "FullStateDictConfig", "offload_to_cpu"),
        (fsdp, "FullOptimStateDictConfig", "offload_to_cpu"),
    ):
        setattr(module, name, _calling(getattr(module, name), lambda options, _o=option: {**options, _o: False}))


def _calling(function: Any, change: Any) -> Any:
    """The function with its options changed."""
    return lambda *arguments, **options: function(*arguments, **change(options))


def install_tsm() -> None:
    """Make ``import torch.sagemaker`` import a stand-in that transforms nothing, so that FSDP alone runs."""
    tsm: Any = types.ModuleType("torch.sagemaker")
    tsm.__path__ = []
    tsm.init = lambda *_, **__: None
    tsm.transform = lambda model, **_: model
    tsm.state = types.SimpleNamespace(
        tensor_parallel_degree=1, context_parallel_degree=1, hybrid_shard_degree=0, expert_parallel_degree=1
    )
    norm: Any = types.ModuleType("torch.sagemaker.grad_norm")
    norm.clip_grad_norm_ = lambda model, max_norm, *_, **__: model.clip_grad_norm_(max_norm)
    tsm.grad_norm = norm
    replace(torch, sagemaker=tsm)
    sys.modules |= {"torch.sagemaker": tsm, "torch.sagemaker.grad_norm": norm}


_HALF = {torch.bfloat16: "bf16", torch.float16: "fp16"}


def follow_settings(observer: Observer) -> None:  # noqa: C901 - a list of replacements
    """Record the precision and the checkpointing that a script requests, and compute in fp32, which rounds nothing."""
    from torch.distributed import fsdp
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
    from torch.utils import checkpoint

    def note(dtype: Any) -> Any:
        if dtype in _HALF:
            observer.settings.setdefault("precision", _HALF[dtype])
            return torch.float32
        return dtype

    for name, default_policy in (("MixedPrecision", None), ("MixedPrecisionPolicy", fsdp.MixedPrecisionPolicy())):

        def policy(*arguments: Any, _kept: Any = default_policy, **options: Any) -> Any:
            for value in (*arguments[:1], options.get("param_dtype")):
                note(value)
            return _kept

        replace(fsdp, **{name: policy})
    enter = torch.amp.autocast_mode.autocast.__init__

    def autocast(context: Any, device_type: str = "cuda", dtype: Any = None, **options: Any) -> None:
        del device_type
        if options.get("enabled", True):
            note(dtype or torch.float16)
        enter(context, "cpu", torch.bfloat16, **{**options, "enabled": False})

    replace(torch.amp.autocast_mode.autocast, __init__=autocast)
    for owner in (torch.Tensor, torch.nn.Module):
        convert: Any = owner.to

        def to(value: Any, *arguments: Any, _convert: Any = convert, **options: Any) -> Any:
            arguments = tuple(note(a) for a in arguments)
            return _convert(value, *arguments, **{key: note(item) for key, item in options.items()})

        def half(value: Any, _dtype: Any = torch.float16) -> Any:
            note(_dtype)
            return value

        replace(owner, to=to, half=half, bfloat16=lambda value: (note(torch.bfloat16), value)[1])

    def count(run: Any) -> Any:
        def counted(*arguments: Any, **options: Any) -> Any:
            observer.settings["activation_checkpointing"] = True
            return run(*arguments, **options)

        return counted

    replace(checkpoint, checkpoint=count(checkpoint.checkpoint))
    replace(CheckpointWrapper, forward=count(CheckpointWrapper.forward))
    transformers: Any = sys.modules.get("transformers")
    if transformers is not None:
        model = transformers.PreTrainedModel
        replace(model, gradient_checkpointing_enable=count(model.gradient_checkpointing_enable))


class _Small(data.Subset[Any]):
    """The first samples of a dataset, with its attributes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["dataset"], name)


class _Order(data.Sampler[int]):
    """All samples in order, or every `step`-th of them from `start`."""

    def __init__(self, count: int, start: int, step: int, observer: Observer) -> None:
        self.count, self.start, self.step, self.observer = count, start, step, observer

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.count, self.step))

    def __len__(self) -> int:
        return len(range(self.start, self.count, self.step))

    def set_epoch(self, epoch: int) -> None:
        """Note the epoch: the order is fixed."""
        del epoch
        self.observer.notes.add("set_epoch")


def make_small(
    observer: Observer, *, divide: bool, parts: int = 1, accumulation: int = 1, most: int = _BATCH, entire: bool = False
) -> None:
    """Replace the data loader by one with at most `most` ordered samples per batch, divided by `parts`.

    With `entire`, batches of all sizes become as large as that. A script that accumulates the gradients of
    `accumulation` batches gets batches that are smaller by it, and more.

    With `divide`, a sampler by rank gives each process its part of every batch. Otherwise all processes get all
    samples, so that each repeats the original run.
    """
    original: Any = data.DataLoader.__init__

    names = ("batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn")

    def create(loader: data.DataLoader[Any], dataset: Any, *arguments: Any, **options: Any) -> None:
        passed = {"batch_size": 1, **dict(zip(names, arguments, strict=False)), **options}
        options = {"collate_fn": passed.get("collate_fn")}
        batch_size, sampler, batches = passed["batch_size"], passed.get("sampler"), passed.get("batch_sampler")
        loader.requested_size = batch_size
        if isinstance(dataset, data.IterableDataset) or batches is not None or batch_size is None:
            own = {"batch_size": batch_size} if batches is None else {"batch_sampler": batches}
            original(loader, dataset, **own, **options)
            return
        loader.source = "divided" if isinstance(sampler, data.distributed.DistributedSampler) else "same"
        size = max(1, min(most if entire else min(batch_size, most), max(1, len(dataset))) // parts)
        count = min(len(dataset), size * _BATCHES) // size * size
        size = max(1, size // accumulation)
        small = _Small(dataset, range(count))
        start, step = 0, 1
        if isinstance(sampler, data.distributed.DistributedSampler):
            observer.notes.add(f"shard {sampler.rank} of {sampler.num_replicas}")
            if sampler.shuffle:
                observer.notes.add("shuffled shards")
            if divide and size % sampler.num_replicas:
                observer.notes.add("undivided")
            elif divide:
                start, step = sampler.rank, sampler.num_replicas
                size //= step
        order = _Order(count, start, step, observer)
        original(loader, small, batch_size=size, sampler=order, **options)

    replace(data.DataLoader, __init__=create)
    iterate = data.DataLoader.__iter__

    def limited(loader: data.DataLoader[Any]) -> Any:
        state = torch.get_rng_state()
        batches = iterate(loader)
        torch.set_rng_state(state)  # the iterator draws a seed for its workers
        few = batches if isinstance(loader.dataset, _Small) else itertools.islice(batches, _BATCHES * accumulation)
        return _followed(observer, loader, few)

    replace(data.DataLoader, __iter__=limited)

    def set_epoch(sampler: Any, epoch: int) -> None:
        sampler.epoch = epoch
        observer.notes.add("set_epoch")

    replace(data.distributed.DistributedSampler, set_epoch=set_epoch)


def _followed(observer: Observer, loader: Any, batches: Any) -> Iterator[Any]:
    if getattr(loader, "passes", 0) and observer.loader is not None:
        observer.notes.add("several passes")
    loader.passes = 1
    for batch in batches:
        observer.loader = loader
        yield batch


def stand_in_for_files(observer: Observer) -> None:
    """Random tokens instead of a memory-mapped data file that is not there."""
    import numpy as np

    original: Any = np.memmap

    def memmap(path: Any, dtype: Any = np.uint8, mode: str = "r+", **options: Any) -> Any:
        if mode == "r" and isinstance(path, str | Path) and not Path(path).exists():
            observer.notes.add(f"stand-in: data file {Path(path).name}")
            return np.random.default_rng(_SEED).integers(0, 64, 4096).astype(dtype)
        return original(path, dtype=dtype, mode=mode, **options)

    replace(np, memmap=memmap)


def make_deterministic() -> None:
    """Seed everything alike, and turn dropout off: parts of a batch would draw other masks."""
    import random

    import numpy as np

    seed = torch.manual_seed

    def same_seed(number: int) -> torch.Generator:
        del number
        return seed(_SEED)

    random.seed(_SEED)
    np.random.seed(_SEED)  # noqa: NPY002 - the generator that scripts use
    seed(_SEED)
    replace(torch, manual_seed=same_seed)
    replace(torch.random, manual_seed=same_seed)
    functional = torch.nn.functional
    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"):
        setattr(functional, name, lambda input, *_, **__: input)  # noqa: A006 - the name of the parameter
    attention = functional.scaled_dot_product_attention

    def without_dropout(*arguments: Any, **keywords: Any) -> torch.Tensor:
        keywords["dropout_p"] = 0.0
        if len(arguments) > 5:
            keywords["is_causal"] = arguments[5]
        return attention(*arguments[:4], **keywords)

    replace(functional, scaled_dot_product_attention=without_dropout)
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        # With a small eps, the rounding of gradients near zero decides the direction of an update.
        def with_large_eps(self: Any, params: Any, *arguments: Any, _of: Any = kind.__init__, **keywords: Any) -> None:
            names = ("lr", "betas", "eps", "weight_decay")
            _of(self, params, **{**dict(zip(names, arguments, strict=False)), **keywords, "eps": 0.01})

        replace(kind, __init__=with_large_eps)
    create = torch.nn.RNNBase.__init__

    def create_without_dropout(module: torch.nn.RNNBase, *arguments: Any, **keywords: Any) -> None:
        create(module, *arguments, **keywords)
        module.dropout = 0.0

    replace(torch.nn.RNNBase, __init__=create_without_dropout)
