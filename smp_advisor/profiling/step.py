"""One training step, watched: saved bytes, FLOPs and live memory, on fake tensors and on real ones alike."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.cuda_autocast import cuda_autocast_rules
from smp_advisor.profiling.forwards import wrapped_forwards
from smp_advisor.profiling.gpu_kernels import gpu_kernels
from smp_advisor.profiling.watch import Watch, storage_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smp_advisor.profiling.watch import BlockMeasure, Stretch

__all__ = ["StepMeasure", "call_model", "checkpointed", "loss_of", "measure_step"]

Inputs = Mapping[str, Any] | Sequence[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMeasure:
    """What one step did, at one batch and sequence."""

    parameter_count: int
    saved_bytes: int
    """Kept by autograd at the end of the forward pass, parameters and buffers left out."""
    forward_flops: int
    backward_flops: int
    blocks: Mapping[str, BlockMeasure]
    """By path; "" holds what lies between the blocks."""
    stretches: tuple[Stretch, ...]
    """Live memory of the last step from mark to mark."""
    resident_bytes: int
    """Parameters, buffers, inputs and optimizer state before the last step."""
    peak_bytes: int
    """Highest live bytes of the last step."""
    gradient_bytes: int
    without_gradient: tuple[str, ...]
    """Trainable parameters that the step gave no gradient."""
    operations: int
    assumed: tuple[str, ...]
    """Data-dependent tests that were answered by assumption."""
    outputs: int
    """Columns of the logits, 0 where the model returns none."""
    loss: Tensor | None = field(repr=False, compare=False)


def measure_step(
    model: nn.Module,
    inputs: Inputs,
    *,
    precision: str = "fp32",
    attention: str = "fused",
    blocks: Sequence[str] = (),
    backward: bool = True,
    optimizer: torch.optim.Optimizer | None = None,
    steps: int = 1,
    answer: bool | None = None,
    checkpointing: bool = False,
) -> StepMeasure:
    """Run steps of a model and watch the last one.

    The model and its inputs already have the types of the precision; ``amp`` adds autocast. Under an active
    `FakeTensorMode` nothing is allocated.

    Parameters
    ----------
    blocks
        Paths of the modules to tell apart.
    optimizer
        Stepped after each backward pass, gradients then freed.
    answer
        What data-dependent tests are answered with.
    checkpointing
        Whether each of `blocks` is recomputed in the backward pass.
    """
    named = dict(model.named_parameters())
    watch = Watch(named, answer=answer)
    own = [*named.values(), *model.buffers()]
    watch.hold([*own, *tree_leaves(inputs)])
    keep = _Saved(watch, frozenset(key for key in map(storage_key, own) if key is not None))
    output: Any = None
    loss: Tensor | None = None
    resident = watch.live_bytes
    saved = gradients = outputs = 0
    missing: tuple[str, ...] = ()
    with contextlib.ExitStack() as stack:
        stack.enter_context(watch)
        stack.enter_context(gpu_kernels(attention, watch.on_attention))
        if precision == "amp":  # until the backward pass has ended: it may recompute
            stack.enter_context(cuda_autocast_rules())
        if checkpointing:
            stack.enter_context(checkpointed(model, blocks))
        stack.enter_context(_marks(model, blocks, watch))
        for _ in range(steps):
            loss = None
            watch.restart("forward")
            watch.blocks.clear()
            watch.flops.clear()
            keep.clear()
            resident = watch.live_bytes
            autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "amp")
            with torch.autograd.graph.saved_tensors_hooks(keep.pack, _unpack), autocast:
                output = call_model(model, inputs)
                loss = loss_of(output)
            saved = keep.bytes
            outputs = _outputs(output, loss)
            keep.release()
            output = None
            watch.mark("backward")
            if backward:
                loss.backward()  # type: ignore[no-untyped-call]
                watch.mark("optimizer")
                missing = tuple(name for name, p in named.items() if p.requires_grad and p.grad is None)
                gradients = sum(p.grad.untyped_storage().nbytes() for p in named.values() if p.grad is not None)
                loss = loss.detach()
                if optimizer is not None:
                    optimizer.step()
                    watch.mark("end")
                    optimizer.zero_grad(set_to_none=True)
    if backward and optimizer is None:
        model.zero_grad(set_to_none=True)
    return StepMeasure(
        parameter_count=sum(p.numel() for p in named.values()),
        saved_bytes=saved,
        forward_flops=watch.flops["forward"],
        backward_flops=watch.flops["backward"],
        blocks=dict(watch.blocks),
        stretches=tuple(watch.stretches),
        resident_bytes=resident,
        peak_bytes=watch.peak_bytes,
        gradient_bytes=gradients,
        without_gradient=missing,
        operations=watch.operations,
        assumed=tuple(watch.assumed),
        outputs=outputs,
        loss=loss,
    )


def call_model(model: nn.Module, inputs: Inputs) -> Any:
    """The model's output for inputs by name or by place."""
    return model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)


def loss_of(output: Any) -> Tensor:
    """The loss a model returns, or the mean of its first result where it returns none."""
    if isinstance(output, Tensor) and output.ndim == 0:
        return output
    loss = getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return loss if loss.ndim == 0 else loss.mean()
    for leaf in tree_leaves(output if not hasattr(output, "to_tuple") else output.to_tuple()):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            return leaf if leaf.ndim == 0 else leaf.float().mean()
    raise ProfileError(
        "The model returns nothing to train on, neither a loss nor a tensor with a gradient: pass inputs with labels, "
        "or a module whose forward returns the loss."
    )


class _Saved:
    """Storages that autograd keeps."""

    def __init__(self, watch: Watch, own: frozenset[int]) -> None:
        self.watch, self.own = watch, own
        self.bytes = 0
        self._held: dict[int, Any] = {}

    def clear(self) -> None:
        self.bytes = 0
        self._held.clear()

    def release(self) -> None:
        """Autograd holds them from here on."""
        self._held.clear()

    def pack(self, tensor: Tensor) -> Tensor:
        key = storage_key(tensor)
        if key is not None and key not in self._held and key not in self.own:
            storage = tensor.untyped_storage()
            self._held[key] = storage  # so that no other storage takes its address
            self.bytes += storage.nbytes()
            self.watch.blocks[self.watch.block].saved_bytes += storage.nbytes()
        return tensor


def _unpack(tensor: Tensor) -> Tensor:
    return tensor


def _outputs(output: Any, loss: Tensor) -> int:
    """Last dimension of the logits."""
    logits = getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf is not loss and leaf.ndim]
        logits = tensors[0] if tensors else None
    return int(logits.shape[-1]) if isinstance(logits, Tensor) and logits.ndim else 0


@contextlib.contextmanager
def _marks(model: nn.Module, blocks: Sequence[str], watch: Watch) -> Iterator[None]:
    """The watch learns when each block begins and ends, forward and backward."""
    handles = []
    for path in blocks:
        module = model.get_submodule(path)
        handles.append(module.register_forward_pre_hook(_entering(watch, path), with_kwargs=True))
        handles.append(module.register_forward_hook(_leaving(watch, path)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _entering(watch: Watch, path: str) -> Callable[..., None]:
    def hook(_: nn.Module, arguments: Any, keywords: Any) -> None:
        if watch.phase != "forward":  # recomputed
            return
        watch.mark("forward", path)
        measure = watch.blocks[path]
        measure.calls += 1
        seen: dict[int, int] = {}
        for leaf in tree_leaves((arguments, keywords)):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                key = storage_key(leaf)
                if key is not None:
                    seen[key] = leaf.untyped_storage().nbytes()
                    measure.hidden = measure.hidden or _width(leaf)
        measure.input_bytes = sum(seen.values())

    return hook


def _width(tensor: Tensor) -> int:
    """Hidden size of tokens [batch, sequence, hidden], channels of images [batch, channels, height, width]."""
    if tensor.ndim < 2:
        return 0
    return int(tensor.shape[1] if tensor.ndim == 4 else tensor.shape[-1])


def _leaving(watch: Watch, path: str) -> Callable[..., None]:
    def hook(_: nn.Module, __: Any, output: Any) -> None:
        if watch.phase != "forward":
            return
        watch.mark("forward")
        for leaf in tree_leaves(output if not hasattr(output, "to_tuple") else output.to_tuple()):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaf.register_hook(lambda _: watch.mark("backward", path))  # type: ignore[no-untyped-call]
                return

    return hook


@contextlib.contextmanager
def checkpointed(model: nn.Module, blocks: Sequence[str], *, preserve_rng_state: bool = False) -> Iterator[None]:
    """Each block is recomputed in the backward pass (torch.utils.checkpoint, not reentrant)."""
    from torch.utils.checkpoint import checkpoint

    def wrap(_: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*arguments: Any, **keywords: Any) -> Any:
            return checkpoint(
                original, *arguments, use_reentrant=False, preserve_rng_state=preserve_rng_state, **keywords
            )

        return forward

    with wrapped_forwards(model, blocks, wrap):
        yield
