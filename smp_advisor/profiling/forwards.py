"""Forward passes of some modules, replaced for a while."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

__all__ = ["wrapped_forwards"]


@contextmanager
def wrapped_forwards(
    model: nn.Module, paths: Sequence[str], wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Each module's forward pass is what `wrap` makes of its path and its own; as it was afterwards."""
    changed = []
    try:
        for path in paths:
            module = model.get_submodule(path)
            changed.append((module, vars(module).get("forward")))
            module.forward = wrap(path, module.forward)
        yield
    finally:
        for module, own in changed:
            if own is None:
                del module.forward
            else:
                module.forward = own
