"""Lightning and Fabric: their own limits, on processors."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smp_advisor.rehearsal.observer import Observer


def change(observer: Observer, module: Any) -> None:
    """Change a module of the library after its import."""
    name = module.__name__
    if name.endswith("pytorch.trainer.trainer") or name == "pytorch_lightning.trainer.trainer":
        _trainer(observer, module.Trainer)
    elif name in ("lightning.fabric.fabric", "lightning_fabric.fabric"):
        _fabric(observer, module.Fabric)
    elif name.endswith((".fabric.connector", "lightning_fabric.connector", "connectors.accelerator_connector")):
        for kind in vars(module).values():  # it refuses to shard on processors
            if isinstance(kind, type) and hasattr(kind, "_check_strategy_and_fallback"):
                kind._check_strategy_and_fallback = lambda _: None  # type: ignore[attr-defined]
    elif name.endswith((".strategies.ddp", ".strategies.fsdp")):
        for kind in vars(module).values():
            if isinstance(kind, type) and hasattr(kind, "_get_process_group_backend"):
                kind._get_process_group_backend = lambda _: "nccl"  # type: ignore[attr-defined]


def _trainer(observer: Observer, kind: Any) -> None:
    create = kind.__init__

    @functools.wraps(create)
    def created(self: Any, *arguments: Any, **options: Any) -> None:
        times = options.get("accumulate_grad_batches", 1)
        if isinstance(times, int) and times > 1:
            observer.accumulates(times)
            if observer.options.get("fold"):
                options["accumulate_grad_batches"] = 1
                observer.options["batch_times"] = times
        options.update(
            max_steps=observer.options["steps"], accelerator="cpu", logger=False, enable_progress_bar=False,
            precision="32-true", devices=observer.options["local_world"], num_nodes=observer.options["nodes"],
            limit_val_batches=min(2, options.get("limit_val_batches") or 2), num_sanity_val_steps=0,
        )  # fmt: skip
        create(self, *arguments, **options)

    kind.__init__ = created


def _fabric(observer: Observer, kind: Any) -> None:
    create = kind.__init__

    @functools.wraps(create)
    def created(self: Any, *arguments: Any, **options: Any) -> None:
        names = ("accelerator", "strategy", "devices", "num_nodes", "precision", "plugins", "callbacks", "loggers")
        options = {**dict(zip(names, arguments, strict=False)), **options}
        options.update(
            accelerator="cpu", precision="32-true", devices=observer.options["local_world"],
            num_nodes=observer.options["nodes"],
        )  # fmt: skip
        if observer.world > 1 and options.get("strategy", "auto") == "auto":
            options["strategy"] = "ddp"
        create(self, **options)

    kind.__init__ = created
