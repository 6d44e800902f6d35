"""One rank of a job that uses SMP v1, on a CPU: written from the documented names alone, to run generated scripts.

It records what a script calls, in order, and refuses what the documentation forbids. It divides no model: the rank
computes all of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import types
from pathlib import Path

import torch as pytorch

events: list[list] = []


class _Job:
    def __init__(self):
        self.parameters = {}
        self.ready = False
        self.world = self.number = 0
        self.model = None
        self.in_step = False


_job = _Job()


def reset(world, rank):
    """Start anew as one rank of a job with `world` GPUs (a stand-in for mpirun)."""
    global _job  # noqa: PLW0603
    _job = _Job()
    _job.world, _job.number = world, rank
    events.clear()


def record(name, **details):
    events.append([name, details])


def _require_init():
    if not _job.ready:
        raise RuntimeError("smp.init() was not called first")


def init(config=None):
    _job.parameters = {**(config or {}), **json.loads(os.environ.get("SM_HP_MP_PARAMETERS", "{}"))}
    _job.ready = True
    if _job.world % (pp_size() * tp_size()):
        raise RuntimeError("WorkerSizeError")
    record("init")


def _parameter(name, default):
    return _job.parameters.get(name, default)


# -- ranks, placement "cluster": data, pipeline, tensor; the last varies fastest ---------------------------------------


def size():
    return _job.world


def rank():
    _require_init()
    return _job.number


def local_size():
    return min(8, _job.world)


def local_rank():
    return rank() % local_size()


def pp_size():
    return _parameter("pipeline_parallel_degree", 1)


def tp_size():
    return _parameter("tensor_parallel_degree", 1)


def dp_size():
    return _job.world // pp_size()


def rdp_size():
    return dp_size() // tp_size()


def tp_rank():
    return rank() % tp_size()


def rdp_rank():
    return rank() // (tp_size() * pp_size())


def dp_rank():
    return rdp_rank() * tp_size() + tp_rank()


def barrier():
    _require_init()


WORLD = "world"


def allgather(obj, group):
    """What every rank gives; this rank's object stands in for those of the others."""
    _require_init()
    if group != WORLD:
        raise RuntimeError("the stand-in knows only the group of all ranks")
    return [obj] * size()


# -- the model ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def model_creation(tensor_parallelism=False, dtype=None, **options):
    _require_init()
    record("model_creation", tensor_parallelism=tensor_parallelism, dtype=str(dtype), options=sorted(options))
    before = pytorch.get_default_dtype()
    # fp16 trains on fp32 copies of the parameters, which the library keeps: here the model is in fp32 itself.
    if dtype is not None and dtype != pytorch.float16:
        pytorch.set_default_dtype(dtype)
    try:
        yield
    finally:
        pytorch.set_default_dtype(before)


@contextlib.contextmanager
def delay_param_initialization(enabled=True):
    record("delay_param_initialization", enabled=enabled)
    yield


class DistributedModel(pytorch.nn.Module):
    def __init__(
        self,
        module,
        trace_device="gpu",  # noqa: ARG002
        overlapping_allreduce=True,
        backward_passes_per_step=1,  # noqa: ARG002
        gradient_as_bucket_view=False,
    ):
        super().__init__()
        _require_init()
        if _job.model is not None:
            raise RuntimeError("one DistributedModel a script")
        if _parameter("shard_optimizer_state", False) and not (overlapping_allreduce and gradient_as_bucket_view):
            raise RuntimeError("sharding the optimizer state needs both options")
        if _job.world > pp_size() * tp_size() and not _parameter("ddp", False):
            raise RuntimeError("ddp needed")
        self.module = module
        _job.model = self
        record("DistributedModel", parameters=sum(p.numel() for p in module.parameters()))

    def forward(self, *arguments, **named):
        if not _job.in_step:
            raise RuntimeError("the model was called outside of smp.step")
        return self.module(*arguments, **named)

    def backward(self, loss):
        if not _job.in_step:
            raise RuntimeError("backward outside of smp.step")
        record("backward")
        (loss / _parameter("microbatches", 1)).backward()


def trained():
    """The model of the job, for tests."""
    return _job.model.module


def set_activation_checkpointing(module, preserve_rng_state=True, pack_args_as_tuple=False, strategy="each"):
    if _job.model is None or not any(module is child for child in _job.model.modules()):
        raise RuntimeError("activation checkpointing before DistributedModel")
    sequential = isinstance(module, pytorch.nn.Sequential)
    if strategy != "each" and not sequential:
        raise RuntimeError("strategies are for nn.Sequential")
    record("set_activation_checkpointing", strategy=strategy if sequential else None)


class StepOutput:
    def __init__(self, outputs):
        self.outputs = outputs

    def reduce_mean(self):
        return sum(self.outputs) / len(self.outputs)


def step(function):
    def stepped(*arguments):
        _require_init()
        microbatches = _parameter("microbatches", 1)
        tensors = [argument for argument in arguments if isinstance(argument, pytorch.Tensor)]
        for tensor in tensors:
            if tensor.shape[0] % microbatches:
                raise RuntimeError("TensorSplitError: batch size must be divisible by the number of microbatches")
        record(
            "step",
            function=function.__name__,
            batch=tensors[0].shape[0],
            checksum=float(tensors[0].double().sum()),
            gradients=pytorch.is_grad_enabled(),
        )
        outputs = []
        for part in range(microbatches):
            split = [
                argument.chunk(microbatches)[part] if isinstance(argument, pytorch.Tensor) else argument
                for argument in arguments
            ]
            _job.in_step = True
            try:
                outputs.append(function(*split).detach())
            finally:
                _job.in_step = False
        return StepOutput(outputs)

    return stepped


# -- the optimizer -----------------------------------------------------------------------------------------------------


class _HalfPrecisionOptimizer:
    """What fp16 wraps an optimizer in: no torch optimizer itself."""

    overflow = False

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def zero_grad(self, set_to_none=False):
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def clip_master_grads(self, max_norm):
        record("clip_master_grads", max_norm=max_norm)

    def step(self):
        record("optimizer.step")
        self.optimizer.step()


def DistributedOptimizer(optimizer, static_loss_scale=1.0, dynamic_loss_scale=False, dynamic_loss_args=None):  # noqa: N802
    if _job.model is None:
        raise RuntimeError("the optimizer was wrapped before the model")
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if held != {id(parameter) for parameter in _job.model.parameters()}:
        raise RuntimeError("the optimizer does not hold the parameters of the distributed model")
    record("DistributedOptimizer", kind=type(optimizer).__name__, dynamic_loss_scale=dynamic_loss_scale)
    if _parameter("fp16", False):
        if not dynamic_loss_scale:
            raise RuntimeError("fp16 needs loss scaling")
        return _HalfPrecisionOptimizer(optimizer)
    original = optimizer.step

    def recorded_step(self):
        record("optimizer.step")
        original()

    optimizer.step = types.MethodType(recorded_step, optimizer)
    return optimizer


# -- checkpoints -------------------------------------------------------------------------------------------------------


def save_checkpoint(
    path,
    tag,
    partial=True,
    model=None,
    optimizer=None,
    user_content=None,
    translate_if_full=True,
    num_kept_partial_checkpoints=None,
):
    if not partial and optimizer is not None:
        raise RuntimeError("full checkpoints hold no optimizer state here")
    record("save_checkpoint", tag=tag, partial=partial, kept=num_kept_partial_checkpoints)
    Path(path).mkdir(parents=True, exist_ok=True)
    if not partial:
        if not translate_if_full:
            raise RuntimeError("the names are those of the library's layers")
        pytorch.save(model.module.state_dict(), Path(path) / tag)
        return
    folder = Path(path) / f"{tag}_partial"
    folder.mkdir(exist_ok=True)
    pytorch.save(model.module.state_dict(), folder / f"model_{rank()}.pt")
    if optimizer is not None:
        inner = optimizer.optimizer if isinstance(optimizer, _HalfPrecisionOptimizer) else optimizer
        pytorch.save(inner.state_dict(), folder / f"optimizer_{rank()}.pt")
    pytorch.save(user_content, folder / "user_content.pt")
    (Path(path) / "newest").write_text(tag)


def resume_from_checkpoint(path, tag=None, partial=True, strict=True):
    if _job.model is None:
        raise RuntimeError("resumed before DistributedModel")
    if not partial:
        _job.model.module.load_state_dict(pytorch.load(Path(path) / tag))
        record("resume_from_checkpoint", step=0)
        return None
    folder = Path(path) / f"{tag or (Path(path) / 'newest').read_text()}_partial"
    _job.model.module.load_state_dict(pytorch.load(folder / f"model_{rank()}.pt"))
    content = pytorch.load(folder / "user_content.pt")
    record("resume_from_checkpoint", step=content["step"])
    return content
