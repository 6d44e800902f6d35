"""Modules that training scripts shard and recompute one by one: the repeated layers of a model."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from smp_advisor.libraries.layout import OPERATORS
from smp_advisor.profiling.patching import wrapped_forwards
from smp_advisor.profiling.structure import callable_parts, stacks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

__all__ = ["main_blocks", "recomputed", "repeated_layers"]

_ATEN = torch.ops.aten
_PRODUCTS = (_ATEN.mm.default, _ATEN.addmm.default)
_ATTENTION = (
    _ATEN._scaled_dot_product_flash_attention.default,
    _ATEN._scaled_dot_product_efficient_attention.default,
)


def repeated_layers(model: nn.Module) -> tuple[str, ...]:
    """Paths of all repeated layers; of several kinds, those that transformers names as undivided."""
    paths = [part for stack in stacks(model) for path in stack.paths for part in callable_parts(model, path)]
    undivided = set(getattr(model, "_no_split_modules", None) or ())
    chosen = [path for path in paths if type(model.get_submodule(path)).__name__ in undivided]
    return tuple(path for path in chosen or paths if any(True for _ in model.get_submodule(path).parameters()))


def main_blocks(model: nn.Module) -> tuple[str, ...]:
    """Paths of the stack with the most parameters, which a pipeline divides."""
    ordered = sorted(stacks(model), key=lambda stack: stack.parameters)
    return ordered[-1].paths if ordered else ()


@contextmanager
def recomputed(model: nn.Module, paths: Sequence[str], code: int) -> Iterator[None]:
    """Recompute layers in the backward pass, by the code of the plan's strategy (`checkpoint_code`)."""
    period = -code - 1 if code < OPERATORS else 1
    keywords: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if code == OPERATORS:
        keywords["context_fn"] = _selective_contexts

    def wrap(_: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*arguments: Any, **options: Any) -> Any:
            return checkpoint(original, *arguments, **keywords, **options)

        return forward

    with wrapped_forwards(model, paths[::period] if code else (), wrap):
        yield


def _selective_contexts() -> Any:
    """Contexts that keep the output of attention and of every second product, as the exported script does."""
    counts = {False: 0, True: 0}

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if operator in _PRODUCTS:
            counts[context.is_recompute] += 1
            if counts[context.is_recompute] % 2:
                return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.MUST_SAVE if operator in _ATTENTION else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
