"""GPU calls of a script, on a machine without one: the CPU and gloo take their place."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from smp_advisor.proving.replacing import replace

__all__ = ["install_tsm", "use_cpu"]

_FACTORIES = (
    "tensor", "zeros", "ones", "randn", "rand", "randint", "arange", "empty", "full", "as_tensor", "eye", "linspace",
    "randperm", "zeros_like", "ones_like", "Generator",
)  # fmt: skip


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
            setattr(torch, name, _redirected(factory))
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
        options.pop("device_id", None)
        start("gloo", *arguments, **options)

    replace(torch.distributed, init_process_group=init_process_group)
    replace(torch.cuda, device_count=lambda: 1)
    wrap: Any = torch.nn.parallel.DistributedDataParallel.__init__

    def wrap_on_cpu(self: Any, module: Any, *arguments: Any, **options: Any) -> None:
        del arguments
        wrap(self, module, **{k: v for k, v in options.items() if k not in ("device_ids", "output_device")})

    replace(torch.nn.parallel.DistributedDataParallel, __init__=wrap_on_cpu)
    replace(torch.multiprocessing, spawn=lambda function, args=(), **_: function(0, *args))
    keep_states_on_cpu()


def keep_states_on_cpu() -> None:
    """Turn off the offloading of gathered states: PyTorch 2.13 crashes if they are on the CPU already."""
    from torch.distributed import fsdp
    from torch.distributed.checkpoint import state_dict

    for owner, name, option in (
        (state_dict, "StateDictOptions", "cpu_offload"),
        (fsdp, "FullStateDictConfig", "offload_to_cpu"),
        (fsdp, "FullOptimStateDictConfig", "offload_to_cpu"),
    ):
        setattr(owner, name, _without(getattr(owner, name), option))


def _without(original: Any, option: str) -> Any:
    def create(*arguments: Any, **options: Any) -> Any:
        return original(*arguments, **{**options, option: False})

    return create


def _redirected(factory: Any) -> Any:
    def create(*arguments: Any, **options: Any) -> Any:
        if "device" in options:
            options["device"] = _on_cpu(options["device"])
        return factory(*arguments, **options)

    return create


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
    from torch.distributed import fsdp

    # bfloat16 would round the losses that are compared.
    replace(fsdp, MixedPrecision=lambda **_: None)
