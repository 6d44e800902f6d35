"""Context managers that replace an attribute or silence loggers, and restore them."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set ``owner.name`` to `value` inside the block; do nothing if the owner has no such attribute."""
    if owner is None or not hasattr(owner, name):
        yield
        return
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the tracebacks that fake tensors log for expected failures."""
    loggers = [logging.getLogger(name) for name in ("torch._subclasses.fake_tensor", "transformers")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    # Compiled parts of a model run as they are written.
    has_stances = "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance")
    eager = torch.compiler.set_stance("force_eager") if has_stances else nullcontext()
    try:
        with eager:
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
