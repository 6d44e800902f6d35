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
import inspect
import sys
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import Tensor, nn
from torch.utils._mode_utils import no_dispatch

from smp_advisor.profiling.patching import patched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


_KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_LAUNCHES = 2
"""Per token, layer and direction: an LSTM of width 1,024 takes 19 to 22 microseconds for each, and 18 to 30 in the
backward pass, on an H100 at batches of 8 and 64 (``validation/one_gpu/modules.csv``)."""


def has_recurrent_layers(model: nn.Module) -> bool:
    """Return whether a recurrent kernel runs in the model, so that saved bytes depend on its reserve."""
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
        for name, replacement in (("_pack_padded_sequence", _packed), ("_pad_packed_sequence", _padded)):
            stack.enter_context(patched(torch._VF, name, replacement(getattr(torch._VF, name))))
        for module in [sys.modules[name] for name in [*sys.modules] if name.startswith("transformers.models.")]:
            for name in _RECURRENCES:
                *owner, attribute = name.split(".")
                place = getattr(module, owner[0], None) if owner else module
                if place is not None and attribute in vars(place):
                    stack.enter_context(patched(place, attribute, _recurrence(name, vars(place)[attribute])))
        yield


def _replacement(kind: str, original: Callable[..., Any], on_launches: Callable[[int], None]) -> Callable[..., Any]:
    """Return a kernel for padded tokens [sequence, batch, width], or for packed ones [tokens, width]."""

    def run(*arguments: Any) -> Any:
        tokens = arguments[0]
        if not on_fake(tokens):
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


def _packed(original: Callable[..., Any]) -> Callable[..., Any]:
    """``pack_padded_sequence`` of lengths whose values are known, the longest first."""

    def run(tokens: Tensor, lengths: Tensor, batch_first: bool) -> Any:  # noqa: FBT001 - PyTorch's signature
        values = getattr(lengths, "constant", lengths)
        if not on_fake(tokens) or values is None:
            return original(tokens, lengths, batch_first)
        sizes = _counts(values)
        rows = (tokens.transpose(0, 1) if batch_first else tokens)[: len(sizes)]
        return rows.flatten(0, 1)[: sum(sizes)].clone(), torch.tensor(sizes)

    return run


def _padded(original: Callable[..., Any]) -> Callable[..., Any]:
    """Inverse of `_packed`."""

    def run(rows: Tensor, sizes: Tensor, batch_first: bool, padding: float, total: int) -> Any:  # noqa: FBT001
        values = getattr(sizes, "constant", sizes)
        if not on_fake(rows) or values is None:
            return original(rows, sizes, batch_first, padding, total)
        lengths = _counts(values)
        length, batch = max(len(values), total), len(lengths)
        empty = rows.new_full((length * batch - len(rows), *rows.shape[1:]), padding)
        tokens = torch.cat([rows, empty]).view(length, batch, *rows.shape[1:])
        return tokens.transpose(0, 1) if batch_first else tokens, torch.tensor(lengths)

    return run


def _counts(lengths: Tensor) -> list[int]:
    """Samples that have each token, by the lengths of samples; and the lengths, by the samples of each token."""
    with no_dispatch():  # no operators of the model
        values = lengths.tolist()
    return [sum(value > place for value in values) for place in range(max(values))]


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


def on_fake(tensor: Tensor) -> bool:
    """Return whether the tensor has a shape only, so that GPU operators can run on it."""
    return isinstance(tensor, torch._subclasses.FakeTensor) or tensor.is_meta


_LRU = "RecurrentGemmaRglru._rnn_scan"
_DELTA_RULES = ("torch_chunk_gated_delta_rule", "chunk_kimi_delta_attention")
_MAIN = {**dict.fromkeys(_DELTA_RULES, "value"), "rwkv_linear_attention": "key", _LRU: "hidden_states"}
"""Operand with the shape of the output; the first one of other recurrences."""
_RECURRENCES: dict[str, Callable[[dict[str, Any], Tensor], int]] = {
    # Elementwise in the operands, with states inside the kernel.
    **dict.fromkeys(("mamba_selective_scan", "rwkv_linear_attention", _LRU), lambda *_: 0),
    # B and C with the chunk in each group; per head with the chunk's values, and twice with the state.
    "mamba2_chunk_scan": lambda operands, values: (
        operands["chunk_size"] * (prod(operands["B"].shape[-2:]) + prod(values.shape[-2:]))
        + 2 * prod(values.shape[-2:]) * operands["B"].shape[-1]
    ),
    # Per head four with the keys of the chunk, one with the inverse of its triangular system, two with its values, and
    # three with the state.
    **dict.fromkeys(
        _DELTA_RULES,
        lambda operands, values: (
            operands["chunk_size"] * values.shape[-2] * (3 * operands["key"].shape[-1] + 2 * values.shape[-1])
            + 3 * prod(values.shape[-2:]) * operands["key"].shape[-1]
        ),
    ),
}
"""Multiplications per token of the recurrences in transformers, which it runs as loops without their packages."""


def _recurrence(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the recurrence as one kernel on fake tensors."""
    form = inspect.signature(original)

    def run(*arguments: Any, **options: Any) -> Any:
        call = form.bind(*arguments, **options)
        call.apply_defaults()
        operands = call.arguments
        main = _MAIN.get(name) or next(iter(operands))
        if not on_fake(operands[main]):
            return original(*arguments, **options)
        tensors = [value for key, value in operands.items() if key != main and isinstance(value, Tensor)]
        output = _Kernel.apply(operands[main], _RECURRENCES[name](operands, operands[main]), *tensors)  # type: ignore[no-untyped-call]
        states = [operands[key] for key in ("return_last_state", "return_final_states") if key in operands]
        return output if states == [False] else (output, operands.get("state"))

    return run


class _Kernel(torch.autograd.Function):
    """One kernel: its output has the shape of its first operand, and it saves its operands."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, products: int, *operands: Tensor) -> Tensor:
        """`products` are the multiplications per token, as one product of the same arithmetic and little traffic."""
        ctx.products = products
        ctx.save_for_backward(values, *operands)
        _multiply(values, products)
        return _read(values, *operands)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        values, *operands = ctx.saved_tensors
        for _ in range(2):
            _multiply(values, ctx.products)
        return gradients[0] + values, None, *_read(*operands)


def _read(*tensors: Tensor) -> list[Tensor]:
    return [tensor + tensor for tensor in tensors]


def _multiply(values: Tensor, products: int) -> None:
    rows = values.reshape(values.shape[0] * values.shape[1], -1)
    columns = round(products / rows.shape[1])
    if columns:
        rows @ rows.new_empty(rows.shape[1], columns)
