"""Example inputs of a model: the user's, or inferred ones, and their values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.inferred_inputs import (
    VARIADIC,
    ExampleInputs,
    arguments_of,
    forward_method,
    inferred_inputs,
    shape_text,
)
from smp_advisor.profiling.structure import longest_sequence

if TYPE_CHECKING:
    from collections.abc import Sequence


_EDGES = frozenset({"edge_index", "edges"})
"""Positions of nodes, which are no ids."""


_LONGEST_PERIOD = 32


@dataclass(frozen=True, slots=True)
class OneCall:
    """Supplied inputs whose first dimension is no batch, as the trace showed."""

    inputs: Any


def example_inputs(model: nn.Module, supplied: Any = None, *, resized: bool = True) -> ExampleInputs:
    """Inputs as supplied, for any batch if `resized`; otherwise of the configuration, or of the first layers."""
    if isinstance(supplied, OneCall):
        return _supplied(model, supplied.inputs, resized=False)
    if supplied is not None:
        return _supplied(model, supplied, resized=resized)
    return inferred_inputs(model)


def _supplied(model: nn.Module, inputs: Any, *, resized: bool) -> ExampleInputs:
    if callable(inputs) and not isinstance(inputs, Tensor):
        return _of_function(model, inputs)
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, Mapping | tuple | list) and isinstance(inputs, Iterable):
        inputs = _first_batch(model, inputs)
    batch = _of_one_batch(model, inputs) if resized else None
    if batch is not None:
        return batch
    leaves = [leaf for leaf in tree_leaves(_plain(inputs)) if isinstance(leaf, Tensor)]
    if not leaves:
        raise ProfileError(
            "inputs must contain tensors: pass a tensor, a tuple or dict of them, a DataLoader, or a function of"
            " (batch, sequence)."
        )
    return ExampleInputs(
        make=lambda _, __: tree_map_only(
            Tensor, lambda leaf: leaf if leaf.is_meta else leaf.detach().cpu(), _plain(inputs)
        ),
        has_sequence=False,
        description=_described(leaves),
        scales=False,
    )


def _described(leaves: Sequence[Tensor]) -> str:
    first = max(leaves, key=lambda leaf: leaf.ndim)
    text = f"{len(leaves)} tensors, the first" if len(leaves) > 1 else "a tensor"
    return f"{text} of {shape_text(first)} (supplied)"


def _plain(inputs: Any) -> Any:
    return dict(inputs) if isinstance(inputs, Mapping) else tuple(inputs)


def _of_function(model: nn.Module, function: Callable[..., Any]) -> ExampleInputs:
    """Return the inputs of a function; they have a sequence if its second argument changes a shape."""
    parameters = [
        p for p in arguments_of(function).values() if p.kind not in {*VARIADIC, inspect.Parameter.KEYWORD_ONLY}
    ]
    # The default of a second parameter is the caller's own value, unless it is a length.
    second = parameters[1].default if len(parameters) > 1 else None
    only_batch = len(parameters) == 1 or not (
        second is inspect.Parameter.empty or second is None or isinstance(second, int)
    )

    def checked(batch: int, sequence: int) -> Any:
        try:
            inputs = function(batch) if only_batch else function(batch, sequence)
        except Exception as error:
            raise ProfileError(
                f"Your function of inputs fails: {type(error).__name__}: {error}. It is called with the batch"
                f"{'' if only_batch else ' and the sequence length'}: {batch}{'' if only_batch else f', {sequence}'}."
            ) from error
        return (inputs,) if isinstance(inputs, Tensor) else _plain(inputs)

    shapes = [[tuple(leaf.shape) for leaf in tree_leaves(checked(2, n)) if isinstance(leaf, Tensor)] for n in (8, 16)]
    has_sequence = shapes[0] != shapes[1]
    return ExampleInputs(
        make=checked,
        has_sequence=has_sequence,
        longest=longest_sequence(model) if has_sequence else 0,
        description="your function (supplied)",
    )


def _first_batch(model: nn.Module, loader: Iterable[Any]) -> Any:
    """First batch of a data loader, without the parts after the last one that the forward method takes."""
    batch = next(iter(loader), None)
    parameters = arguments_of(forward_method(model))
    arguments = [name for name, p in parameters.items() if p.kind not in VARIADIC]
    if isinstance(batch, Mapping):
        return batch if set(batch) & set(parameters) or len(arguments) != 1 else (dict(batch),)
    if isinstance(batch, Tensor):
        return (batch,)
    if not isinstance(batch, tuple | list):
        raise ProfileError(f"The first batch of inputs is {type(batch).__name__}, which has no tensors: pass tensors.")
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    return tuple(batch) if takes_any else tuple(batch)[: len(arguments)]


def _of_one_batch(model: nn.Module, inputs: Any) -> ExampleInputs | None:
    """Return the inputs of any batch, if the first dimension of all tensors has one size; None for other inputs.

    The trace refutes the inference: modules that take no other size, or that loop over the dimension, run the inputs
    as they are.
    """
    values, form = tree_flatten(_plain(inputs))
    leaves = [leaf for leaf in values if isinstance(leaf, Tensor) and leaf.ndim]
    sizes = {leaf.shape[0] for leaf in leaves}
    most = max((leaf.ndim for leaf in leaves), default=0)
    if len(sizes) != 1 or 0 in sizes or (sizes == {1} and most < 2):
        return None
    size = sizes.pop()
    if size > 1 and most > 2 and any(getattr(part, "batch_first", True) is False for part in model.modules()):
        return None  # time comes first

    def make(batch: int, _: int) -> Any:
        return tree_unflatten(
            [_repeated(leaf, batch) if isinstance(leaf, Tensor) and leaf.ndim else leaf for leaf in values],
            form,
        )

    text = _described(leaves)
    if size > 1:
        text = text.replace(" (supplied)", f", batch inferred from the first dimension: {size:,} samples (supplied)")
    rows = [leaf for leaf in leaves if leaf.ndim == 1 and not (leaf.is_floating_point() or leaf.is_meta)]
    varies = any(len(set(leaf.tolist())) > 1 for leaf in rows)
    period = size if varies and size <= _LONGEST_PERIOD else 1
    return ExampleInputs(make=make, has_sequence=False, description=text, inferred_batch=size, period=period)


def _repeated(value: Tensor, samples: int) -> Tensor:
    """Return a tensor with another number of samples: its own ones repeated or cut."""
    if value.is_meta:
        return torch.empty((samples, *value.shape[1:]), dtype=value.dtype, device="meta")
    return value.detach().cpu()[torch.arange(samples) % len(value)]


def filled(inputs: Any, vocab: int) -> Any:
    """Real values for inputs on the meta device, and supplied ones unchanged, except ids of at least `vocab`."""
    generator = torch.Generator().manual_seed(0)

    def fill(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if not value.is_meta:
            lengths = value.ndim == 1 and len(set(value.tolist())) == 1
            is_ids = value.dtype in {torch.int32, torch.int64} and not lengths
            return torch.where(value >= vocab, value % vocab, value) if is_ids and vocab > 1 else value
        if value.is_floating_point():
            return torch.randn(value.shape, generator=generator, dtype=torch.float32).to(value.dtype)
        if value.dtype == torch.bool:
            return torch.ones(value.shape, dtype=torch.bool)
        return torch.randint(0, max(vocab, 1), value.shape, generator=generator, dtype=value.dtype)

    if isinstance(inputs, Mapping):
        return {key: value if key in _EDGES else tree_map(fill, value) for key, value in inputs.items()}
    return tree_map(fill, inputs)


def cast_inputs(inputs: Any, dtype: torch.dtype) -> Any:
    """Return the inputs with floating-point tensors cast to the training dtype."""

    def cast(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    return tree_map(cast, inputs)


def valid_ids(model: nn.Module) -> int:
    """Number of ids that are valid as tokens and as labels: by the first embedding and the last linear layer."""
    tables = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)]
    outputs = [module.out_features for module in model.modules() if isinstance(module, nn.Linear)]
    sizes = [*tables[:1], *(size for size in outputs[-1:] if size > 1)]
    return min(sizes, default=2)
