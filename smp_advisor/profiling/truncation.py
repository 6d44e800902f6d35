"""A model with fewer repeats of its blocks: what two repeats cost says what all of them do."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from smp_advisor.profiling.structure import Stack

__all__ = ["kept", "placed", "truncated"]


def kept(stack: Stack, repeats: int) -> tuple[int, ...]:
    """Places of the children that stay: the prefix, `repeats` periods, and what follows the last whole period."""
    body = min(repeats, stack.repeats) * stack.period
    rest = range(len(stack.names) - stack.rest, len(stack.names))
    return (*range(stack.prefix + body), *rest)


def placed(stack: Stack, repeats: int) -> tuple[int, ...]:
    """For every child of the whole stack, which child of the truncated one stands for it.

    The last repeat that is kept stands for all that are cut: its input comes from an equal block, as theirs does.
    """
    body = min(repeats, stack.repeats) * stack.period
    cut = (stack.repeats - min(repeats, stack.repeats)) * stack.period
    head = stack.prefix + body
    return (
        *range(head),
        *(head - stack.period + i % stack.period for i in range(cut)),
        *range(head, head + stack.rest),
    )


@contextlib.contextmanager
def truncated(model: nn.Module, found: Sequence[Stack], repeats: int = 2) -> Iterator[None]:
    """The model with `repeats` periods of each stack; whole again afterwards.

    Works where the forward pass iterates over its container; one that counts to a number of layers of its own fails.
    """
    originals = []
    try:
        for stack in found:
            container = model.get_submodule(stack.path)
            children = dict(container._modules)
            originals.append((container, children))
            inner = [children[stack.names[i]] for i in kept(stack, repeats)]
            container._modules.clear()
            container._modules.update({str(i): child for i, child in enumerate(inner)})
        yield
    finally:
        for container, children in originals:
            container._modules.clear()
            container._modules.update(children)
