"""Layers of a transformer, as parts of a block."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from smp_advisor.core.files import columns, rows
from smp_advisor.errors import ModelError
from smp_advisor.workload.block import ENCODER_KEYS, Attention, Kernels, Matmul, Part


@dataclass(frozen=True, kw_only=True, slots=True)
class Activation:
    """Cost of one activation function, in elements per element of its output."""

    name: str
    saved: int
    """Saved in addition to the output, which the next product saves: 1 for GELU (its input), 0 for ReLU."""
    unfused_saved: int
    """Saved in addition when it runs as separate operations (``gelu_new``: tanh, cube and their products)."""
    traffic: int
    """Read and written by the fused form."""
    unfused_traffic: int
    """Read and written in addition when it runs as separate operations."""

    @property
    def unfused_launches(self) -> int:
        """Kernels in addition to one. An operation reads and writes two elements, or three with two inputs."""
        return round(self.unfused_traffic / 2.3)


@cache
def _activations() -> dict[str, Activation]:
    return {
        row["name"]: Activation(**columns(Activation, row))
        for row in rows("smp_advisor.workload", "data/activations.csv")
    }


def activation(name: object) -> Activation:
    functions = _activations()
    if not isinstance(name, str) or name not in functions:
        raise ModelError(f"Unknown activation function {name!r}; supported are {', '.join(functions)}.")
    return functions[name]


Norm = Literal["layer", "plain-layer", "rms", "fp32-rms", "t5"]


def norm(
    hidden: int, kind: Norm = "layer", *, affine: bool = True, input_saved: bool = True, output_saved: bool = True
) -> Part:
    """Return a normalization. It saves its input, and its output as the input of the following products."""
    inputs, outputs = 1 if input_saved else 0, 1 if output_saved else 0
    if kind == "plain-layer":
        return Part(
            replicated_elements=(inputs + outputs) * hidden,
            weight_replicated_elements=outputs * hidden,
            half_replicated_bytes=2 * inputs * hidden,
            separate=Kernels(elements=7 * hidden, launches=3),
            fused=Kernels(elements=2 * hidden, launches=1),
        )
    if kind == "layer":
        return Part(
            replicated_parameters=2 * hidden if affine else 0,
            replicated_elements=(inputs + 1) * hidden,
            weight_replicated_elements=hidden,
            autocast_replicated_bytes=2 * inputs * hidden,
            separate=Kernels(elements=2 * hidden, launches=1),
            fused=Kernels(elements=2 * hidden, launches=1),
        )
    return Part(
        replicated_parameters=hidden,
        replicated_elements=(inputs + 1 + outputs) * hidden,
        # Normalized values in fp32 are two elements.
        weight_replicated_elements=(1 + outputs + (kind == "fp32-rms")) * hidden,
        autocast_replicated_bytes=2 * hidden,
        half_replicated_bytes=(2 if kind == "rms" else 4) * hidden,
        # Written as separate operations: to fp32, square, mean, epsilon, root, scale, back to 16 bits, weight.
        separate=Kernels(elements=18 * hidden, launches=8),
        fused=Kernels(elements=2 * hidden, launches=1),
    )


def head_norm(width: int, kind: Norm, *, weights: int) -> Part:
    """RMSNorm of queries and keys after their products. The rotation after it does not save its output."""
    return Part(
        replicated_parameters=weights,
        split_elements=(2 if weights else 1) * width,
        weight_split_elements=(1 + (kind == "fp32-rms")) * width if weights else 0,
        half_replicated_bytes=(4 if kind == "fp32-rms" else 2) * width,
        separate=Kernels(split_elements=18 * width, launches=16),
        fused=Kernels(split_elements=2 * width, launches=2),
    )


def residual(hidden: int, *, dropout: bool) -> Part:
    """Dropout and addition to the residual stream. Saves the mask, one byte per element."""
    # Dropout reads and writes the tensor and writes a mask; fused with the sum, only the mask is more.
    return Part(
        replicated_bytes=hidden if dropout else 0,
        separate=Kernels(elements=hidden * (5.5 if dropout else 3), launches=2 if dropout else 1),
        fused=Kernels(elements=hidden * (3.5 if dropout else 3), launches=1),
    )


def attention(
    hidden: int,
    heads: int,
    *,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    qkv_bias: bool = True,
    output_bias: bool = True,
    causal: bool = True,
    window: int | None = None,
    dropout: bool = False,
    rotary_dim: int = 0,
    cross: bool = False,
    expanded_keys: bool = False,
    partly_rotated: bool = False,
    upcast_queries: bool = False,
    joint: bool = False,
    fusible: bool = True,
    scores_in_fp32: bool = False,
    position_biases: bool = False,
    score_bytes: float | None = None,
) -> Part:
    """Self-attention or, with `cross`, attention to an encoder's output, without its norm."""
    kv_heads = heads if kv_heads is None else kv_heads
    head_dim = hidden // heads if head_dim is None else head_dim
    queries, keys = heads * head_dim, kv_heads * head_dim
    columns = queries + 2 * keys
    products: tuple[Matmul, ...]
    if cross:
        products = (
            Matmul(name="cross-attention query", inputs=hidden, outputs=queries, split="column"),
            Matmul(name=ENCODER_KEYS, inputs=hidden, outputs=2 * keys, split="column"),
        )
    else:
        products = (Matmul(name="qkv", inputs=hidden, outputs=columns, split="column"),)
    saved = 3 * queries if expanded_keys else columns
    # Eager attention copies the keys and values of grouped queries to every head.
    eager = 0 if expanded_keys else 2 * (queries - keys)
    if partly_rotated:
        saved += columns - keys + queries
        eager -= columns - keys + queries
    if upcast_queries:
        eager += queries + keys
    name = "cross-attention output" if cross else "attention output"
    rotated = rotary_dim * (heads + kv_heads)
    return Part(
        split_parameters=hidden * columns + (columns if qkv_bias else 0) + queries * hidden,
        replicated_parameters=hidden if output_bias else 0,
        matmuls=(*products, Matmul(name=name, inputs=queries, outputs=hidden, split="row")),
        attentions=(
            Attention(
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                causal=causal,
                window=window,
                dropout=dropout,
                fusible=fusible,
                scores_in_fp32=scores_in_fp32,
                position_biases=position_biases,
                score_bytes=score_bytes,
            ),
        ),
        split_elements=saved + queries,
        autocast_replicated_bytes=0 if joint else (2 if cross else 4) * hidden,
        # The fused kernel saves its own output. Only the output product needs the copy.
        weight_split_elements=queries if partly_rotated else 0,
        eager_split_elements=eager,
        # Rotation of queries and keys: a negation and a concatenation, two products, a sum. Fused, it is read and
        # written once. Queries, keys and values have a product each unless the code joins them.
        separate=Kernels(split_elements=9 * rotated, products=2 if joint else 4, launches=10 if rotated else 0),
        fused=Kernels(split_elements=2 * rotated, products=3 if cross else 2, launches=1 if rotated else 0),
    )


def feed_forward(
    hidden: int, ffn: int, function: Activation, *, up_bias: bool = True, down_bias: bool = True, dropout: bool = False
) -> Part:
    """Two products with an activation function between them, without the preceding norm."""
    # An activation whose backward pass reads its output (ReLU) shares it with the product, except across a dropout.
    saved = max(function.saved, 1) if dropout else function.saved
    return Part(
        split_parameters=2 * hidden * ffn + (ffn if up_bias else 0),
        replicated_parameters=hidden if down_bias else 0,
        matmuls=(
            Matmul(name="mlp up", inputs=hidden, outputs=ffn, split="column"),
            Matmul(name="mlp down", inputs=ffn, outputs=hidden, split="row"),
        ),
        split_elements=(saved + 1) * ffn,
        weight_split_elements=ffn if dropout or saved else 0,
        split_bytes=ffn if dropout else 0,
        unfused_split_elements=function.unfused_saved * ffn,
        separate=Kernels(
            split_elements=(function.traffic + function.unfused_traffic + (2.5 if dropout else 0)) * ffn,
            products=2,
            launches=1 + function.unfused_launches + (1 if dropout else 0),
        ),
        fused=Kernels(split_elements=(2 + (0.5 if dropout else 0)) * ffn, products=2, launches=1),
    )


def gated_feed_forward(
    hidden: int, ffn: int, function: Activation, *, bias: bool = False, dropout: bool = False
) -> Part:
    """Feed-forward layer whose activation multiplies a second projection (SwiGLU: Shazeer 2020, arXiv 2002.05202)."""
    return Part(
        split_parameters=3 * hidden * ffn + (2 * ffn if bias else 0),
        replicated_parameters=hidden if bias else 0,
        matmuls=(
            Matmul(name="mlp up and gate", inputs=hidden, outputs=2 * ffn, split="column", gate_outputs=ffn),
            Matmul(name="mlp down", inputs=ffn, outputs=hidden, split="row"),
        ),
        split_elements=(function.saved + 3) * ffn,
        autocast_replicated_bytes=2 * hidden,
        weight_split_elements=ffn,
        split_bytes=ffn if dropout else 0,
        unfused_split_elements=function.unfused_saved * ffn,
        # Gate and second projection are products of their own, unless the code is fused.
        separate=Kernels(
            split_elements=(function.traffic + function.unfused_traffic + 3 + (2.5 if dropout else 0)) * ffn,
            products=3,
            launches=2 + function.unfused_launches + (1 if dropout else 0),
        ),
        fused=Kernels(split_elements=(3 + (0.5 if dropout else 0)) * ffn, products=2, launches=1),
    )


def gated_experts(
    hidden: int, ffn: int, function: Activation, experts: int, experts_per_token: int, *, clamped: bool = False
) -> Part:
    """Router and gated experts (Jiang et al. 2024, arXiv 2401.04088)."""
    uses = experts_per_token
    saved = 7 if clamped else function.saved + 3
    biases = experts * (2 * ffn + hidden + 1) if clamped else 0
    return Part(
        split_parameters=3 * hidden * ffn * experts,
        replicated_parameters=hidden * experts + biases,
        matmuls=(
            Matmul(name="router", inputs=hidden, outputs=experts),
            Matmul(
                name="expert up and gate",
                inputs=hidden,
                outputs=2 * ffn,
                split="column",
                experts=experts,
                weights_per_token=uses,
                gate_outputs=ffn,
            ),
            Matmul(
                name="expert down", inputs=ffn, outputs=hidden, split="row", experts=experts, weights_per_token=uses
            ),
        ),
        split_elements=saved * ffn * uses,
        replicated_elements=2 * hidden * uses,
        separate_expert_elements=hidden * uses,
        weight_split_elements=ffn * uses,
        weight_replicated_elements=hidden * uses,
        unfused_split_elements=function.unfused_saved * ffn * uses,
        # Gather, weight, scatter. A loop over the experts selects, projects, activates, weights and adds for each of
        # them (transformers, modeling_mixtral.py). Grouped code has one call per product, with a kernel, the slices of
        # its operands and a hook of its gradient per expert, and about 60 kernels to choose experts, balance their
        # loads, and sort, exchange and restore tokens (Megatron-Core: router.py, token_dispatcher.py). Read from the
        # code, not measured.
        separate=Kernels(
            elements=7 * hidden * uses,
            split_elements=(function.traffic + 3 + function.unfused_traffic) * ffn * uses,
            products=1,
            launches=8,
            expert_launches=10,
        ),
        fused=Kernels(
            elements=7 * hidden * uses, split_elements=3 * ffn * uses, products=1, launches=60, expert_launches=8
        ),
    )
