"""One rank of SMP v1 on a CPU, written from the documented names alone: it computes the entire model itself.

It splits batches into microbatches, averages gradients over them, returns one output per microbatch, and refuses the
calls that the documentation forbids.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smp_advisor.proving.observer import Observer

_NAME = "smdistributed.modelparallel.torch"


class StepOutput:
    """Outputs of a step function, one per microbatch."""

    def __init__(self, outputs: list[Any]) -> None:
        self.outputs = outputs

    def reduce_mean(self) -> Any:
        """Mean over the microbatches."""
        return sum(self.outputs[1:], self.outputs[0]) / len(self.outputs)

    def reduce_sum(self) -> Any:
        """Sum over the microbatches."""
        return self.reduce_mean() * len(self.outputs)

    def concat(self) -> torch.Tensor:
        """The batch of all microbatches."""
        return torch.cat(self.outputs)

    def stack(self) -> torch.Tensor:
        """One row per microbatch."""
        return torch.stack(self.outputs)


class _Job:
    """State of the library in this process."""

    def __init__(self, observer: Observer, microbatches: int) -> None:
        self.observer, self.microbatches = observer, microbatches
        self.initialized = False
        self.model: DistributedModel | None = None
        self.in_step = False
        self.losses: list[float] = []

    def require(self) -> None:
        if not self.initialized:
            raise RuntimeError("smp.init() was not called first")


_job: list[_Job] = []


class DistributedModel(torch.nn.Module):
    """Wrapper of the only model, whose layers run inside step functions."""

    def __init__(self, module: torch.nn.Module, **options: Any) -> None:
        super().__init__()
        del options
        job = _job[0]
        job.require()
        if job.model is not None:
            raise RuntimeError("smp.DistributedModel was called twice: the library supports one model per script")
        self.module = module
        job.model = self

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """Run the model on one microbatch."""
        if not _job[0].in_step:
            raise RuntimeError("the model was called outside of a function with @smp.step")
        return self.module(*arguments, **options)

    def backward(self, loss: torch.Tensor) -> None:
        """Backward pass of one microbatch; gradients are averaged over the microbatches."""
        job = _job[0]
        if not job.in_step:
            raise RuntimeError("model.backward was called outside of a function with @smp.step")
        job.losses.append(float(loss.detach().float().mean()))
        torch.autograd.backward(loss / job.microbatches)


def _step(function: Callable[..., Any] | None = None, *, non_split_inputs: Any = (), **options: Any) -> Any:
    if function is None:
        return functools.partial(_step, non_split_inputs=non_split_inputs, **options)
    names = list(inspect.signature(function).parameters)

    def stepped(*arguments: Any, **options: Any) -> Any:
        job = _job[0]
        job.require()
        outputs, job.losses = [], []
        for part in range(job.microbatches):
            batch = [
                a if n in non_split_inputs else _part(a, job.microbatches, part)
                for n, a in zip(names, arguments, strict=False)
            ]
            options_of_batch = {
                n: a if n in non_split_inputs else _part(a, job.microbatches, part) for n, a in options.items()
            }
            job.in_step = True
            try:
                outputs.append(function(*batch, **options_of_batch))
            finally:
                job.in_step = False
        if job.losses:
            job.observer.add_loss(sum(job.losses) / len(job.losses))
        return _packed(outputs)

    return stepped


def _part(value: Any, parts: int, part: int) -> Any:
    """One microbatch of an argument: tensors in lists, tuples and dictionaries are split along their first axis."""
    if isinstance(value, torch.Tensor):
        if parts > 1 and (not value.dim() or value.shape[0] % parts):
            rows = value.shape[0] if value.dim() else "no"
            raise RuntimeError(
                f"TensorSplitError: a batch of {rows} rows is not divisible into {parts} microbatches: call the step"
                f" with a multiple of {parts} rows"
            )
        return value if parts == 1 else value.chunk(parts)[part]
    if type(value) is dict:
        return {key: _part(item, parts, part) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_part(item, parts, part) for item in value)
    return value


def _packed(outputs: list[Any]) -> Any:
    first = outputs[0]
    if isinstance(first, tuple | list):
        return tuple(_packed([output[place] for output in outputs]) for place in range(len(first)))
    if isinstance(first, dict):
        return {key: _packed([output[key] for output in outputs]) for key in first}
    return StepOutput([o.detach() if isinstance(o, torch.Tensor) else o for o in outputs])


def _distributed_optimizer(optimizer: torch.optim.Optimizer, **options: Any) -> Any:
    model = _job[0].model
    if model is None:
        raise RuntimeError("smp.DistributedOptimizer was called before smp.DistributedModel")
    own = {id(parameter) for parameter in model.parameters()}
    if not all(id(p) in own for group in optimizer.param_groups for p in group["params"]):
        raise RuntimeError("the optimizer has parameters that are not in the distributed model")
    if options.get("dynamic_loss_scale"):  # an optimizer of fp16 plans has the original one inside
        clip = functools.partial(torch.nn.utils.clip_grad_norm_, list(model.parameters()))
        vars(optimizer).update(optimizer=optimizer, clip_master_grads=clip)
    return optimizer


def _save_checkpoint(
    path: Any, tag: str, *, model: Any = None, optimizer: Any = None, user_content: Any = None, **_: Any
) -> None:
    if not isinstance(model, DistributedModel):
        raise TypeError("smp.save_checkpoint requires the model of smp.DistributedModel")
    content = {"model": model.module.state_dict(), **(user_content or {})}
    if optimizer is not None:
        content["optimizer"] = optimizer.state_dict()
    _job[0].observer.add_save(content, tag)
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(tag)).write_bytes(b"checkpoint")


@contextlib.contextmanager
def _context(*_: Any, **__: Any) -> Iterator[None]:
    _job[0].require()
    yield


def install_smp(observer: Observer, microbatches: int) -> None:
    """Make ``import smdistributed.modelparallel.torch`` import the simulator."""
    job = _Job(observer, microbatches)
    _job[:] = [job]
    smp: Any = types.ModuleType(_NAME)

    def init(config: Any = None) -> None:
        del config
        job.initialized = True

    def number(value: int) -> int:
        job.require()
        return value

    smp.init, smp.step, smp.StepOutput = init, _step, StepOutput
    smp.DistributedModel, smp.DistributedOptimizer = DistributedModel, _distributed_optimizer
    for group in ("", "local_", "pp_", "tp_", "rdp_", "mp_", "dp_"):
        setattr(smp, f"{group}rank", functools.partial(number, 0))
        setattr(smp, f"{group}size", functools.partial(number, 1))
        setattr(smp, f"{group}barrier", job.require)
    smp.barrier = job.require
    smp.model_creation = smp.tensor_parallelism = smp.partition = smp.delay_param_initialization = _context
    smp.set_activation_checkpointing = lambda *_, **__: job.require()
    smp.save_checkpoint, smp.save, smp.load = _save_checkpoint, torch.save, torch.load
    smp.resume_from_checkpoint = lambda *_, **__: {}
    smp.get_dp_process_group = smp.get_world_process_group = lambda: None
    smp.amp = types.SimpleNamespace(GradScaler=torch.amp.GradScaler)
    for name in ("smdistributed", "smdistributed.modelparallel"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    smp.__path__ = []
    sys.modules[_NAME] = smp
    for parent, child in (("smdistributed", "modelparallel"), ("smdistributed.modelparallel", "torch")):
        setattr(sys.modules[parent], child, sys.modules[f"{parent}.{child}"])
