"""Accelerate, Lightning and Fabric: several processes on processors as they would start them on GPUs."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from smp_advisor.rehearsal.observation import note_save
from smp_advisor.rehearsal.observer import Nothing, around
from smp_advisor.rehearsal.processors import refuse_half

if TYPE_CHECKING:
    from smp_advisor.rehearsal.observer import Observer


def change(observer: Observer, module: Any) -> None:
    """Change a module of the library after its import."""
    name = module.__name__
    if name == "accelerate.state":
        state = module.PartialState

        @around(state, "_prepare_backend")
        def prepared(
            original: Any, self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: Any = None
        ) -> Any:
            del cpu, backend
            if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:
                return "nccl", module.DistributedType.MULTI_GPU
            return original(self, True, sagemaker_dp, None)

        state.set_device = lambda self: setattr(self, "device", torch.device("cpu"))
        state.default_device = property(lambda _: torch.device("cpu"))
    elif name == "accelerate.utils.dataclasses":
        module.is_cuda_available = lambda: True  # by which it makes parameters of FSDP 1
    elif name == "accelerate.accelerator":
        _accelerator(observer, module)
    elif name.endswith("pytorch.trainer.trainer") or name == "pytorch_lightning.trainer.trainer":
        _trainer(observer, module.Trainer)
    elif name in ("lightning.fabric.fabric", "lightning_fabric.fabric"):
        _fabric(observer, module.Fabric)
    elif name.endswith((".fabric.connector", "lightning_fabric.connector", "connectors.accelerator_connector")):
        for kind in vars(module).values():  # it refuses to shard on processors
            if isinstance(kind, type) and hasattr(kind, "_check_strategy_and_fallback"):
                kind._check_strategy_and_fallback = lambda _: None  # type: ignore[attr-defined]
    elif name.endswith("plugins.io.torch_io"):

        @around(module, "_atomic_save")
        def saved(original: Any, checkpoint: Any, path: Any, *arguments: Any, **options: Any) -> Any:
            note_save(observer, path, checkpoint)
            return original(checkpoint, path, *arguments, **options)

    elif name.endswith((".strategies.ddp", ".strategies.fsdp")):
        for kind in vars(module).values():
            if isinstance(kind, type) and hasattr(kind, "_get_process_group_backend"):
                kind._get_process_group_backend = lambda _: "nccl"  # type: ignore[attr-defined]


def _accelerator(observer: Observer, module: Any) -> None:
    kind = module.Accelerator

    @around(kind, "__init__")
    def created(original: Any, self: Any, *arguments: Any, **options: Any) -> None:
        scales = options.get("mixed_precision") == "fp16" or observer.options.get("scales", False)
        keeps = observer.options["keep_half"]
        if options.get("mixed_precision") in ("fp16", "bf16", "fp8"):
            options["mixed_precision"] = "bf16" if keeps else "no"
            observer.stand_in("16-bit numbers: bf16" if keeps else "16-bit numbers: fp32")
        # A script that requests the processor is to find the GPU of its job.
        options.pop("cpu", None)
        options["log_with"] = None
        times = options.get("gradient_accumulation_steps", 1) or 1
        if options.get("gradient_accumulation_plugin") is None and times > 1:
            options["gradient_accumulation_steps"] = observer.microbatches(times)
        original(self, *arguments, **options)
        self.rehearsed_scales = scales

    @around(kind, "backward")
    def backward(original: Any, self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        observer.options["scaled"] = self.rehearsed_scales

    @around(kind, "unscale_gradients", "clip_grad_norm_")
    def unscaled(original: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        observer.options["scaled"] = False
        for optimizer in self._optimizers if self.rehearsed_scales else ():
            refuse_half(optimizer)
        return original(self, *arguments, **options)

    for name in ("init_trackers", "log"):
        setattr(kind, name, lambda *_, **__: None)
    kind.get_tracker = lambda *_, **__: Nothing()

    @around(kind, "save_state")
    def saved(original: Any, *arguments: Any, **options: Any) -> Any:
        folder = original(*arguments, **options)
        note_save(observer, folder, together=True)
        return folder


def _devices(observer: Observer, options: dict[str, Any]) -> int:
    """Devices of a node: as many as there are, but one, which the library refuses where several processes start."""
    return 1 if options.get("devices") in (1, "1") else int(observer.options["local_world"])


def _trainer(observer: Observer, kind: Any) -> None:
    quiet = import_module(f"{kind.__module__.partition('.trainer.')[0]}.loggers.logger").DummyLogger
    quiet.save_dir = property(lambda _: ".")  # where callbacks write

    @around(kind, "__init__")
    def created(original: Any, self: Any, *arguments: Any, **options: Any) -> None:
        times = options.get("accumulate_grad_batches", 1)
        if isinstance(times, int) and times > 1:
            options["accumulate_grad_batches"] = observer.microbatches(times)
        steps, batches = observer.options["steps"], observer.options["batches"]
        if not observer.options.get("live"):  # full epochs, each with its validation
            per_epoch = max(1, batches // (times if isinstance(times, int) else 1))
            steps = -(-steps // per_epoch) * per_epoch
            options.update(limit_train_batches=batches, val_check_interval=1.0, check_val_every_n_epoch=1)
            # Lightning 2.6 ends a resumed epoch without its validation where `max_steps` is set, as it is here.
            callbacks = options.get("callbacks") or []
            for callback in callbacks if isinstance(callbacks, list) else [callbacks]:
                if observer.options["keeps"] and options.get("max_steps", -1) == -1 and hasattr(callback, "strict"):
                    callback.strict = False
        options.update(
            max_steps=steps, accelerator="cpu",
            logger=False if options.get("logger") is False else quiet(),
            precision="32-true", devices=_devices(observer, options), num_nodes=observer.options["nodes"],
            limit_val_batches=min(2, options.get("limit_val_batches") or 2), num_sanity_val_steps=0,
        )  # fmt: skip
        original(self, *arguments, **options)


def _fabric(observer: Observer, kind: Any) -> None:
    @around(kind, "__init__")
    def created(original: Any, self: Any, *arguments: Any, **options: Any) -> None:
        names = ("accelerator", "strategy", "devices", "num_nodes", "precision", "plugins", "callbacks", "loggers")
        options = {**dict(zip(names, arguments, strict=False)), **options}
        options.update(
            accelerator="cpu", precision="32-true", devices=_devices(observer, options),
            num_nodes=observer.options["nodes"],
        )  # fmt: skip
        if observer.world > 1 and options.get("strategy", "auto") == "auto":
            options["strategy"] = "ddp"
        original(self, **options)
