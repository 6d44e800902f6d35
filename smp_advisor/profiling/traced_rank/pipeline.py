"""One pipeline stage of a model: its own blocks and parameters, and the order of its passes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.rehearsal.division import Boundary, Stage, find_boundary
from smp_advisor.profiling.rehearsal.single_process import by_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from smp_advisor.profiling.traced_rank.rank import Rank

__all__ = ["Part", "own_blocks", "part_of", "passes"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A model's part on one stage."""

    module: nn.Module
    """Module to call with the received hidden states and the inputs."""
    received: Tensor | None
    """Hidden states from the stage before it; None on the first."""
    elsewhere: tuple[Tensor, ...]
    """Parameters of other stages, which only give shapes to code that runs on every stage."""


def own_blocks(paths: Sequence[str], rank: Rank) -> range:
    """Positions of the blocks of the rank's stage.

    Raises
    ------
    ProfileError
        The model has another number of blocks than the plan's stages.
    """
    ends = list(accumulate(rank.stage_blocks))
    if ends[-1] != len(paths):
        raise ProfileError(
            f"The model runs {len(paths)} blocks in sequence and the plan divides {ends[-1]} into stages, so its"
            " pipeline cannot be traced."
        )
    return range(ends[rank.stage] - rank.stage_blocks[rank.stage], ends[rank.stage])


def passes(rank: Rank) -> Iterator[tuple[Literal["forward", "backward"], int]]:
    """Passes of the stage in order, with their microbatch: as many forward passes as may be in flight, then 1F1B."""
    waiting = 0
    for index in range(rank.microbatches):
        yield "forward", index
        if index - waiting + 1 == rank.in_flight:
            yield "backward", waiting
            waiting += 1
    for index in range(waiting, rank.microbatches):
        yield "backward", index


def part_of(
    model: nn.Module, paths: Sequence[str], rank: Rank, inputs: Mapping[str, Any], recompute: Callable[[], None]
) -> Part:
    """The model's part on the rank's stage.

    Parameters
    ----------
    inputs
        Fake inputs of one microbatch, by name.
    recompute
        Called between the analysis of the model and its division, to wrap the blocks that are recomputed.

    Raises
    ------
    ProfileError
        The model cannot be divided into stages.
    """
    own = own_blocks(paths, rank)
    places = _Places(model, paths)
    with places:
        boundary = find_boundary(model, paths, rank.stages, lambda: by_name(model, inputs))
    elsewhere = _without_others(model, paths, own, places)
    recompute()
    module = Stage(model, paths, boundary, own, by_name)
    return Part(module=module, received=_received(boundary) if own.start else None, elsewhere=elsewhere)


def _received(boundary: Boundary) -> Tensor:
    return torch.empty_like(boundary.hidden, device="cpu")


class _Places:
    """Modules with parameters outside the blocks that run after the last block."""

    def __init__(self, model: nn.Module, paths: Sequence[str]) -> None:
        self.model, self.paths = model, paths
        self.after: set[int] = set()
        self._has_left = False
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        def left(*_: Any) -> None:
            self._has_left = True

        def ran(module: nn.Module, *_: Any) -> None:
            if self._has_left:
                self.after.add(id(module))

        self._handles = [module.register_forward_hook(ran) for module in self.model.modules() if module._parameters]
        self._handles.append(self.model.get_submodule(self.paths[-1]).register_forward_hook(left))

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()


def _without_others(model: nn.Module, paths: Sequence[str], own: range, places: _Places) -> tuple[Tensor, ...]:
    """Replace the parameters of other stages by plain tensors, and return these."""
    first, last = own.start == 0, own.stop == len(paths)
    blocks = {id(m): i for i, path in enumerate(paths) for m in model.get_submodule(path).modules()}

    def owns(module: nn.Module) -> bool:
        if id(module) in blocks:
            return blocks[id(module)] in own
        return last if id(module) in places.after else first

    # A weight that an own module shares with another one, such as a tied embedding, is here, too.
    owned = {id(p) for module in model.modules() if owns(module) for p in module._parameters.values()}
    elsewhere: list[Tensor] = []
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and id(parameter) not in owned:
                del module._parameters[name]
                plain = parameter.detach()
                setattr(module, name, plain)
                elsewhere.append(plain)
    return tuple(elsewhere)
