"""Measurement of a training step: saved bytes, FLOPs and live memory, on fake or real tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.gpu_kernels import cuda_autocast_rules, gpu_kernels
from smp_advisor.profiling.inferred_inputs import forward_method
from smp_advisor.profiling.operator_log import OperatorLog, storage_key
from smp_advisor.profiling.step_recorder import StepRecorder
from smp_advisor.profiling.structure import callable_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smp_advisor.profiling.failures import Assumptions
    from smp_advisor.profiling.operator_log import OperatorKey, OperatorMeasure
    from smp_advisor.profiling.step_recorder import BlockMeasure, Interval


Inputs = Mapping[str, Any] | Sequence[Any]
_FLOPS_OF_AN_OPERATION = 1_000_000
"""FLOPs that take one core as long as the dispatch of an operator and its records: 50 to 100 µs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMeasure:
    """Measurements of one step, at one batch and sequence."""

    saved_bytes: int
    """Saved by autograd at the end of the forward pass, excluding parameters and buffers."""
    forward_flops: int
    backward_flops: int
    blocks: Mapping[str, BlockMeasure]
    """By path; "" is everything outside the blocks."""
    intervals: tuple[Interval, ...]
    """Live memory, by interval."""
    resident_bytes: int
    """Parameters, buffers and inputs before the step."""
    peak_bytes: int
    """Peak live bytes."""
    without_gradient: tuple[str, ...]
    """Trainable parameters without a gradient after the step."""
    operations: int
    uncounted: tuple[str, ...]
    """Operators that may multiply matrices and have no FLOP formula."""
    outputs: int
    """Last dimension of the logits; 0 if the model returns none."""
    operators: Mapping[OperatorKey, OperatorMeasure] = field(repr=False)
    """Operators by module and pass; empty unless requested."""
    loss: Tensor = field(repr=False, compare=False)
    returns_loss: bool = True
    """Whether the model returns a loss; if not, it is the mean of its outputs."""
    module_saved_bytes: Mapping[str, int] = field(default_factory=dict, repr=False)
    """Saved bytes by innermost module; empty unless operators are logged."""
    crossing_bytes: Mapping[str, int] = field(default_factory=dict, repr=False)
    """By module that runs operators, in order of execution: bytes that exist after it and that later modules read."""
    entered: frozenset[str] = frozenset()
    """Modules whose forward pass ran."""

    @property
    def work(self) -> int:
        """Cost of the step on a CPU, as FLOPs: a count that is the same on every machine."""
        return self.forward_flops + self.backward_flops + _FLOPS_OF_AN_OPERATION * self.operations


def measure_step(
    model: nn.Module,
    inputs: Inputs,
    *,
    precision: str = "fp32",
    attention: str = "fused",
    blocks: Sequence[str] = (),
    backward: bool = True,
    assumptions: Assumptions | None = None,
    operators: bool = False,
    keeps_gradients: bool = False,
) -> StepMeasure:
    """Run a training step of a model and measure it.

    The model and its inputs must already have the dtypes of the precision; ``amp`` adds autocast. Under an active
    `FakeTensorMode` nothing is allocated.
    """
    parameters = dict(model.named_parameters())
    log = OperatorLog(model) if operators else None
    recorder = StepRecorder(parameters, assumptions=assumptions, log=log)
    # State and inputs are there before the step, and are no activation that it saves.
    state = [*parameters.values(), *model.buffers()]
    recorder.track([*state, *tree_leaves(inputs)])
    saved_storages = _SavedStorages(recorder, frozenset(key for key in map(storage_key, state) if key is not None))
    missing = tuple[str, ...]()
    with contextlib.ExitStack() as stack:
        # The recorder is outermost: it must see what the other modes turn a call into.
        stack.enter_context(recorder)
        stack.enter_context(gpu_kernels(attention, recorder.on_attention, recorder.on_launches))
        if precision == "amp":  # also in the backward pass, which may recompute
            stack.enter_context(cuda_autocast_rules())
        stack.enter_context(log.following() if log is not None else contextlib.nullcontext())
        stack.enter_context(_marks(model, blocks, recorder))
        recorder.restart("forward")
        resident = recorder.live_bytes
        autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "amp")
        with torch.autograd.graph.saved_tensors_hooks(saved_storages.pack, lambda tensor: tensor), autocast:
            output = call_model(model, inputs)
            loss = loss_of(output)
        outputs, returns_loss = _outputs(output, loss), _loss(output) is not None
        # From here on autograd alone holds the storages that it saved.
        # The backward pass must be able to free what it used, as without the measurement.
        saved_storages.release()
        output = None
        crossing, module_saved = ({}, {}) if log is None else (log.crossing_bytes(), dict(log.saved_bytes))
        recorder.mark("backward")
        if backward:
            loss.backward()  # type: ignore[no-untyped-call]
            recorder.mark("optimizer")
            # Before the optimizer, which may set gradients to None.
            missing = tuple(name for name, p in parameters.items() if p.requires_grad and p.grad is None)
            loss = loss.detach()
    if backward and not keeps_gradients:
        model.zero_grad(set_to_none=True)
    return StepMeasure(
        saved_bytes=saved_storages.bytes,
        forward_flops=recorder.flops["forward"],
        backward_flops=recorder.flops["backward"],
        blocks=dict(recorder.blocks),
        intervals=tuple(recorder.intervals),
        resident_bytes=resident,
        peak_bytes=recorder.peak_bytes,
        without_gradient=missing,
        operations=recorder.operations,
        uncounted=tuple(recorder.uncounted),
        outputs=outputs,
        operators={} if log is None else log.measures,
        loss=loss,
        returns_loss=returns_loss,
        module_saved_bytes=module_saved,
        crossing_bytes=crossing,
        entered=frozenset() if log is None else frozenset(log.entered),
    )


def call_model(model: nn.Module, inputs: Inputs) -> Any:
    """Call the model with inputs by name or by position; its own containers may be emptied, such as by ``pop``."""
    inputs = tree_map(lambda value: value, inputs)
    method = forward_method(model)
    call = model if method == model.forward else method
    return call(**inputs) if isinstance(inputs, Mapping) else call(*inputs)


def _loss(output: Any) -> Any:
    """Return the loss that a model returns, also by its name; None without one."""
    if isinstance(output, Tensor):
        return output if output.ndim == 0 else None
    return output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)


_STATES = ("hidden_state", "attention", "past_key", "cache", "mems", "states", "router", "model_output")
"""Parts of names in outputs of transformers that are no results."""


def loss_of(output: Any) -> Tensor:
    """Loss of a model, or the mean of its differentiable outputs; of transformers, states and caches do not count."""
    loss = _loss(output)
    if isinstance(loss, Tensor):
        return loss if loss.ndim == 0 else loss.mean()
    is_record = hasattr(output, "to_tuple")
    trained = _trainable(output.to_tuple() if is_record else output)
    if not trained:
        raise ProfileError(
            "The model returns neither a loss nor a tensor with a gradient, so it cannot be trained: pass inputs with "
            "labels, or a module whose forward returns the loss."
        )
    if is_record:
        first, *following = output.keys()
        results = [name for name in following if not any(part in name for part in _STATES)]
        trained = _trainable([output[name] for name in (first, *results)]) or trained[:1]
    means = [leaf if leaf.ndim == 0 else leaf.float().mean() for leaf in trained]
    return means[0] if len(means) == 1 else torch.stack([mean.float() for mean in means]).mean()


def _trainable(outputs: Any) -> list[Tensor]:
    """Real tensors with a gradient, also those of an object such as a distribution."""
    leaves = [leaf if isinstance(leaf, Tensor) else getattr(leaf, "__dict__", None) for leaf in tree_leaves(outputs)]
    leaves = tree_leaves(leaves)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad and not leaf.is_complex()]


class _SavedStorages:
    """Bytes of the storages that autograd saves, excluding the model's own state."""

    def __init__(self, recorder: StepRecorder, state: frozenset[int]) -> None:
        self.recorder, self.state = recorder, state
        self.bytes = 0
        self._storages: dict[int, Any] = {}

    def release(self) -> None:
        """Drop the references to the storages."""
        self._storages.clear()

    def pack(self, tensor: Tensor) -> Tensor:
        key = storage_key(tensor)
        if key is not None and key not in self._storages and key not in self.state:
            storage = tensor.untyped_storage()
            self._storages[key] = storage  # so that no other storage reuses its address
            self.bytes += storage.nbytes()
            self.recorder.blocks[self.recorder.block].saved_bytes += storage.nbytes()
            if self.recorder.log is not None:
                self.recorder.log.save(storage.nbytes())
        return tensor


def _outputs(output: Any, loss: Tensor) -> int:
    """Last dimension of the logits; 0 if there are none."""
    logits = getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf is not loss and leaf.ndim]
        logits = tensors[0] if tensors else None
    return int(logits.shape[-1]) if isinstance(logits, Tensor) and logits.ndim else 0


@contextlib.contextmanager
def _marks(model: nn.Module, blocks: Sequence[str], recorder: StepRecorder) -> Iterator[None]:
    """Mark the begin and end of each block, forward and backward."""
    handles = []
    for path in blocks:
        parts = callable_parts(model, path)
        for part in parts:
            module = model.get_submodule(part)
            handles.append(module.register_forward_pre_hook(_entering(recorder, path), with_kwargs=True))
            handles.append(module.register_forward_hook(_leaving(recorder, path, ends=part == parts[-1])))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _entering(recorder: StepRecorder, path: str) -> Callable[..., None]:
    def hook(_: nn.Module, arguments: Any, keywords: Any) -> None:
        if recorder.phase != "forward":  # recomputation in the backward pass
            return
        measure = recorder.blocks[path]
        continues = recorder.block == path
        if not continues:
            recorder.mark("forward", path)
            measure.calls += 1
        sizes: dict[int, int] = {}
        for leaf in tree_leaves((arguments, keywords)):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                key = storage_key(leaf)
                if key is not None:
                    sizes[key] = leaf.untyped_storage().nbytes()
                    # The last dimension of tokens [batch, sequence, hidden], the channels of images.
                    width = 0 if leaf.ndim < 2 else leaf.shape[1 if leaf.ndim == 4 else -1]
                    measure.hidden = measure.hidden or int(width)
        measure.input_bytes = sum(sizes.values()) + (measure.input_bytes if continues else 0)

    return hook


def _leaving(recorder: StepRecorder, path: str, *, ends: bool) -> Callable[..., None]:
    def hook(_: nn.Module, __: Any, output: Any) -> None:
        if recorder.phase != "forward":
            return
        if ends:
            recorder.mark("forward")
        for leaf in tree_leaves(output if not hasattr(output, "to_tuple") else output.to_tuple()):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaf.register_hook(lambda _: recorder.mark("backward", path))  # type: ignore[no-untyped-call]
                return

    return hook
