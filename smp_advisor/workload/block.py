"""One kind of layer: its parameters, matrix products, attention, kernels, saved activations."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """Work of a forward pass besides the arithmetic of its products: traffic per token, and launches."""

    elements: float = 0
    """Elements of the training dtype, read and written, that every tensor-parallel rank moves, per token."""
    split_elements: float = 0
    """Elements that tensor parallelism divides, per token."""
    products: float = 0
    """Kernels of products of weights, without those of experts."""
    repeated_products: float = 0
    """Of the `products`, those with the weight of an earlier one: a module that calls its layers in a loop."""
    launches: float = 0
    """Other kernels that the host launches."""
    expert_launches: float = 0
    """Kernels per expert on the GPU."""
    backward_traffic: float = 2.0
    """Traffic of the backward pass relative to that of the forward pass."""
    backward_launches: float = 2.0
    """Kernels of the backward pass per kernel of the forward pass: each product has two, each element-wise operation
    one or two, and gradients of parameters are accumulated."""
    autocast_traffic: float = 2.0
    """Traffic under autocast over fp32 parameters relative to that in 16 bits: 2 with a residual stream in fp32 (layer
    norms), 1 for layers that autocast runs in the type of their inputs (convolutions, batch norms)."""

    def __add__(self, more: Kernels) -> Kernels:
        sums = ("elements", "split_elements", "products", "repeated_products", "launches", "expert_launches")
        return Kernels(
            **{name: getattr(self, name) + getattr(more, name) for name in sums},
            backward_traffic=_mean(
                (self.backward_traffic, self.elements + self.split_elements),
                (more.backward_traffic, more.elements + more.split_elements),
            ),
            backward_launches=_mean(
                (self.backward_launches, self.products + self.launches),
                (more.backward_launches, more.products + more.launches),
            ),
            autocast_traffic=max(self.autocast_traffic, more.autocast_traffic),
        )


def _mean(*weighted: tuple[float, float]) -> float:
    """Mean of values, each with its weight; the first value if all are equal or without weight."""
    values, total = {value for value, _ in weighted}, sum(weight for _, weight in weighted)
    if len(values) == 1 or total <= 0:
        return weighted[0][0]
    return sum(value * weight for value, weight in weighted) / total


NOTHING = Kernels()


Split = Literal["column", "row", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Matmul:
    """A matrix product of the forward pass, of each token's row of `inputs` values with a weight."""

    name: str
    """The product's name in the literature: ``qkv``, ``attention output``, ``mlp up``, ..."""
    inputs: int
    """Length of the reduced dimension (k)."""
    outputs: int
    """Length of a row of the result (n)."""
    split: Split = "none"
    """Which side tensor parallelism divides: outputs (``column``), inputs (``row``), or neither."""
    experts: int = 1
    """Copies of the weight (mixture of experts). Each token uses `weights_per_token` of them."""
    weights_per_token: int = 1
    rows_per_token: float = 1.0
    """Rows per token: positions of a convolution, or patches of an image that counts as one token."""
    gate_outputs: int = 0
    """Of the `outputs`, those that pass through a gated layer's activation function (SwiGLU). Fused kernels recompute
    that function's output instead of saving it."""

    @property
    def flops_per_token(self) -> float:
        return 2.0 * self.inputs * self.outputs * self.weights_per_token * self.rows_per_token


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool = True
    window: int | None = None
    """Sliding window in tokens, None for full attention."""
    dropout: bool = True
    """Whether attention dropout is on. If so, eager attention saves its mask and output."""
    fusible: bool = True
    """Whether the model's code has a fused form. Without one, attention always runs eagerly."""
    scores_in_fp32: bool = False
    """Whether eager attention computes its softmax in fp32 from 16-bit scores."""
    position_biases: bool = False
    """Whether a bias is added to every score. All blocks of a stack share one tensor of biases (T5)."""
    score_bytes: float | None = None
    """Measured bytes per score that eager attention saves. None: computed by formula."""
    query_share: float = 1.0
    """Queries per token of the sequence: fewer in a decoder that reads fewer tokens than its encoder."""
    key_share: float = 1.0
    """Keys per token of the sequence."""

    def __post_init__(self) -> None:
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")

    def eager_score_bytes(self, element_bytes: int, *, autocast: bool = False, fused: bool = False) -> float:
        if self.score_bytes is not None:
            return self.score_bytes
        softmax = 4 if (self.scores_in_fp32 or autocast) and not fused else element_bytes
        if self.dropout:
            return softmax + 1 + element_bytes
        return softmax + (element_bytes if softmax > element_bytes else 0)

    def keys_per_query(self, sequence_length: int) -> int:
        """Return the columns of the score matrix that eager attention materializes: full rows, as in PyTorch."""
        return max(round(sequence_length * self.key_share), 1)

    def pairs_per_query(self, sequence_length: int) -> float:
        """Scores of a query that a fused kernel computes: a causal one half of the square, with a window a band."""
        keys = self.keys_per_query(sequence_length)
        reach = min(self.window or keys, keys)
        return reach * (1 - reach / (2 * keys)) if self.causal else float(reach)


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedActivations:
    """Tensors that autograd saves for the backward pass of one block, per token."""

    split_elements: float = 0.0
    """Elements divided by the tensor parallel degree (q, k, v, attention output, MLP intermediates)."""
    replicated_elements: float = 0.0
    """Elements that every tensor-parallel rank saves (norm inputs, inputs of column-parallel products)."""
    split_bytes: float = 0.0
    replicated_bytes: float = 0.0
    """Bytes that do not depend on the dtype: dropout masks (1 byte per element), fp32 statistics."""
    unfused_split_elements: float = 0.0
    """Extra elements when activation functions run as separate operations, as in the model's own PyTorch code
    (``gelu_new``). The library's fused tensor-parallel layers do not save them."""
    eager_split_elements: float = 0.0
    """Extra elements with eager attention only: keys and values copied to every head, upcast queries and keys.
    Negative where the fused kernel saves a tensor that eager attention does not."""
    half_replicated_bytes: float = 0.0
    """Extra bytes in half precision only (the fp32 copy of a 16-bit input that an RMSNorm saves)."""
    autocast_replicated_bytes: float = 0.0
    """Extra bytes under autocast over fp32 parameters only. The residual stream that norms read is then fp32, and every
    product casts its own input."""
    separate_expert_elements: float = 0.0
    """Of `replicated_elements`, outputs of experts that are saved to be weighted. Code with grouped experts weights the
    input of the last product instead."""
    weight_split_elements: float = 0.0
    """Of `split_elements`, those that only gradients of weights need. Frozen weights (adapters) do not save them."""
    weight_replicated_elements: float = 0.0
    """Of `replicated_elements`, those that only gradients of weights need."""
    pair_bytes: float = 0.0
    """Bytes per pair of samples of a microbatch, not per token, where a loss compares them (contrastive losses)."""
    merged_elements: float = 0.0
    """Elements of weights, not per token, that a pass merges with their adapters and saves (PEFT, ``ParamWrapper``)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A layer that repeats, with the per-token figures that the cost model uses."""

    kind: str
    """``decoder``, ``encoder``, ``cross-decoder``, ``mixture-of-experts decoder``, ..."""
    hidden: int
    parameters: int
    replicated_parameters: int
    """Parameters that tensor parallelism cannot divide: norms, biases of row-parallel products, routers."""
    matmuls: tuple[Matmul, ...]
    attentions: tuple[Attention, ...]
    saved: SavedActivations
    separate: Kernels = NOTHING
    """Norms, rotations, activation functions, residuals and launches as the model's own PyTorch code writes them."""
    fused: Kernels = NOTHING
    """The same where one kernel does the work of a group (Megatron, Apex, Transformer Engine, ``torch.compile``)."""
    with_fused_adapter: Kernels | None = None
    """The same where the operations of an adapter share kernels, too; None without an adapter."""
    all_reduces: int = 2
    """All-reduces of the block's output (tokens x hidden) that tensor parallelism adds to one forward pass."""
    input_tensors: int = 1
    """Tensors of tokens x hidden that enter the block (2 for a decoder with cross-attention)."""
    adapter_parameters: int = 0
    """Trained parameters that an adapter adds to the frozen ones (`Adapter.applied_to`)."""
    adapter_products: int = 0
    """Trained products that an adapter adds: two for every adapted one."""
    unpacked_parameters: int = 0
    """Of the frozen parameters under an adapter, those that a quantized base keeps in 16 bits."""

    @property
    def expert_parameters(self) -> int:
        return sum(m.inputs * m.outputs * m.experts for m in self.matmuls if m.experts > 1)

    @property
    def split_parameters(self) -> int:
        return self.parameters - self.replicated_parameters


@dataclass(frozen=True, kw_only=True, slots=True)
class Part(SavedActivations):
    """Parameters, work and saved tensors of one layer, per token where they depend on tokens."""

    split_parameters: int = 0
    replicated_parameters: int = 0
    matmuls: tuple[Matmul, ...] = ()
    attentions: tuple[Attention, ...] = ()
    separate: Kernels = NOTHING
    """Kernels as the model's own PyTorch code writes them."""
    fused: Kernels = NOTHING
    """Kernels where element-wise operations of a group share one."""


def assemble(kind: str, hidden: int, parts: Sequence[Part], *, all_reduces: int = 2, input_tensors: int = 1) -> Block:
    def total(name: str) -> float:
        return sum(float(getattr(part, name)) for part in parts)

    replicated = sum(part.replicated_parameters for part in parts)
    return Block(
        kind=kind,
        hidden=hidden,
        parameters=replicated + sum(part.split_parameters for part in parts),
        replicated_parameters=replicated,
        matmuls=tuple(matmul for part in parts for matmul in part.matmuls),
        attentions=tuple(attention for part in parts for attention in part.attentions),
        saved=SavedActivations(**{field.name: total(field.name) for field in fields(SavedActivations)}),
        separate=sum((part.separate for part in parts), NOTHING),
        fused=sum((part.fused for part in parts), NOTHING),
        all_reduces=all_reduces,
        input_tensors=input_tensors,
    )


DECODER = "cross-decoder"
"""Kind of the blocks of a decoder with attention to an encoder's output."""
ENCODER_KEYS = "cross-attention key and value"


def shortened(block: Block, share: float) -> Block:
    """A block of a decoder that reads `share` of the tokens of its encoder, all of which have a key and a value."""
    if block.kind != DECODER:
        return block

    def thinned(kernels: Kernels) -> Kernels:
        return replace(kernels, elements=share * kernels.elements, split_elements=share * kernels.split_elements)

    keys = sum(matmul.outputs for matmul in block.matmuls if matmul.name == ENCODER_KEYS)
    saved = {field.name: share * getattr(block.saved, field.name) for field in fields(SavedActivations)}
    saved["split_elements"] += (1 - share) * keys
    return replace(
        block,
        matmuls=tuple(
            m if m.name == ENCODER_KEYS else replace(m, rows_per_token=share * m.rows_per_token) for m in block.matmuls
        ),
        attentions=tuple(replace(a, query_share=share, key_share=share if a.causal else 1.0) for a in block.attentions),
        saved=SavedActivations(**saved),
        separate=thinned(block.separate),
        fused=thinned(block.fused),
    )
