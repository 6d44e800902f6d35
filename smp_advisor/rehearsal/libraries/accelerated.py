"""Accelerate: several processes on processors as it would start them on GPUs."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

import torch

from smp_advisor.rehearsal.observation import note_together

if TYPE_CHECKING:
    from smp_advisor.rehearsal.observer import Observer


def change(observer: Observer, module: Any) -> None:
    """Change a module of the library after its import."""
    if module.__name__ == "accelerate.state":
        _state(module)
    elif module.__name__ == "accelerate.accelerator":
        _accelerator(observer, module)


def _state(module: Any) -> None:
    state = module.PartialState
    prepare: Any = state._prepare_backend

    def prepared(self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: Any = None) -> Any:
        del cpu, backend
        if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:
            return "nccl", module.DistributedType.MULTI_GPU
        return prepare(self, True, sagemaker_dp, None)

    def set_device(self: Any) -> None:
        self.device = torch.device("cpu")

    state._prepare_backend, state.set_device = prepared, set_device
    state.default_device = property(lambda _: torch.device("cpu"))


def _accelerator(observer: Observer, module: Any) -> None:
    kind = module.Accelerator
    create = kind.__init__

    @functools.wraps(create)
    def created(self: Any, *arguments: Any, **options: Any) -> None:
        scales = options.get("mixed_precision") == "fp16"
        if options.get("mixed_precision") in ("fp16", "bf16", "fp8") and not observer.options.get("keep_half"):
            observer.stand_in("16-bit numbers: fp32")
            options["mixed_precision"] = "no"
        options.pop("cpu", None)
        options["log_with"] = None
        plugin = options.get("gradient_accumulation_plugin")
        times = options.get("gradient_accumulation_steps", 1) or 1
        if plugin is None and times > 1:
            observer.accumulates(times)
            if observer.options.get("fold"):
                options["gradient_accumulation_steps"] = 1
                observer.options["batch_times"] = times
        create(self, *arguments, **options)
        self.rehearsed_scales = scales

    kind.__init__ = created
    for name, is_scaled in (("backward", True), ("unscale_gradients", False), ("clip_grad_norm_", False)):
        setattr(kind, name, _marked(observer, getattr(kind, name), is_scaled=is_scaled))
    for name in ("init_trackers", "log"):
        setattr(kind, name, lambda *_, **__: None)
    save_state = kind.save_state

    @functools.wraps(save_state)
    def saved(self: Any, *arguments: Any, **options: Any) -> Any:
        folder = save_state(self, *arguments, **options)
        note_together(observer, folder)
        return folder

    kind.save_state = saved


def _marked(observer: Observer, method: Any, *, is_scaled: bool) -> Any:
    """A method that scales gradients of fp16, or takes the scale off again before it clips them."""

    @functools.wraps(method)
    def called(self: Any, *arguments: Any, **options: Any) -> Any:
        if not is_scaled:
            observer.options["scaled"] = False
        result = method(self, *arguments, **options)
        if is_scaled:
            observer.options["scaled"] = self.rehearsed_scales
        return result

    return called
