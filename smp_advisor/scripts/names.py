"""Dotted names of PyTorch's optimizers and learning-rate schedulers."""

from __future__ import annotations

import re

__all__ = ["is_optimizer", "is_scheduler"]

_OPTIMIZER_CLASS = re.compile(
    r"[A-Za-z]*?(?:Adam|ADAM|SGD|Lamb|LAMB|Lars|LARS|Lion|Adagrad|Adadelta|Adafactor|Adamax|Adan|NovoGrad|RMS[Pp]rop"
    r"|Rprop|Muon|Sophia[GH]?|Shampoo|LBFGS)(?:W|X|_?8bit|_?32bit|ScheduleFree)*"
)
"""``FusedAdam``, ``AdamW8bit``, ``PagedLion``; but neither ``Lambda`` nor ``Million``."""


def is_optimizer(path: str) -> bool:
    """Whether the dotted name is an optimizer's class."""
    head, _, last = path.rpartition(".")
    if not last[:1].isupper() or head.startswith(("tensorflow", "keras")):
        return False
    if last in ("LocalSGD", "PostLocalSGDOptimizer"):
        return False
    if head == "torch.optim":
        return last != "Optimizer"
    return _OPTIMIZER_CLASS.fullmatch(last) is not None


def is_scheduler(path: str) -> bool:
    """Whether the dotted name makes a learning-rate scheduler of a PyTorch optimizer."""
    if path.startswith("torch.optim.lr_scheduler."):
        return True
    last = path.rpartition(".")[2]
    return path.startswith("transformers.") and last.startswith("get_") and last.endswith(("_schedule", "_warmup"))
