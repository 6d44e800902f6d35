"""Structure of a module: repeated blocks, tied parameters and main dimensions."""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_NUMBERED = re.compile(r"(.*[^\d])\d+")
_FEWEST_NUMBERED = 3
_SINGLE_LAYERS = (nn.modules.conv._ConvNd, nn.Embedding, nn.EmbeddingBag)
_LEAST_SHARE = 0.1
"""Share of the model's parameters from which a list of other single layers is one of blocks: not a list of routers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """A container whose children repeat with a period, after a prefix of different children."""

    path: str
    """Path of the container; "" for the model itself."""
    names: tuple[str, ...]
    """Names of the children, in order."""
    prefix: int
    """Children before the repetition: a dense layer before the MoE layers, T5's first block with its position bias."""
    period: int
    parameters: int

    @property
    def label(self) -> str:
        """Text for the user: the path, or the common name of numbered attributes."""
        match = _NUMBERED.fullmatch(self.names[0])
        return ".".join(part for part in (self.path, match[1].rstrip("_") if match else "") if part) or "blocks"

    @property
    def repeats(self) -> int:
        """Number of full periods."""
        return (len(self.names) - self.prefix) // self.period

    @property
    def suffix(self) -> int:
        """Number of children after the last full period."""
        return (len(self.names) - self.prefix) % self.period

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the children."""
        return tuple(f"{self.path}.{name}" if self.path else name for name in self.names)


def stacks(model: nn.Module) -> list[Stack]:
    """Find the outermost containers of repeated blocks, in registration order.

    Blocks are equal if their classes, parameter and buffer shapes and types, children, and kinds in the configuration
    are equal. A container is a
    ``ModuleList``, a ``Sequential``, or any module with three or more children named by numbers. Numbered attributes
    (``self.layer1``, ``self.block_0``) are one period of a stack: a forward method that names them requires all. Lists
    of convolutions and tables of embeddings are no blocks: the layers between them belong to the same one.
    """
    total = parameter_total([model])
    repeated: list[Stack] = []
    signature_by_module: dict[int, str] = {}
    visited: set[int] = set()

    def visit(module: nn.Module, path: str, config: Any = None) -> None:
        config = getattr(module, "config", config)
        if id(module) in visited:  # registered at a second path
            return
        visited.add(id(module))
        children = [(name, child) for name, child in module._modules.items() if child is not None]
        is_list = isinstance(module, nn.ModuleList | nn.Sequential)
        if len(children) >= (2 if is_list else 3) and (is_list or all(name.isdigit() for name, _ in children)):
            parameters = parameter_total(child for _, child in children)
            is_small = not any(child._modules for _, child in children) and parameters < _LEAST_SHARE * total
            if is_small or all(isinstance(child, _SINGLE_LAYERS) for _, child in children):
                return
            signatures = [_signature(child, signature_by_module) for _, child in children]
            kinds = _kinds(config, len(children))
            repeated_children = repetition(list(zip(signatures, kinds, strict=True)))
            if len(set(kinds)) > 1 and len({type(child) for _, child in children}) == 1:
                # A pattern of kinds without repetition, as in hybrid models, is one period.
                repeated_children = repeated_children or (0, len(children))
            distinct = len({id(child) for _, child in children}) == len(children)
            prefix, period = repeated_children or (0, 0)
            if repeated_children and parameter_total(child for _, child in children[prefix:]) and distinct:
                repeated.append(
                    Stack(
                        path=path,
                        names=tuple(name for name, _ in children),
                        prefix=prefix,
                        period=period,
                        parameters=parameters,
                    )
                )
                return
        numbered = _numbered(dict(children), signature_by_module)
        for names in numbered:
            parameters = parameter_total([module._modules[name] for name in names])  # type: ignore[misc]
            repeated.append(Stack(path=path, names=names, prefix=0, period=len(names), parameters=parameters))
        blocks = {name for names in numbered for name in names}
        for name, child in children:
            if name not in blocks:
                visit(child, f"{path}.{name}" if path else name, config)

    visit(model, "")
    return repeated


def _numbered(children: Mapping[str, nn.Module], signature_by_module: dict[int, str]) -> list[tuple[str, ...]]:
    """Groups of at least three attributes with the same name and a number, which repeat and consist of modules."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, child in children.items():
        match = _NUMBERED.fullmatch(name)
        if match and child._modules:
            groups[match[1]].append(name)
    return [
        tuple(names)
        for names in groups.values()
        if len(names) >= _FEWEST_NUMBERED
        and len({id(children[name]) for name in names}) == len(names)
        and parameter_total([children[name] for name in names])
        and repetition([_signature(children[name], signature_by_module) for name in names])
    ]


def _kinds(config: Any, count: int) -> Sequence[str]:
    """Kinds of blocks that a configuration lists, such as those of attention; equal ones without such a list."""
    for value in vars(config).values() if hasattr(config, "to_dict") else ():
        if type(value) in {list, tuple} and len(value) == count and all(type(kind) is str for kind in value):
            return list(value)
    return [""] * count


def repetition(signatures: Sequence[object]) -> tuple[int, int] | None:
    """Shortest prefix (less than half of the children) and smallest period that repeats at least twice."""
    count = len(signatures)
    for prefix in range((count + 1) // 2):
        for period in range(1, (count - prefix) // 2 + 1):
            if all(signatures[i] == signatures[i - period] for i in range(prefix + period, count)):
                return prefix, period
    return None


def _signature(module: nn.Module, cache: dict[int, str]) -> str:
    """Hash of everything that determines a module's cost."""
    if id(module) in cache:
        return cache[id(module)]
    own = tuple((name, tuple(p.shape), str(p.dtype)) for name, p in module._parameters.items() if p is not None)
    buffers = tuple((name, tuple(b.shape)) for name, b in module._buffers.items() if b is not None)
    children = tuple(
        ("#" if name.isdigit() else name, _signature(child, cache))
        for name, child in module._modules.items()
        if child is not None
    )
    leaf = not module._modules
    name = type(module).__qualname__
    # extra_repr shows strides and kernels; other modules add irrelevant values (the layer's index).
    extra = module.extra_repr() if leaf and (own or "ool" in name or "psample" in name) else ""
    text = repr((type(module).__module__, name, own, buffers, children, extra))
    cache[id(module)] = hashlib.blake2s(text.encode(), digest_size=8).hexdigest()
    return cache[id(module)]


def parameter_total(modules: Iterator[nn.Module] | Sequence[nn.Module]) -> int:
    """Return the total parameters of the modules; shared parameters count once."""
    sizes = {id(p): p.numel() for module in modules for p in module.parameters()}
    return sum(sizes.values())


def callable_parts(model: nn.Module, path: str) -> tuple[str, ...]:
    """Paths of the modules that run as the block at a path: itself, or the parts of a list without forward method."""
    module = model.get_submodule(path)
    if type(module).forward is not nn.Module.forward:
        return (path,)
    children = [name for name, child in module._modules.items() if child is not None]
    return tuple(part for name in children for part in callable_parts(model, f"{path}.{name}" if path else name))


def block_counts(module: nn.Module) -> dict[str, Any]:
    """Class and parameter counts of a block, as fields of `BlockProfile`."""
    parameters = list({id(p): p for p in module.parameters()}.values())
    return {
        "kind": " + ".join(
            type(module.get_submodule(part)).__name__ if part else type(module).__name__
            for part in callable_parts(module, "")
        )
        or type(module).__name__,
        "parameters": sum(p.numel() for p in parameters),
        "one_dimensional_parameters": sum(p.numel() for p in parameters if p.ndim < 2),
    }


def ties(model: nn.Module) -> tuple[tuple[str, ...], ...]:
    """Return the groups of names of the same parameter."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return tuple(tuple(group) for group in names.values() if len(group) > 1)


def hidden_size(model: nn.Module) -> int:
    """Return the most frequent width of norms; 0 without norms."""
    weights = [getattr(module, "weight", None) for module in model.modules() if "orm" in type(module).__name__]
    widths = Counter(w.numel() for w in weights if isinstance(w, nn.Parameter) and w.ndim == 1)
    return widths.most_common(1)[0][0] if widths else 0


def largest_table(model: nn.Module, *kinds: type[nn.Embedding | nn.EmbeddingBag]) -> int:
    """Return the rows of the largest embedding of these kinds; 0 without one."""
    tables = [module for module in model.modules() if isinstance(module, kinds)]
    return max((table.num_embeddings for table in tables), default=0)


IMAGE_SIZE = 224
"""The usual size of images."""
_SIZE_NAMES = ("image_size", "img_size", "input_size", "sample_size", "input_resolution", "resolution")


_LENGTH_NAMES = (
    "max_seq_len", "max_seq_length", "max_length", "max_len", "seq_len", "block_size", "context_length", "n_positions",
    "max_position_embeddings", "n_ctx",
)  # fmt: skip


def image_size(model: nn.Module) -> int:
    """Return the size that an attribute names or that fits a table of positions of patches; otherwise the usual one."""
    for module in model.modules():
        for name in _SIZE_NAMES:
            value = getattr(module, name, None)
            value = value[0] if isinstance(value, tuple | list) and value else value
            if isinstance(value, int) and 8 <= value <= 1024:
                return value
    patches = [
        layer.stride[0]
        for layer in model.modules()
        if isinstance(layer, nn.Conv2d) and layer.stride == layer.kernel_size and layer.stride[0] >= 4
    ]
    for name, tensor in model.named_parameters():
        side = math.isqrt(tensor.shape[-2]) if "pos" in name.lower() and tensor.ndim >= 2 else 0
        if patches and side >= 4 and tensor.shape[-2] - side**2 in {0, 1, 2}:
            return side * patches[0]
    return IMAGE_SIZE


def longest_sequence(model: nn.Module) -> int:
    """Maximum tokens: rows of a table of positions, or an attribute with a usual name; 0 for no limit."""
    limits = [
        module.num_embeddings
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and re.search(r"pos|wpe", name.lower()) and "rel" not in name.lower()
    ]
    tensors = [*model.named_parameters(), *model.named_buffers()]
    limits += [t.shape[-2] for name, t in tensors if re.search(r"pos_|pos$|position", name.lower()) and t.ndim == 3]
    for owner in (*model.modules(), getattr(model, "config", None)):
        values = (getattr(owner, name, None) for name in _LENGTH_NAMES)
        limits += [value for value in values if isinstance(value, int) and value >= 8]
    return min(limits, default=0)


def remaining_children(stack: Stack, repeats: int) -> tuple[int, ...]:
    """Indices of the remaining children: the prefix, `repeats` periods, and the children after the last full period."""
    body = min(repeats, stack.repeats) * stack.period
    suffix = range(len(stack.names) - stack.suffix, len(stack.names))
    return (*range(stack.prefix + body), *suffix)


def truncated_paths(stack: Stack, repeats: int) -> tuple[str, ...]:
    """Return the paths of the blocks of a truncated stack, whose children are renumbered if any are removed."""
    if repeats >= stack.repeats:
        return stack.paths
    return tuple(f"{stack.path}.{i}" if stack.path else str(i) for i in range(len(remaining_children(stack, repeats))))


def source_children(stack: Stack, repeats: int) -> tuple[int, ...]:
    """For every child of a stack, the index of its representative: the last repeat that remains, for removed ones."""
    body = min(repeats, stack.repeats) * stack.period
    cut = (stack.repeats - min(repeats, stack.repeats)) * stack.period
    head = stack.prefix + body
    return (
        *range(head),
        *(head - stack.period + i % stack.period for i in range(cut)),
        *range(head, head + stack.suffix),
    )


_COUNTS_BLOCKS = re.compile(r"layer|block|depth")


@contextlib.contextmanager
def truncated(model: nn.Module, stacks: Sequence[Stack], repeats: int = 2) -> Iterator[None]:
    """Truncate each stack to `repeats` periods inside the block, with the numbers and lists that follow its blocks."""
    originals: list[tuple[dict[str, Any], dict[str, Any]]] = []
    try:
        for stack in stacks:
            if repeats >= stack.repeats:  # nothing to remove, so the children keep their names
                continue
            remaining = remaining_children(stack, repeats)
            children = model.get_submodule(stack.path)._modules
            attributes = vars(model.get_submodule(stack.path.rpartition(".")[0]))
            originals += [(children, dict(children)), (attributes, dict(attributes))]
            inner = [children[stack.names[i]] for i in remaining]
            children.clear()
            children.update({str(i): child for i, child in enumerate(inner)})
            attributes |= _shortened(attributes, len(stack.names), remaining)
        yield
    finally:
        for current, original in reversed(originals):
            current.clear()
            current.update(original)


def _shortened(attributes: Mapping[str, Any], count: int, remaining: Sequence[int]) -> dict[str, Any]:
    """Return the attributes that count `count` blocks or list one value for each, for the remaining blocks."""
    changed: dict[str, Any] = {}
    for name, value in attributes.items():
        if type(value) is int and value == count and _COUNTS_BLOCKS.search(name):
            changed[name] = len(remaining)
        elif type(value) in {tuple, list} and len(value) == count:
            is_order = all(type(entry) is int for entry in value) and list(value) == list(range(count))
            changed[name] = type(value)(range(len(remaining)) if is_order else [value[i] for i in remaining])
    return changed
