"""Experts of a live module: where they are, and the module with fewer of them."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from smp_advisor.profiling.structure import stacks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, MutableMapping

__all__ = ["Experts", "experts_of", "with_experts"]

_FEWEST = 4
"""Experts of the smallest copy, and the fewest that are recognized."""
_MOST_MODULES = 64
"""Modules of a layer in which its router is searched."""
_PER_TOKEN = re.compile(r"top_?k|^k$|per_tok|select|activ|routed_to")
"""Names of attributes with the number of experts per token."""
_NAMES = re.compile(r"expert|moe|mixture", re.IGNORECASE)
"""Parts of the names of modules, their classes and attributes, at least one of which layers with experts have."""
_SIZES = re.compile(r"dim|size|width|head|feature|hidden|layer|depth|vocab|channel")
"""Names of attributes that are no numbers of experts, even if their value is the same."""


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Experts of one number in all layers of a module."""

    number: int
    layers: tuple[ExpertLayer, ...]
    per_token: int
    """Experts that process each token; 1 if no attribute names them."""

    @property
    def few(self) -> int:
        """Number in the smallest copy: more than per token, so that the router still has a choice."""
        return max(_FEWEST, 1 << self.per_token.bit_length())


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """Modules of one layer whose sizes follow from the number of experts."""

    lists: tuple[str, ...]
    """Paths of containers with one child per expert."""
    owners: tuple[str, ...]
    """Paths of modules whose own tensors have a dimension of experts: fused experts, routers."""


def experts_of(model: nn.Module) -> Experts | None:
    """Experts of the module: children of one structure or tensors [experts, ...], next to a router of as many outputs.

    None if there are none, or if the layers have different numbers.
    """
    stacked = {row.path for row in stacks(model)}
    layers: dict[int, list[ExpertLayer]] = {}
    covered: list[str] = []
    for path, module in model.named_modules():
        if any(path == parent or path.startswith(f"{parent}.") for parent in covered):
            continue
        lists = {name: child for name, child in module.named_children() if _is_list(_join(path, name), child, stacked)}
        numbers = {len(child) for child in lists.values()} | _fused(module)
        for number in numbers:
            names = [name for name, child in lists.items() if len(child) == number]
            owners = _owners(model, path, set(names), number)
            if owners:
                layers.setdefault(number, []).append(ExpertLayer(tuple(_join(path, name) for name in names), owners))
                covered += [_join(path, name) for name in names]
    if len(layers) != 1:
        return None
    number, routed = layers.popitem()
    scopes = {owner for layer in routed for owner in layer.owners}
    per_token = [
        value
        for scope in scopes
        for owner in _settings(model.get_submodule(scope))
        for name, value in owner.items()
        if type(value) is int and 0 < value < number and _PER_TOKEN.search(name)
    ]
    return Experts(number=number, layers=tuple(routed), per_token=max(per_token, default=1))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _is_list(path: str, module: nn.Module, stacked: set[str]) -> bool:
    """Whether the children may be experts: of one class and the same shapes, and not the blocks of the model."""
    children = list(module.children())
    if type(module) not in {nn.ModuleList, nn.ModuleDict} or len(children) < _FEWEST:
        return False
    shapes = {(type(child), *(p.shape for p in child.parameters())) for child in children}
    is_distinct = len({id(child) for child in children}) == len(children)
    is_block = path in stacked and "expert" not in path.lower()
    return len(shapes) == 1 and is_distinct and not is_block and any(True for _ in children[0].parameters())


def _fused(module: nn.Module) -> set[int]:
    """First dimension of the module's own parameters [experts, rows, columns], which are no kernels of convolutions."""
    if isinstance(module, _ConvNd):
        return set()
    parameters = [p for p in module._parameters.values() if p is not None]
    return {p.shape[0] for p in parameters if p.ndim == 3 and p.shape[0] >= _FEWEST}


def _owners(model: nn.Module, path: str, lists: set[str], number: int) -> tuple[str, ...]:
    """Modules whose own tensors have one row per expert; empty without a router, whose tensors have two dimensions.

    The router is in the module with the experts, or in its parent.
    """
    experts = [_join(path, name) for name in lists]
    owners, is_routed, is_named = {path: None}, False, False
    for scope in dict.fromkeys((path, path.rpartition(".")[0])):
        names = [_join(scope, name) if name else scope for name, _ in model.get_submodule(scope).named_modules()]
        near = [name for name in names if not any(name == row or name.startswith(f"{row}.") for row in experts)]
        if len(near) > _MOST_MODULES:
            continue
        rows = [name for name in near if _has_dimension(model.get_submodule(name), number, (1, 2, 3))]
        owners |= dict.fromkeys([*rows, scope])
        is_routed = is_routed or any(_has_dimension(model.get_submodule(name), number, (2,)) for name in rows)
        is_named = is_named or _is_named(model, scope)
    return tuple(owners) if is_routed and is_named else ()


def _is_named(model: nn.Module, path: str) -> bool:
    module = model.get_submodule(path)
    return any(_NAMES.search(name) for name in (path, type(module).__name__, *vars(module), *module._modules))


def _has_dimension(module: nn.Module, number: int, counts: tuple[int, ...]) -> bool:
    tensors = (*module._parameters.values(), *module._buffers.values())
    return any(t is not None and t.ndim in counts and _dimension(t, number) is not None for t in tensors)


def _dimension(tensor: Tensor, number: int) -> int | None:
    """Dimension of the experts: the first of their number; of a matrix one of both, unless it is square."""
    places = [place for place, size in enumerate(tensor.shape) if size == number]
    return places[0] if places and (len(places) == 1 or tensor.ndim > 2) else None


def _settings(module: nn.Module) -> Iterator[MutableMapping[str, object]]:
    """Attributes of a module, and the fields of its configurations."""
    yield vars(module)
    for value in list(vars(module).values()):
        is_record = dataclasses.is_dataclass(value) and not isinstance(value, type) and hasattr(value, "__dict__")
        if is_record or type(value).__name__ in {"SimpleNamespace", "Namespace"}:
            yield vars(value)


@contextlib.contextmanager
def with_experts(model: nn.Module, experts: Experts, number: int) -> Iterator[None]:
    """Cut the module to `number` experts per layer inside the block; restore it afterwards."""
    originals: list[tuple[MutableMapping[str, Any], dict[str, Any]]] = []

    def replace(values: MutableMapping[str, Any], new: Mapping[str, Any]) -> None:
        originals.append((values, dict(values)))
        values.clear()
        values.update(new)

    try:
        for path in (path for layer in experts.layers for path in layer.lists):
            children = model.get_submodule(path)._modules
            replace(children, dict(list(children.items())[:number]))
        owners = {owner for layer in experts.layers for owner in layer.owners}
        smaller: dict[int, Tensor] = {}
        for path, module in model.named_modules():
            for tensors in (module._parameters, module._buffers) if path in owners else ():
                replace(
                    tensors, {name: _cut(value, experts.number, number, smaller) for name, value in tensors.items()}
                )
            for settings in _settings(module):
                counts = _counts(settings, experts.number, number, is_owner=path in owners, module=module)
                if counts:
                    replace(settings, {**settings, **counts})
        yield
    finally:
        for values, before in reversed(originals):
            values.clear()
            values.update(before)


def _cut(tensor: Tensor | None, full: int, number: int, smaller: dict[int, Tensor]) -> Tensor | None:
    """The tensor with fewer experts, once for each; itself if it has no dimension of experts."""
    place = None if tensor is None else _dimension(tensor, full)
    if tensor is None or place is None:
        return tensor
    if id(tensor) not in smaller:
        values = tensor.detach().narrow(place, 0, number)
        is_parameter = isinstance(tensor, nn.Parameter)
        smaller[id(tensor)] = nn.Parameter(values, requires_grad=tensor.requires_grad) if is_parameter else values
    return smaller[id(tensor)]


def _counts(
    settings: MutableMapping[str, object], full: int, number: int, *, is_owner: bool, module: nn.Module
) -> dict[str, object]:
    """Attributes with the number of experts: by their names, and of the layer itself by their value."""
    is_layer = isinstance(module, nn.Linear)
    return {
        name: number
        for name, value in settings.items()
        if type(value) is int
        and value == full
        and ("expert" in name or (is_owner and (name == "out_features" if is_layer else not _SIZES.search(name))))
    }
