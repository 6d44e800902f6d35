"""Sizes of inputs that the layers, tables and attributes of a module name."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor, nn

from smp_advisor.profiling.example import IMAGE_SIZES, LENGTH_NAMES, SIZE_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "attribute",
    "attribute_sizes",
    "concatenated_widths",
    "first_layer",
    "first_layers",
    "fixed_lengths",
    "image_sizes",
    "input_width",
    "list_lengths",
    "longest",
    "possible_limits",
    "rare_widths",
    "table_lengths",
]

_MOST_WIDTHS = 4
_LEAST_IMAGE = 28
_LEAST_PATCHED = 128
_LONGEST_LIST = 64
"""Columns of a table of categories."""


def first_layer(model: nn.Module) -> nn.Module | None:
    """The first registered layer that determines the form of inputs, of torch or of another library."""
    return next(iter(first_layers(model)), None)


def first_layers(model: nn.Module) -> list[nn.Module]:
    """The first registered layer of each kind; without any, layers that bare parameters of their shapes stand for."""
    kinds = (nn.Embedding, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.RNNBase)
    first: dict[type[nn.Module], nn.Module] = {}
    for module in model.modules():
        for kind in kinds:
            if isinstance(module, kind):
                first.setdefault(kind, module)
    if first:
        return list(first.values())
    layer = next((module for module in model.modules() if input_width(module)), None)
    return [layer] if layer is not None else list(_layers_of_parameters(model))


def rare_widths(model: nn.Module) -> list[int]:
    """Widths of the inputs of linear layers, rare ones first: few layers read the input of the model."""
    widths = Counter(module.in_features for module in model.modules() if isinstance(module, nn.Linear))
    return [width for width, _ in reversed(widths.most_common())]


def concatenated_widths(model: nn.Module) -> list[int]:
    """Widths of numbers next to which a layer reads the row of an embedding."""
    tables = {module.embedding_dim for module in model.modules() if isinstance(module, nn.Embedding)}
    widths = [input_width(module) for module in model.modules() if isinstance(module, nn.Linear | nn.RNNBase)]
    differences = dict.fromkeys(width - table for width in widths for table in tables if width > table)
    return list(differences)[:_MOST_WIDTHS]


def list_lengths(model: nn.Module) -> list[int]:
    """Lengths of lists of integers, such as the sizes of the categories of a table, and of tensors of offsets."""
    lengths: dict[int, None] = {}
    for module in model.modules():
        for value in (*vars(module).values(), *module._buffers.values()):
            is_row = isinstance(value, Tensor) and value.ndim == 1 and not value.is_floating_point()
            is_list = isinstance(value, list | tuple) and all(isinstance(part, int) for part in value)
            if (is_row or is_list) and 1 < len(value) <= _LONGEST_LIST:
                lengths[len(value)] = None
    return list(lengths)[:_MOST_WIDTHS]


def _layers_of_parameters(model: nn.Module) -> Iterator[nn.Module]:
    """Layers with the shapes of the first bare parameters: matrices in both orders, kernels of convolutions."""
    convolutions = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
    for parameter in model.parameters():
        if parameter.ndim == 2 and min(parameter.shape) > 1:
            rows, columns = parameter.shape
            yield from (nn.Linear(size, 1, bias=False, device="meta") for size in dict.fromkeys((rows, columns)))
            return
        if parameter.ndim in convolutions:
            yield convolutions[parameter.ndim](parameter.shape[1], 1, 1, bias=False, device="meta")
            return


def input_width(layer: nn.Module) -> int:
    """Features of the input of a linear or recurrent layer; 0 if it has no such attribute."""
    for name in ("in_features", "input_size", "in_channels"):
        value = getattr(layer, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return 0


def attribute(model: nn.Module, *names: str) -> int | None:
    """The first positive integer among the names, of the model or of its configuration."""
    config = getattr(model, "config", None)
    parts = [getattr(config, part, None) for part in ("vision_config", "text_config")]
    for name in names:
        for owner in (model, config, *parts):
            value = owner.get(name) if isinstance(owner, Mapping) else getattr(owner, name, None)
            value = value[0] if isinstance(value, list | tuple) and value else value
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def attribute_sizes(model: nn.Module) -> list[int]:
    """Sizes of images that attributes of the model's modules and its configuration name; those of parts last.

    A part of a model may name the size of its own features, which is small.
    """
    sizes: list[int] = []
    config = getattr(model, "config", None)
    settings = getattr(model, "default_cfg", None)  # of a model of timm
    shape = settings.get("input_size") if isinstance(settings, Mapping) else None
    sizes += [size for size in (shape or ())[-1:] if isinstance(size, int)]
    for owner in (*model.modules(), config, getattr(config, "vision_config", None)):
        for name in SIZE_NAMES:
            value = owner.get(name) if isinstance(owner, Mapping) else getattr(owner, name, None)
            value = value[0] if isinstance(value, list | tuple) and value else value
            if isinstance(value, int) and 8 <= value <= 1024:
                sizes.append(value)
    return sorted(dict.fromkeys(sizes), key=lambda size: size < _LEAST_IMAGE)


def image_sizes(model: nn.Module) -> Sequence[int]:
    """Sizes that attributes name, that a table of positions fits, then usual ones.

    Small sizes by the patches of a linear layer come last: other layers may shrink images further before the table.
    """
    patched = sorted(_patched_sizes(model), reverse=True)
    has_patches = any(isinstance(module, nn.Conv2d) for module in model.modules())
    likely = [size for size in patched if size >= _LEAST_PATCHED or has_patches]
    return list(dict.fromkeys([*attribute_sizes(model), *likely, *IMAGE_SIZES, *patched]))


def _patched_sizes(model: nn.Module) -> Iterator[int]:
    """Sizes of square images whose patches are as many as the positions of a table."""
    lengths = {length - extra for length in table_lengths(model) for extra in (0, 1, 2)}
    sides = sorted(math.isqrt(length) for length in lengths if length >= 16 and math.isqrt(length) ** 2 == length)
    patches: list[int] = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.stride == module.kernel_size and module.stride[0] >= 4:
            patches.append(module.stride[0])
        elif isinstance(module, nn.Linear):
            sides_by_colors = {colors: math.isqrt(module.in_features // colors) for colors in (3, 1)}
            patches += [side for colors, side in sides_by_colors.items() if side**2 * colors == module.in_features]
            break
    yield from (side * patch for side in sides for patch in patches[:2] if patch >= 4 and 64 <= side * patch <= 1024)


def table_lengths(model: nn.Module) -> list[int]:
    """Rows of the tables of positions."""
    tensors = itertools.chain(model.named_parameters(), model.named_buffers())
    return [tensor.shape[-2] for name, tensor in tensors if "pos" in name.lower() and tensor.ndim >= 2]


def possible_limits(model: nn.Module) -> set[int]:
    """Lengths that may be the most tokens: of tables of positions, and of buffers and attributes, such as rotations."""
    tensors = [value for module in model.modules() for value in (*module._buffers.values(), *vars(module).values())]
    sizes = {size for value in tensors if isinstance(value, Tensor) and value.ndim > 1 for size in value.shape}
    return {*table_lengths(model), *sizes}


def fixed_lengths(model: nn.Module) -> list[int]:
    """Lengths of position tables, with and without a class token: inputs of any other length may be refused."""
    lengths = [length - extra for length in table_lengths(model) for extra in (0, 1)]
    return [length for length in dict.fromkeys(lengths) if length >= 4][:4]


def longest(model: nn.Module) -> int:
    """Maximum tokens: of a table of positions, or by an attribute with a usual name; 0 for no limit."""
    tables = {name: module for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    relative = {name for name in tables if re.search(r"rel|bias|bucket", name.lower())}
    positions = [
        table.num_embeddings
        for name, table in tables.items()
        if re.search(r"pos|wpe", name.lower()) and name not in relative
    ]
    embeddings = [table.num_embeddings for name, table in tables.items() if name not in relative]
    limits = [min(positions)] if positions else [min(embeddings)] if len(embeddings) > 1 else []
    config = getattr(model, "config", None)
    for owner in (*model.modules(), config):
        values = [
            owner.get(name) if isinstance(owner, Mapping) else getattr(owner, name, None) for name in LENGTH_NAMES
        ]
        limits += [value for value in values if isinstance(value, int) and value >= 8]
    return min(limits, default=0)
