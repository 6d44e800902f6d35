"""One stage of a pipeline, cut out of any model with a row of blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.step import loss_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Boundary", "Stage", "find_boundary", "ranges"]

_HIDDEN = ("hidden_states", "x", "inputs", "input")


@dataclass(frozen=True, slots=True)
class Boundary:
    """What passes from block to block."""

    keyword: str | None
    """Name of the argument with the hidden states; None where it is the first by place."""
    hidden: Tensor
    """One microbatch of it, on the meta device."""
    outputs: tuple[Any, ...]
    """What each block returned, without values: which of it are the hidden states' shape."""


class _Done(BaseException):
    """A stage's last block has run: the rest of the model's forward pass belongs to the next stage.

    Not an `Exception`: models that catch those must not catch this.
    """

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden


class Stage(nn.Module):
    """The whole model's forward pass, of which only one stage's blocks compute.

    What precedes the blocks (embeddings, masks, position tables) runs on every stage, since blocks take some of it; of
    the stages after the first, the hidden states that it yields are replaced by those received. The pass ends with the
    stage's last block, on the last stage with the loss. Parameters that a stage does not use get no gradient there, and
    a weight that two stages use gets its gradient from both.
    """

    def __init__(
        self, model: nn.Module, paths: Sequence[str], boundary: Boundary, own: range, by_name: Callable[..., Any]
    ) -> None:
        super().__init__()
        self.model = model
        self.first, self.last = own.start == 0, own.stop == len(paths)
        self._call = by_name
        self._boundary = boundary
        self._received: Tensor | None = None
        for place, path in enumerate(paths):
            block = model.get_submodule(path)
            if place < own.start:
                block.forward = self._passing(place)
            elif place == own.start and not self.first:
                block.forward = self._entering(block.forward)
            elif place == own.stop:
                block.forward = self._ending
            elif place > own.stop:
                block.forward = self._unreached

    def forward(self, *hidden: Tensor, **batch: Any) -> Tensor:
        """Hidden states for the next stage; on the last stage the loss, of shape (1,)."""
        self._received = hidden[0] if hidden else None
        try:
            output = self._call(self.model, batch)
        except _Done as done:
            return done.hidden
        finally:
            self._received = None
        return loss_of(output).reshape(1)

    def _passing(self, place: int) -> Callable[..., Any]:
        """A block of an earlier stage: its input is its output."""

        def forward(*arguments: Any, **keywords: Any) -> Any:
            hidden = self._hidden(arguments, keywords)
            return tree_map(lambda kind: hidden if kind == "hidden" else None, self._boundary.outputs[place])

        return forward

    def _entering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The stage's first block: it takes what was received."""

        def forward(*arguments: Any, **keywords: Any) -> Any:
            if self._received is None:
                raise ProfileError("A pipeline stage ran without the hidden states of the stage before it.")
            if self._boundary.keyword is None:
                return original(self._received, *arguments[1:], **keywords)
            return original(*arguments, **(keywords | {self._boundary.keyword: self._received}))

        return forward

    def _ending(self, *arguments: Any, **keywords: Any) -> Any:
        raise _Done(self._hidden(arguments, keywords))

    def _unreached(self, *_: Any, **__: Any) -> Any:
        raise ProfileError("A block of a later pipeline stage was called out of order.")

    def _hidden(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
        found: Tensor = arguments[0] if self._boundary.keyword is None else keywords[self._boundary.keyword]
        return found


def ranges(blocks: int, stages: int) -> list[range]:
    """Blocks of each stage, as equal as can be, the earlier stages with fewer: they have the embedding."""
    sizes = [blocks // stages + (i >= stages - blocks % stages) for i in range(stages)]
    starts = [sum(sizes[:i]) for i in range(stages)]
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def find_boundary(model: nn.Module, paths: Sequence[str], stages: int, run: Callable[[], Any]) -> Boundary:
    """Learn from one forward pass what passes between blocks.

    Raises
    ------
    ProfileError
        More than hidden states passes that needs a gradient, or blocks do not run in a row, each once.
    """
    if len(paths) < stages:
        raise ProfileError("It has no row of blocks to cut.")
    order: list[str] = []
    taken: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    given: list[Any] = []

    def note(path: str) -> Callable[..., None]:
        def hook(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
            order.append(path)
            taken.append((arguments, keywords))
            given.append(output)

        return hook

    handles = [model.get_submodule(path).register_forward_hook(note(path), with_kwargs=True) for path in paths]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    if order != list(paths):
        raise ProfileError(
            "Its blocks do not run one after the other, each once, so no pipeline can be cut between them."
        )
    arguments, keywords = taken[-1]
    keyword = None if arguments and isinstance(arguments[0], Tensor) else next(iter(_named(keywords)), None)
    if keyword is None and not (arguments and isinstance(arguments[0], Tensor)):
        raise ProfileError("Its blocks take no tensor as their first argument, so no pipeline can be cut between them.")
    for place, (arguments, keywords) in enumerate(taken[1:], 1):
        hidden = arguments[0] if keyword is None else keywords[keyword]
        others = [
            leaf for leaf in tree_leaves((arguments, keywords)) if isinstance(leaf, Tensor) and leaf is not hidden
        ]
        if any(leaf.requires_grad for leaf in others):
            raise ProfileError(
                f"Block {paths[place]} takes more than hidden states that needs a gradient (the encoder's output, a "
                "position bias), and PyTorch's schedules pass only the one tensor from stage to stage."
            )
        if not any(leaf is hidden for leaf in tree_leaves(given[place - 1])):
            raise ProfileError(f"What {paths[place - 1]} returns is changed before {paths[place]} takes it.")
    last = taken[-1][0][0] if keyword is None else taken[-1][1][keyword]
    following = [(arguments[0] if keyword is None else keywords[keyword]) for arguments, keywords in taken[1:]]
    kinds = [
        tree_map(lambda leaf, hidden=hidden: "hidden" if leaf is hidden else "other", output)
        for output, hidden in zip(given[:-1], following, strict=True)
    ]
    return Boundary(keyword, torch.empty_like(last, device="meta"), tuple(kinds))


def _named(keywords: dict[str, Any]) -> list[str]:
    return [name for name in _HIDDEN if isinstance(keywords.get(name), Tensor)]
