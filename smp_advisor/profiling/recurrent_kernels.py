"""Recurrences in a trace on fake tensors, with the products, traffic and saved tensors of a GPU's kernels.

A CPU runs ``nn.LSTM`` as one opaque oneDNN operator, and other recurrent layers as a loop over the tokens. A GPU runs
one kernel per layer: a product of all tokens with the input weight, a product per token with the recurrent weight, and
a reserve with the activated gates. Without packages of their own, transformers runs the recurrences of its sequence
models as a loop over the tokens, too, or in chunks with every product stored. Values do not matter on fake tensors, so
the products per token run at once.

Sources: documentation of ``torch.nn.LSTM``; Gu and Dao 2023 (arXiv 2312.00752, section 3.3) and Dao and Gu 2024 (arXiv
2405.21060, section 6) for the selective state space; Yang et al. 2024 (arXiv 2412.06464, section 3.3) for the gated
delta rule.
"""

from __future__ import annotations

import contextlib
import sys
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
    """Run recurrent layers, and recurrences of loaded models of transformers, on fake tensors as one kernel each.

    Real tensors keep their own code. `on_launches` gets the launches of tokens that wait for each other, in both
    passes.
    """
    with contextlib.ExitStack() as stack:
        for kind in _KINDS:
            stack.enter_context(patched(torch._VF, kind, _replacement(kind, getattr(torch._VF, kind), on_launches)))
        for module in [sys.modules[name] for name in [*sys.modules] if name.startswith("transformers.models.")]:
            for name, replacement in _REPLACEMENTS.items():
                original = vars(module).get(name)
                if original is not None:
                    stack.enter_context(patched(module, name, replacement(original)))
        yield


def _replacement(kind: str, original: Callable[..., Any], on_launches: Callable[[int], None]) -> Callable[..., Any]:
    """A kernel for padded tokens [sequence, batch, width], or for packed ones [tokens, width]."""

    def run(*arguments: Any) -> Any:
        tokens = arguments[0]
        if not _on_fake(tokens):
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


def _on_fake(tensor: Tensor) -> bool:
    return isinstance(tensor, torch._subclasses.FakeTensor) or tensor.is_meta


def _tensors(*values: Any) -> Iterator[Tensor]:
    return (value for value in values if isinstance(value, Tensor))


def _selective_scan(original: Callable[..., Any]) -> Callable[..., Any]:
    """Mamba's scan: elementwise in the operands [batch, width, sequence], whose states stay in the kernel."""

    def run(values: Tensor, dt: Tensor, *arguments: Any, **options: Any) -> Any:
        if not _on_fake(values):
            return original(values, dt, *arguments, **options)
        output = _Kernel.apply(values, 0, *_tensors(dt, *arguments, *options.values()))  # type: ignore[no-untyped-call]
        return (output, None) if options.get("return_last_state") else output

    return run


def _chunk_scan(original: Callable[..., Any]) -> Callable[..., Any]:
    """Mamba 2's scan of values [batch, sequence, heads, width], in chunks.

    Products per token: of B and C with the chunk in each group; per head with the chunk's values, and twice with the
    state.
    """

    def run(values: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, chunk_size: int, **options: Any) -> Any:
        if not _on_fake(values):
            return original(values, dt, a, b, c, chunk_size, **options)
        heads, width = values.shape[-2:]
        groups, state = b.shape[-2:]
        products = chunk_size * (groups * state + heads * width) + 2 * heads * width * state
        output = _Kernel.apply(values, products, *_tensors(dt, a, b, c, *options.values()))  # type: ignore[no-untyped-call]
        return (output, None) if options.get("return_final_states") else output

    return run


def _delta_rule(original: Callable[..., Any]) -> Callable[..., Any]:
    """The gated delta rule, in chunks: queries and keys [batch, sequence, heads, width], and values.

    Products per token and head: four with the keys of the chunk, one with the inverse of its triangular system, two
    with its values, and three with the state.
    """

    def run(query: Tensor, key: Tensor, value: Tensor, *arguments: Any, chunk_size: int = 64, **options: Any) -> Any:
        if not _on_fake(query):
            return original(query, key, value, *arguments, chunk_size=chunk_size, **options)
        heads, wide = value.shape[-2:]
        products = heads * (chunk_size * (3 * key.shape[-1] + 2 * wide) + 3 * key.shape[-1] * wide)
        operands = _tensors(query, key, *arguments, *options.values())
        return _Kernel.apply(value, products, *operands), None  # type: ignore[no-untyped-call]

    return run


def _linear_attention(original: Callable[..., Any]) -> Callable[..., Any]:
    """RWKV's attention of keys and values [batch, sequence, width]: elementwise, with states inside the kernel."""

    def run(decay: Tensor, first: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        if not _on_fake(key):
            return original(decay, first, key, value, **options)
        return _Kernel.apply(key, 0, decay, first, value), options.get("state")  # type: ignore[no-untyped-call]

    return run


_REPLACEMENTS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "mamba_selective_scan": _selective_scan,
    "mamba2_chunk_scan": _chunk_scan,
    "torch_chunk_gated_delta_rule": _delta_rule,
    "rwkv_linear_attention": _linear_attention,
}


class _Kernel(torch.autograd.Function):
    """One kernel: its output has the shape of its first operand, and it saves its operands."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, products: int, *operands: Tensor) -> Tensor:
        """`products` are the multiplications per token, as one product of the same arithmetic and little traffic."""
        output = values + values
        for operand in operands:
            operand + operand  # which the kernel reads
        rows = values.reshape(values.shape[0] * values.shape[1], -1)
        ctx.columns = round(products / rows.shape[1])
        if ctx.columns:
            rows @ rows.new_empty(rows.shape[1], ctx.columns)
        ctx.save_for_backward(values, *operands)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        values, *operands = ctx.saved_tensors
        first = gradients[0] + values
        if ctx.columns:
            rows = values.reshape(values.shape[0] * values.shape[1], -1)
            for _ in range(2):
                rows @ rows.new_empty(rows.shape[1], ctx.columns)
        return first, None, *(operand + operand for operand in operands)
