"""Inputs repaired by the layer that refuses them: the argument that it reads gets the width or rank of the layer."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import itertools
import math
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_unflatten

from smp_advisor.profiling.module_attributes import input_width

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smp_advisor.profiling.example import ExampleInputs

__all__ = ["REPAIR_SECONDS", "repaired_inputs"]

REPAIR_SECONDS = 10.0
"""Processor time for all attempts."""
_MOST_ATTEMPTS = 100
_MOST_STARTS = 12
_SPATIAL = {1: ((4096,), (65_536,)), 2: ((64, 64), (224, 224)), 3: ((4, 32, 32), (16, 112, 112))}
"""Sizes after the channels for an argument of another rank than the convolution that reads it."""
_RATIOS = (2, 4, 8, 16, 32)
_SIZES = (
    re.compile(r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)"),
    re.compile(r"dimension of length (\d+) at -\d+! .*broadcastable to \[[\d, ]*?(\d+)\]"),
)
"""Two sizes that do not match, on real and on fake tensors."""
_RANKS = (
    re.compile(r"range of \[-(?P<rank>\d+), \d+\], but got"),
    re.compile(r"input\.dim\(\) = (?P<rank>\d+) is not equal to len\(dims\) = (?P<required>\d+)"),
    re.compile(r"values to unpack \(expected (?P<required>\d+), got (?P<rank>\d+)\)"),
    re.compile(r"[Ee]xpected (?P<required>\d+) dims\. Received (?P<rank>\d+)-dim"),
)
"""Rank of a tensor that has too few dimensions."""
_NEW_SIZES = {3: 32, 4: 32, 5: 4}
"""Size of a new dimension, by the new rank: numbers of a sequence, pixels, or frames."""

_TOO_SMALL = re.compile(
    r"[Kk]ernel size can't be greater|[Pp]adding size should be less|smaller than kernel|output size is too small"
)
_GROWTH = 4
_MOST_NUMBERS = 2**24
"""Numbers per sample to which images, videos and sounds grow."""
_ROWS = 3
"""Rank of the numbers of a sequence."""


@dataclass(frozen=True, slots=True)
class _Form:
    """Changed form of one leaf of the inputs."""

    sizes: tuple[int, ...]
    """Sizes; ``~i`` is the size of dimension i of the original tensor."""
    dtype: torch.dtype | None = None
    """None for the original type."""

    def applied(self, tensor: Tensor) -> Tensor:
        shape = [tensor.shape[~size] if size < 0 else size for size in self.sizes]
        return torch.empty(shape, dtype=self.dtype or tensor.dtype, device="meta")

    def after(self, earlier: _Form) -> _Form:
        """The form of an original tensor that first gets the earlier form."""
        return _Form(
            tuple(earlier.sizes[~size] if size < 0 else size for size in self.sizes), self.dtype or earlier.dtype
        )


def _original(rank: int, first: int = 0) -> tuple[int, ...]:
    """The dimensions of a tensor, from the first to the last."""
    return tuple(~place for place in range(first, rank))


_State = tuple[int, tuple[tuple[int, _Form], ...]]
"""Position of a candidate, and the changed forms of its leaves."""


class _Layers:
    """Layers that a forward pass has called, and the one in which it failed."""

    def __init__(self, model: nn.Module) -> None:
        self.completed = 0
        self.running: tuple[nn.Module, Tensor] | None = None
        self._layers = [module for module in model.modules() if _is_layer(module)]

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        handles = [layer.register_forward_pre_hook(self._begin) for layer in self._layers]
        handles += [layer.register_forward_hook(self._end) for layer in self._layers]
        self.completed, self.running = 0, None
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _begin(self, layer: nn.Module, arguments: Sequence[Any]) -> None:
        value = next((argument for argument in arguments if isinstance(argument, Tensor)), None)
        self.running = None if value is None else (layer, value)

    def _end(self, *_: object) -> None:
        self.completed += 1
        self.running = None


def repaired_inputs(
    model: nn.Module,
    candidates: Sequence[ExampleInputs],
    attempt: Callable[[ExampleInputs, Callable[[Any], None]], None],
    is_repairable: Callable[[Exception], bool],
) -> ExampleInputs | None:
    """Inputs that the model accepts, from candidates that it refuses; None if there are none within the limits.

    A layer that refuses a tensor determines its width: channels of a convolution, features of a linear layer. If the
    tensor is an argument or a view of it, the argument gets that width. Candidates that call more layers before they
    fail come first.

    Parameters
    ----------
    candidates
        Inferred inputs. Those of the user are never changed.
    attempt
        Runs a forward pass with the inputs, and passes the tensors of the call to its second argument before.
    is_repairable
        Whether other shapes or types could avoid an error.
    """
    layers = _Layers(model)
    starts: list[_State] = [(place, ()) for place in range(min(len(candidates), _MOST_STARTS))]
    order = itertools.count()
    queue: list[tuple[int, int, _State]] = [(0, next(order), state) for state in starts]
    seen_states = set(starts)
    begun = time.process_time()
    for _ in range(_MOST_ATTEMPTS):
        if not queue or time.process_time() - begun > REPAIR_SECONDS:
            return None
        *_, state = heapq.heappop(queue)
        tensors: list[Any] = []
        layers.running = None
        try:
            example = _changed(candidates[state[0]], state[1])
            with layers.watched():
                attempt(example, tensors.append)
        except Exception as error:  # noqa: BLE001 - a model may raise anything
            if not is_repairable(error):
                continue
            for change in _changes(layers.running, tree_leaves(tensors), str(error)):
                following = (state[0], _with_change(state[1], *change))
                if following not in seen_states:
                    seen_states.add(following)
                    heapq.heappush(queue, (-layers.completed - 1, next(order), following))
        else:
            if state[1]:
                return example
    return None


def _with_change(changes: tuple[tuple[int, _Form], ...], leaf: int, form: _Form) -> tuple[tuple[int, _Form], ...]:
    """Changes with another one, which follows the earlier change of the leaf."""
    forms = dict(changes)
    form = form.after(forms[leaf]) if leaf in forms else form
    return tuple(sorted((forms | {leaf: form}).items(), key=lambda item: item[0]))


def _changed(example: ExampleInputs, changes: Sequence[tuple[int, _Form]]) -> ExampleInputs:
    """The inputs with other forms of some leaves."""
    if not changes:
        return example
    forms = dict(changes)

    def make(batch: int, sequence: int) -> Any:
        paths, structure = tree_flatten_with_path(example.make(batch, sequence))
        leaves = [forms[place].applied(leaf) if place in forms else leaf for place, (_, leaf) in enumerate(paths)]
        return tree_unflatten(leaves, structure)

    short, longer = (make(1, tokens) for tokens in (16, 24))
    texts = []
    has_sequence = False
    for place, ((path, leaf), long_leaf) in enumerate(
        zip(tree_flatten_with_path(short)[0], tree_leaves(longer), strict=True)
    ):
        name = ".".join(re.findall(r"\w+", keystr(path)))
        if not isinstance(leaf, Tensor):
            continue
        has_sequence = has_sequence or leaf.shape != long_leaf.shape
        sizes = " x ".join(
            "tokens" if size != longer_size else str(size)
            for size, longer_size in zip(leaf.shape[1:], long_leaf.shape[1:], strict=True)
        )
        texts.append(f"{name} of {sizes}" if place in forms and sizes else name)
    return dataclasses.replace(
        example,
        make=make,
        has_sequence=has_sequence,
        longest=example.longest if has_sequence else 0,
        description=f"{', '.join(texts)} (inferred)",
    )


def _is_layer(module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding | nn.LayerNorm | nn.RNNBase | nn.modules.conv._ConvNd) or bool(
        not module._modules and input_width(module)
    )


def _changes(
    running: tuple[nn.Module, Tensor] | None, tensors: Sequence[Any], message: str
) -> Iterator[tuple[int, _Form]]:
    """Forms of a leaf that would suit the layer which refused it."""
    if _TOO_SMALL.search(message):
        yield from _grown(tensors)
        return
    if running is None:
        yield from _scaled(tensors, message)
        yield from _of_higher_rank(tensors, message)
        return
    layer, value = running
    if not value.ndim:
        return
    width = value.shape[1] if isinstance(layer, nn.modules.conv._ConvNd) and value.ndim > 1 else value.shape[-1]
    place = _source(value, width, tensors)
    if place is None:
        return
    leaf: Tensor = tensors[place]
    if isinstance(layer, nn.Embedding):
        if leaf.is_floating_point():
            yield place, _Form(_original(leaf.ndim), torch.long)
        return
    if isinstance(layer, nn.modules.conv._ConvNd):
        yield from _convolved(layer, value, place, leaf)
        return
    width = layer.normalized_shape[-1] if isinstance(layer, nn.LayerNorm) else input_width(layer)
    if value.shape[-1] != width:
        if leaf.ndim > _ROWS:  # numbers that were taken for images
            yield place, _Form((~0, width), torch.float32)
        yield from _resized(place, leaf, value.shape[-1], width, from_end=True)


def _convolved(layer: nn.modules.conv._ConvNd, value: Tensor, place: int, leaf: Tensor) -> Iterator[tuple[int, _Form]]:
    """Forms of the leaf with the channels and the rank of a convolution that reads `value`."""
    spatial = len(layer.kernel_size)
    if value.ndim != spatial + 2:
        yield from ((place, _Form((~0, layer.in_channels, *sizes), torch.float32)) for sizes in _SPATIAL[spatial])
    elif value.shape[1] != layer.in_channels:
        yield from _resized(place, leaf, value.shape[1], layer.in_channels, from_end=False)


def _resized(place: int, leaf: Tensor, size: int, width: int, *, from_end: bool) -> Iterator[tuple[int, _Form]]:
    """Forms of the leaf with `width` instead of one of its dimensions of that size, other than the batch."""
    positions = [position for position in range(1, leaf.ndim) if leaf.shape[position] == size]
    for position in reversed(positions) if from_end else positions:
        sizes = list(_original(leaf.ndim))
        sizes[position] = width
        yield place, _Form(tuple(sizes))


def _scaled(tensors: Sequence[Any], message: str) -> Iterator[tuple[int, _Form]]:
    """Images or videos that are larger or smaller by the ratio of two sizes that do not match."""
    match = next(filter(None, (pattern.search(message) for pattern in _SIZES)), None)
    if match is None:
        return
    low, high = sorted(int(size) for size in match.groups())
    if not low or high % low or high // low not in _RATIOS:
        return
    ratio = high // low
    images = [place for place, leaf in enumerate(tensors) if isinstance(leaf, Tensor) and leaf.ndim >= 4]
    for place in reversed(images):
        sizes = tensors[place].shape
        for scaled in (tuple(size * ratio for size in sizes[-2:]), tuple(size // ratio for size in sizes[-2:])):
            if all(scaled) and math.prod((*sizes[1:-2], *scaled)) <= _MOST_NUMBERS:
                yield place, _Form((*_original(len(sizes) - 2), *scaled))


def _grown(tensors: Sequence[Any]) -> Iterator[tuple[int, _Form]]:
    """Larger images, volumes or sounds: each in turn, the first argument first."""
    for place, leaf in enumerate(tensors):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.ndim >= 2:
            fixed = min(2, leaf.ndim - 1)
            sizes = tuple(size * _GROWTH for size in leaf.shape[fixed:])
            if math.prod((*leaf.shape[1:fixed], *sizes)) <= _MOST_NUMBERS:
                yield place, _Form((*_original(fixed), *sizes))


def _of_higher_rank(tensors: Sequence[Any], message: str) -> Iterator[tuple[int, _Form]]:
    """Tensors with another dimension at the end, or after the batch or the channels."""
    match = next(filter(None, (pattern.search(message) for pattern in _RANKS)), None)
    if match is None:
        return
    rank = int(match["rank"])
    required = int(match.groupdict().get("required", rank + 1))
    if required != rank + 1 or required not in _NEW_SIZES:
        return
    size = _NEW_SIZES[required]
    for place in range(len(tensors) - 1, -1, -1):
        leaf = tensors[place]
        if isinstance(leaf, Tensor) and leaf.ndim == rank:
            for position in (2,) if rank == 4 else (rank, 1):
                sizes = (*_original(position), size, *_original(rank, position))
                yield place, _Form(sizes, torch.float32)


def _source(value: Tensor, width: int, tensors: Sequence[Any]) -> int | None:
    """Position of the argument that a layer reads: itself, a view of it, or the only one of its shape or width."""
    storage = value.untyped_storage()._cdata
    leaves = [(place, leaf) for place, leaf in enumerate(tensors) if isinstance(leaf, Tensor)]
    for place, leaf in leaves:
        if leaf.untyped_storage()._cdata == storage:
            return place
    of_shape = [place for place, leaf in leaves if leaf.shape == value.shape]
    of_width = [place for place, leaf in leaves if leaf.is_floating_point() and width in leaf.shape[1:]]
    return next((places[0] for places in (of_shape, of_width) if len(places) == 1), None)
