"""Records the behavior of a script in a child process: losses, modes of the model, saved keys and printed lines."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Observer", "keys_of", "replace"]

_MOST_KEYS = 2000


def replace(owner: object, **attributes: object) -> None:
    """Replace functions in a child process that ends with its run; types are those of the originals by design."""
    for name, value in attributes.items():
        setattr(owner, name, value)


class Observer:
    """Behavior of a script, in order. Each process of a run has its own observer."""

    def __init__(self, script: Path, steps: int, most_losses: int) -> None:
        self.script = str(script)
        self.steps_left, self.most_losses = steps, most_losses
        self.losses: list[tuple[float, int]] = []
        """Value and line of each backward pass."""
        self.modes: list[tuple[bool, bool, int]] = []
        """Changes of the mode of a model: training, gradients, line of the call."""
        self.saves: list[dict[str, Any]] = []
        self.notes: set[str] = set()
        """Properties that decide what can be compared, and the stand-ins that the script used."""
        self._depth = 0
        self._random_state: object = None

    def line(self) -> int:
        """Line of the script that is running; 0 if none is."""
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the only way to the line of the caller
        while frame is not None and frame.f_code.co_filename != self.script:
            frame = frame.f_back
        return 0 if frame is None else frame.f_lineno

    def add_loss(self, value: float) -> None:
        """Record one backward pass, and whether random numbers were drawn since the last one."""
        state = (hash(torch.get_rng_state().numpy().tobytes()), hash(str(np.random.get_state())), random.getstate())  # noqa: NPY002 - of scripts
        if self._random_state not in (None, state):
            self.notes.add("random")
        self._random_state = state
        if len(self.losses) == self.most_losses:
            self.notes.add("many losses")
            raise SystemExit(0)
        self.losses.append((value, self.line()))

    def add_save(self, content: object, path: object) -> None:
        """Record the keys of a saved object."""
        name = Path(path).name if isinstance(path, str | Path) else "file"
        self.saves.append({"name": name, "keys": keys_of(content), "line": self.line()})

    def install(self) -> None:
        """Observe PyTorch in this process."""
        self._observe_backward()
        self._observe_forward()
        self._observe_saves()
        register_optimizer_step_post_hook(self._count_step)

    def _observe_backward(self) -> None:
        original: Any = torch.Tensor.backward

        def backward(tensor: torch.Tensor, *arguments: Any, **options: Any) -> None:
            self.add_loss(float(tensor.detach().float().mean()))
            original(tensor, *arguments, **options)

        replace(torch.Tensor, backward=backward)

    def _observe_forward(self) -> None:
        original = torch.nn.Module.__call__

        def called(module: torch.nn.Module, *arguments: Any, **options: Any) -> Any:
            if self._depth == 0 and next(module.parameters(), None) is not None:
                mode = (module.training, torch.is_grad_enabled())
                if not self.modes or self.modes[-1][:2] != mode:
                    self.modes.append((*mode, self.line()))
                if any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in module.modules()):  # noqa: SLF001
                    self.notes.add("batch_norm")
            self._depth += 1
            try:
                return original(module, *arguments, **options)
            finally:
                self._depth -= 1

        replace(torch.nn.Module, __call__=called)

    def _observe_saves(self) -> None:
        original = torch.save

        def save(obj: object, f: Any, *arguments: Any, **options: Any) -> None:
            self.add_save(obj, f if isinstance(f, str | Path) else getattr(f, "name", f))
            original(obj, f, *arguments, **options)

        replace(torch, save=save)

    def _count_step(self, optimizer: Any, arguments: Any, options: Any) -> None:
        del optimizer, arguments, options
        self.steps_left -= 1
        if self.steps_left <= 0:
            raise SystemExit(0)

    def write(self, path: Path, error: str) -> None:
        """Write the record as JSON."""
        record = {
            "losses": self.losses,
            "modes": self.modes,
            "saves": self.saves,
            "notes": sorted(self.notes),
            "stopped": self.steps_left <= 0,
            "error": error,
        }
        path.write_text(json.dumps(record), encoding="utf-8")


def keys_of(content: object, depth: int = 2) -> Any:
    """Keys of nested dictionaries; the type of anything else."""
    if isinstance(content, dict) and depth:
        return {str(key): keys_of(value, depth - 1) for key, value in list(content.items())[:_MOST_KEYS]}
    if isinstance(content, torch.nn.Module):
        return {"module": sorted(content.state_dict())}
    return "number" if isinstance(content, int | float) else type(content).__name__
