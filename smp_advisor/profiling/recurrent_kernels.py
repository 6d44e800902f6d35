"""Recurrent layers in a trace on fake tensors, with the products and saved tensors of cuDNN's kernels.

A CPU runs ``nn.LSTM`` as one opaque oneDNN operator, and other recurrent layers as a loop over the tokens. A GPU runs
one kernel per layer: a product of all tokens with the input weight, a product per token with the recurrent weight, and
a reserve with the activated gates. Values do not matter on fake tensors, so the products per token run at once.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import Tensor, nn

from smp_advisor.profiling.patching import patched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


_KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_LAUNCHES = 2
"""Per token, layer and direction: an LSTM of width 1,024 takes 19 to 22 microseconds for each, and 18 to 30 in the
backward pass, on an H100 at batches of 8 and 64 (``validation/one_gpu/modules.csv``)."""


def has_recurrent_layers(model: nn.Module) -> bool:
    """Whether a recurrent kernel runs in the model, so that saved bytes depend on its reserve."""
    return any(isinstance(module, nn.RNNBase) for module in model.modules())


@contextlib.contextmanager
def recurrent_kernels(on_launches: Callable[[int], None] = lambda _: None) -> Iterator[None]:
    """Run recurrent layers on fake tensors as one kernel per layer; real tensors keep PyTorch's own kernels.

    `on_launches` gets the launches of tokens that wait for each other, in both passes.
    """
    with contextlib.ExitStack() as stack:
        for kind in _KINDS:
            stack.enter_context(patched(torch._VF, kind, _replacement(kind, getattr(torch._VF, kind), on_launches)))
        yield


def _replacement(kind: str, original: Callable[..., Any], on_launches: Callable[[int], None]) -> Callable[..., Any]:
    """A kernel for padded tokens [sequence, batch, width], or for packed ones [tokens, width]."""

    def run(*arguments: Any) -> Any:
        tokens = arguments[0]
        if not (isinstance(tokens, torch._subclasses.FakeTensor) or tokens.is_meta):
            return original(*arguments)
        if not isinstance(arguments[3], bool):  # packed: the second argument has the batch sizes
            return _layers(kind, partial(on_launches, _LAUNCHES * len(arguments[1])), tokens, *arguments[2:])
        *options, batch_first = arguments[1:]
        if batch_first:
            tokens = tokens.transpose(0, 1)
        length, batch = tokens.shape[:2]
        launch = partial(on_launches, _LAUNCHES * length)
        rows, *last = _layers(kind, launch, tokens.reshape(length * batch, tokens.shape[-1]), *options)
        output = rows.view(length, batch, rows.shape[-1])
        return output.transpose(0, 1) if batch_first else output, *last

    return run


def _layers(
    kind: str,
    launch: Callable[[], None],
    rows: Tensor,
    states: Any,
    weights: Sequence[Tensor],
    has_biases: bool,  # noqa: FBT001 - PyTorch's signature
    layers: int,
    dropout: float,
    training: bool,  # noqa: FBT001
    bidirectional: bool,  # noqa: FBT001
) -> tuple[Tensor, ...]:
    """Output rows, and the last states [layers x directions, batch, width] of each kind."""
    states = states if isinstance(states, list | tuple) else (states,)
    directions = 2 if bidirectional else 1
    per_layer = len(weights) // (layers * directions)
    last: list[list[Tensor]] = [[] for _ in states]
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            inner, recurrent, *extras = weights[place * per_layer : (place + 1) * per_layer]
            projection = extras.pop() if len(extras) > (2 if has_biases else 0) else None
            vectors = (*extras, *(state[place] for state in states))
            results = _Layer.apply(kind, launch, rows, inner, recurrent, projection, *vectors)  # type: ignore[no-untyped-call]
            outputs.append(results[0])
            for tensors, result, state in zip(last, results, states, strict=True):
                tensors.append(result[: state.shape[-2]])
        rows = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if training and dropout and layer < layers - 1:
            rows = F.dropout(rows, dropout, training=True)
    return rows, *(torch.stack(tensors) for tensors in last)


class _Layer(torch.autograd.Function):
    """One direction of one layer: output rows, and for an LSTM the cells.

    It saves its input and output rows, the activated gates, and an LSTM's cells or the recurrent part of a GRU's
    candidate, the tensors that the gradient of each formula needs (``torch.nn.LSTM``, ``GRU`` and ``RNN``).
    """

    @staticmethod
    def forward(
        ctx: Any,
        kind: str,
        launch: Callable[[], None],
        rows: Tensor,
        inner: Tensor,
        recurrent: Tensor,
        projection: Tensor | None,
        *vectors: Tensor,
    ) -> tuple[Tensor, ...]:
        """`vectors` are the biases and the first states, whose gradients need no product."""
        launch()
        gates = rows @ inner.t()
        width = recurrent.shape[0] // {"lstm": 4, "gru": 3}.get(kind, 1)
        output = gates.new_empty(rows.shape[0], recurrent.shape[1])
        gates += output @ recurrent.t()
        extra = [gates.new_empty(rows.shape[0], width)] if kind in {"lstm", "gru"} else []
        if projection is not None:
            output = extra[0] @ projection.t()
        ctx.projection, ctx.vectors, ctx.launch = projection, vectors, launch
        saved = [gates] if kind in {"lstm", "gru"} else []
        ctx.save_for_backward(rows, output, inner, recurrent, *saved, *extra)
        return (output, extra[0]) if kind == "lstm" else (output,)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        rows, output, inner, recurrent, *_ = ctx.saved_tensors
        ctx.launch()
        needed = ctx.needs_input_grad
        projected: Tensor | None = None
        if ctx.projection is not None:  # of the hidden state
            incoming = gradients[0]
            projected = incoming.t() @ (incoming @ ctx.projection)
        change = rows.new_empty(rows.shape[0], inner.shape[0])
        change @ recurrent  # the gradient that each token passes to the one before it
        return (
            None,
            None,
            change @ inner if needed[2] else None,
            change.t() @ rows if needed[3] else None,
            change.t() @ output if needed[4] else None,
            projected,
            *(torch.empty_like(vector) if needed[6 + i] else None for i, vector in enumerate(ctx.vectors)),
        )
