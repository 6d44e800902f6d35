"""Truncation of a model to a few repeats of its blocks, which determine the cost of all repeats."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smp_advisor.profiling.structure import Stack

__all__ = ["remaining_children", "source_children", "truncated"]


class _Identity(nn.Module):
    """A block that returns its first input, whatever other inputs it has."""

    def forward(self, *arguments: object, **keywords: object) -> object:
        """The first positional argument, or else the first keyword argument."""
        return next(iter((*arguments, *keywords.values())), None)


def remaining_children(stack: Stack, repeats: int) -> tuple[int, ...]:
    """Indices of the remaining children: the prefix, `repeats` periods, and the children after the last full period."""
    body = min(repeats, stack.repeats) * stack.period
    suffix = range(len(stack.names) - stack.suffix, len(stack.names))
    return (*range(stack.prefix + body), *suffix)


def source_children(stack: Stack, repeats: int) -> tuple[int, ...]:
    """For every child of the full stack, the index of the child of the truncated stack that represents it.

    The last remaining repeat represents all removed ones: like theirs, its input comes from an equal block.
    """
    body = min(repeats, stack.repeats) * stack.period
    cut = (stack.repeats - min(repeats, stack.repeats)) * stack.period
    head = stack.prefix + body
    return (
        *range(head),
        *(head - stack.period + i % stack.period for i in range(cut)),
        *range(head, head + stack.suffix),
    )


@contextlib.contextmanager
def truncated(model: nn.Module, stacks: Sequence[Stack], repeats: int = 2) -> Iterator[None]:
    """Truncate each stack of the model to `repeats` periods inside the block; restore it afterwards.

    This requires a forward pass that iterates over its container. One that loops over a fixed layer count fails, unless
    the stack is of named children: an identity then replaces each removed one.
    """
    originals = []
    try:
        for stack in stacks:
            if repeats >= stack.repeats:  # nothing to remove, so the children keep their names
                continue
            container = model.get_submodule(stack.path)
            children = dict(container._modules)
            originals.append((container, children))
            if stack.is_named:
                remaining = {stack.names[i] for i in remaining_children(stack, repeats)}
                container._modules.update({name: _Identity() for name in stack.names if name not in remaining})
                continue
            inner = [children[stack.names[i]] for i in remaining_children(stack, repeats)]
            container._modules.clear()
            container._modules.update({str(i): child for i, child in enumerate(inner)})
        yield
    finally:
        for container, children in originals:
            container._modules.clear()
            container._modules.update(children)
