"""Context managers that replace an attribute or a forward method and restore it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

__all__ = ["patched", "wrapped_forwards"]


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
def wrapped_forwards(
    model: nn.Module, paths: Sequence[str], wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Replace the forward method of each module by ``wrap(path, forward)`` inside the block."""
    changed = []
    try:
        for path in paths:
            module = model.get_submodule(path)
            changed.append((module, vars(module).get("forward")))
            module.forward = wrap(path, module.forward)
        yield
    finally:
        for module, original in changed:
            if original is None:
                del module.forward
            else:
                module.forward = original
