"""Real training steps with the plan's precision, microbatches and activation checkpointing."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from smp_advisor.profiling.inputs import cast_inputs
from smp_advisor.profiling.patching import wrapped_forwards
from smp_advisor.profiling.precision import training_precision
from smp_advisor.profiling.step import call_model, checkpointed, loss_of, make_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

__all__ = ["Trained", "Trainer", "split"]

_LOSS_SCALE = 2.0**10
_LEARNING_RATE = 5e-4
"""Small enough for convolutional networks, large enough for a visible change in a few steps."""


@dataclass(slots=True)
class Trained:
    """Results of a number of training steps."""

    losses: list[float] = field(default_factory=list)
    with_gradient: set[str] = field(default_factory=set)
    """Parameters with a gradient in any step so far: a step may drop layers at random."""
    forwards: Counter[str] = field(default_factory=Counter)
    """Total forward passes of each block."""
    ran: set[str] = field(default_factory=set)
    """Paths of the modules with parameters of their own that ran."""


class Trainer:
    """A model, its optimizer and its precision.

    Parameters
    ----------
    precision
        ``fp32``; ``amp``: autocast; ``bf16``: pure; ``mixed``: 16-bit copies of fp32 parameters, as with FSDP;
        ``fp16``: the same with a loss scale, like SMP v1's wrapper.
    blocks
        Paths of the blocks with activation checkpointing.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        precision: str,
        dtype: torch.dtype,
        optimizer: str,
        blocks: Sequence[str],
        counted: Sequence[str],
    ) -> None:
        self.model, self.precision, self.dtype = model, precision, dtype
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        form = training_precision(precision)
        self.scale = _LOSS_SCALE if form.scales_loss else 1.0
        has_masters = form.copy_bytes > 0 or form.gathers
        self.masters = [nn.Parameter(p.detach().float().clone()) for p in self.parameters] if has_masters else []
        self.optimizer = make_optimizer(self.masters or self.parameters, optimizer, foreach=False)
        for group in self.optimizer.param_groups:
            group["lr"] = _LEARNING_RATE
        self.blocks, self.counted = blocks, counted
        self.with_gradient: set[str] = set()

    def train(self, batches: Sequence[Sequence[Any]]) -> Trained:
        """Run one step per batch; a batch is a sequence of microbatches."""
        trained = Trained(with_gradient=self.with_gradient)
        with (
            self._counted(trained),
            _running(self.model, trained.ran),
            checkpointed(self.model, self.blocks, preserve_rng_state=True),
        ):
            for microbatches in batches:
                samples = [samples_of(microbatch) for microbatch in microbatches]
                loss_sum = 0.0
                for inputs, count in zip(microbatches, samples, strict=True):
                    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.precision == "amp"):
                        loss = loss_of(call_model(self.model, cast_inputs(inputs, self.dtype)))
                    share = count / sum(samples)
                    (loss * share * self.scale).backward()  # type: ignore[no-untyped-call]
                    loss_sum += float(loss.detach()) * share
                trained.with_gradient |= {name for name, p in self.model.named_parameters() if p.grad is not None}
                self._step()
                trained.losses.append(loss_sum)
        return trained

    def _step(self) -> None:
        if not self.masters:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            return
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float() / self.scale
        self.optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(self.parameters, self.masters, strict=True):
                parameter.copy_(master)
                parameter.grad = None

    def _counted(self, trained: Trained) -> AbstractContextManager[None]:
        """Count the forward passes of the blocks, including recomputation."""

        def wrap(path: str, original: Callable[..., Any]) -> Callable[..., Any]:
            def forward(*arguments: Any, **keywords: Any) -> Any:
                trained.forwards[path] += 1
                return original(*arguments, **keywords)

            return forward

        return wrapped_forwards(self.model, self.counted, wrap)


@contextlib.contextmanager
def _running(model: nn.Module, paths: set[str]) -> Iterator[None]:
    """Add the paths of the modules that run and have parameters of their own."""
    handles = [
        module.register_forward_pre_hook(lambda _, __, path=path: paths.add(path))
        for path, module in model.named_modules()
        if module._parameters
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def split(inputs: Any, sizes: Sequence[int]) -> list[Any]:
    """Split a batch into microbatches of the given sizes, along the first dimension of each tensor."""
    batch = sum(sizes)
    parts, start = [], 0
    for size in sizes:

        def cut(value: Any, start: int = start, size: int = size) -> Any:
            is_batched = isinstance(value, Tensor) and value.ndim and value.shape[0] == batch
            return value[start : start + size] if is_batched else value

        parts.append(tree_map(cut, inputs))
        start += size
    return parts


def samples_of(inputs: Any) -> int:
    """Samples of a batch: the first dimension of its first tensor that has one, also in nested inputs."""
    return next(leaf.shape[0] for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.ndim)
