"""Recurrent layers in a trace on fake tensors, with the products and saved tensors of cuDNN's kernels.

A CPU runs ``nn.LSTM`` as one opaque oneDNN operator, and other recurrent layers as a loop over the tokens. A GPU runs
one kernel per layer: a product of all tokens with the input weight, a product per token with the recurrent weight, and
a reserve with the activated gates. Values do not matter on fake tensors, so the products per token run at once.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import Tensor, nn

from smp_advisor.profiling.patching import patched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["has_recurrent_layers", "recurrent_kernels"]

_KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def has_recurrent_layers(model: nn.Module) -> bool:
    """Whether a recurrent kernel runs in the model, so that saved bytes depend on its reserve."""
    return any(isinstance(module, nn.RNNBase) for module in model.modules())


@contextlib.contextmanager
def recurrent_kernels() -> Iterator[None]:
    """Run recurrent layers on fake tensors as one kernel per layer; real tensors keep PyTorch's own kernels."""
    with contextlib.ExitStack() as stack:
        for kind in _KINDS:
            stack.enter_context(patched(torch._VF, kind, _replacement(kind, getattr(torch._VF, kind))))
        yield


def _replacement(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        rows = arguments[0]
        if not (isinstance(rows, torch._subclasses.FakeTensor) or rows.is_meta):
            return original(*arguments)
        if isinstance(arguments[3], bool):
            return _padded(kind, *arguments)
        return _packed(kind, *arguments)

    return run


def _padded(
    kind: str,
    tokens: Tensor,
    states: Any,
    weights: Sequence[Tensor],
    has_biases: bool,  # noqa: FBT001 - PyTorch's signature
    layers: int,
    dropout: float,
    training: bool,  # noqa: FBT001
    bidirectional: bool,  # noqa: FBT001
    batch_first: bool,  # noqa: FBT001
) -> tuple[Tensor, ...]:
    """Layers over tokens [sequence, batch, width], or [batch, sequence, width] with `batch_first`."""
    if batch_first:
        tokens = tokens.transpose(0, 1)
    length, batch = tokens.shape[:2]
    rows = tokens.reshape(length * batch, tokens.shape[-1])
    rows, *last = _layers(
        kind, rows, states, weights, has_biases, layers, dropout if training else 0.0, 2 if bidirectional else 1
    )
    output = rows.view(length, batch, rows.shape[-1])
    return output.transpose(0, 1) if batch_first else output, *last


def _packed(
    kind: str,
    rows: Tensor,
    _: Tensor,
    states: Any,
    weights: Sequence[Tensor],
    has_biases: bool,  # noqa: FBT001 - PyTorch's signature
    layers: int,
    dropout: float,
    training: bool,  # noqa: FBT001
    bidirectional: bool,  # noqa: FBT001
) -> tuple[Tensor, ...]:
    """Layers over the tokens of packed sequences, [tokens, width]."""
    directions = 2 if bidirectional else 1
    return _layers(kind, rows, states, weights, has_biases, layers, dropout if training else 0.0, directions)


def _layers(
    kind: str,
    rows: Tensor,
    states: Any,
    weights: Sequence[Tensor],
    has_biases: bool,  # noqa: FBT001
    layers: int,
    dropout: float,
    directions: int,
) -> tuple[Tensor, ...]:
    """Output rows, and the last states [layers x directions, batch, width] of each kind."""
    states = states if isinstance(states, list | tuple) else (states,)
    per_layer = len(weights) // (layers * directions)
    last: list[list[Tensor]] = [[] for _ in states]
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            start = (layer * directions + direction) * per_layer
            own = list(weights[start : start + per_layer])
            biases = own[2:4] if has_biases else []
            projection = own[4 if has_biases else 2 :]
            results = _Layer.apply(kind, rows, own[0], own[1], *biases, *projection)  # type: ignore[no-untyped-call]
            outputs.append(results[0])
            for tensors, result, state in zip(last, results, states, strict=True):
                tensors.append(result[: state.shape[-2]])
        rows = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout and layer < layers - 1:
            rows = F.dropout(rows, dropout, training=True)
    return rows, *(torch.stack(tensors) for tensors in last)


class _Layer(torch.autograd.Function):
    """One direction of one layer: output rows, and for an LSTM the cells.

    It saves its input and output rows, the activated gates, and an LSTM's cells or the recurrent part of a GRU's
    candidate, the tensors that the gradient of each formula needs (``torch.nn.LSTM``, ``GRU`` and ``RNN``).
    """

    @staticmethod
    def forward(
        ctx: Any, kind: str, rows: Tensor, inner: Tensor, recurrent: Tensor, *vectors: Tensor
    ) -> tuple[Tensor, ...]:
        gates = rows @ inner.t()
        width = recurrent.shape[0] // {"lstm": 4, "gru": 3}.get(kind, 1)
        output = gates.new_empty(rows.shape[0], recurrent.shape[1])
        gates += output @ recurrent.t()
        extra = [gates.new_empty(rows.shape[0], width)] if kind in {"lstm", "gru"} else []
        projection = next((tensor for tensor in vectors if tensor.ndim == 2), None)
        if projection is not None:
            output = extra[0] @ projection.t()
        ctx.vectors, ctx.cells = vectors, len(extra)
        saved = [gates] if kind in {"lstm", "gru"} else []
        ctx.save_for_backward(rows, output, inner, recurrent, *saved, *extra)
        return (output, extra[0]) if kind == "lstm" else (output,)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        rows, output, inner, recurrent, *_ = ctx.saved_tensors
        results: list[Tensor | None] = []
        incoming = gradients[0] if gradients[0] is not None else torch.empty_like(output)
        for tensor in ctx.vectors:
            if tensor.ndim == 2:  # the projection of the hidden state
                cells = incoming @ tensor
                results.append(incoming.t() @ cells)
            else:
                results.append(torch.empty_like(tensor))
        change = incoming.new_empty(rows.shape[0], inner.shape[0])
        change @ recurrent  # the gradient that each token passes to the one before it
        return (
            None,
            change @ inner if ctx.needs_input_grad[1] else None,
            change.t() @ rows if ctx.needs_input_grad[2] else None,
            change.t() @ output if ctx.needs_input_grad[3] else None,
            *results,
        )
