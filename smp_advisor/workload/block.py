"""One kind of layer: its parameters, matrix products, attention and what autograd keeps of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Attention", "Block", "Matmul", "SavedActivations"]

Split = Literal["column", "row", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Matmul:
    """A matrix product of the forward pass: each token's row of `inputs` values times a weight.

    FLOPs per token are ``2 * inputs * outputs * weights_per_token * rows_per_token``.
    """

    name: str
    """What it computes, as the papers name it: ``qkv``, ``attention output``, ``mlp up``, ..."""
    inputs: int
    """Length of the reduced dimension (k)."""
    outputs: int
    """Length of a row of the result (n)."""
    split: Split = "none"
    """Which side tensor parallelism divides: outputs (``column``), inputs (``row``), or neither."""
    experts: int = 1
    """Copies of the weight of which each token uses `weights_per_token` (mixture of experts)."""
    weights_per_token: int = 1
    """How many of the `experts` a token passes through."""
    rows_per_token: float = 1.0
    """Rows that a token brings: the positions of a convolution, the patches of an image that counts as one token."""

    @property
    def flops_per_token(self) -> float:
        """Of the forward pass."""
        return 2.0 * self.inputs * self.outputs * self.weights_per_token * self.rows_per_token


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """Scaled dot-product attention of one block."""

    heads: int
    kv_heads: int
    head_dim: int
    causal: bool = True
    window: int | None = None
    """Sliding window in tokens, None for full attention."""
    dropout: bool = True
    """Whether attention dropout is on, so that eager attention saves its mask and output."""
    fusible: bool = True
    """Whether the model's code has a fused form of it; without one it runs eagerly, whatever was asked for."""
    scores_in_fp32: bool = False
    """Whether eager attention takes its softmax of an fp32 copy of 16-bit scores."""
    position_biases: bool = False
    """Whether biases of every score are added, one tensor of them for all blocks of a stack (T5)."""
    score_bytes: float | None = None
    """Bytes that eager attention keeps of one score, where they were measured; None: by formula."""

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")

    def eager_score_bytes(self, element_bytes: int, *, autocast: bool = False) -> float:
        """Bytes that eager attention keeps of one score.

        The softmax output and, with dropout, its mask and output; without, the cast that the product with the values
        reads, where the softmax runs in fp32.
        """
        if self.score_bytes is not None:
            return self.score_bytes
        softmax = 4 if self.scores_in_fp32 or autocast else element_bytes
        if self.dropout:
            return softmax + 1 + element_bytes
        return softmax + (element_bytes if softmax > element_bytes else 0)

    def keys_per_query(self, sequence_length: int) -> int:
        """Columns of the score matrix that eager attention materialises, full rows as PyTorch does."""
        return sequence_length


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedActivations:
    """What autograd keeps of one token of one block until its backward pass.

    Elements have the size of the training dtype, masks and statistics have bytes of their own. The attention scores
    (quadratic in sequence length) are not here: they follow from `Attention`.
    """

    split_elements: float
    """Elements divided by the tensor parallel degree (q, k, v, attention output, MLP intermediates)."""
    replicated_elements: float
    """Elements every tensor-parallel rank keeps (norm inputs, inputs of column-parallel products)."""
    split_bytes: float = 0.0
    replicated_bytes: float = 0.0
    """Bytes whatever the dtype: dropout masks (1 byte an element), fp32 statistics."""
    unfused_split_elements: float = 0.0
    """Extra elements when activation functions run as separate operations, as in the model's own PyTorch code
    (``gelu_new``); the library's fused tensor-parallel layers do not keep them."""
    eager_split_elements: float = 0.0
    """Further elements with eager attention only: keys and values copied to every head, upcast queries and keys;
    negative where the fused kernel keeps a tensor that eager attention does not."""
    half_replicated_bytes: float = 0.0
    """Extra bytes in half precision only (fp32 copies that an RMSNorm keeps of a 16-bit input)."""
    autocast_replicated_bytes: float = 0.0
    """Extra bytes under autocast over fp32 parameters only: the residual stream, which norms read, is fp32 then, and
    every product casts what it reads for itself."""
    weight_split_elements: float = 0.0
    """Of `split_elements`, those that only the gradients of weights need: frozen weights (adapters) leave them out."""
    weight_replicated_elements: float = 0.0
    """The same of `replicated_elements`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A layer that repeats: everything the cost model asks of it, per token.

    Examples
    --------
    A GPT block of width h keeps ``34 h`` bytes a token in half precision with fused attention
    (Korthikanti et al. 2022, arXiv 2205.05198, eq. 1, without the attention scores).
    """

    kind: str
    """``decoder``, ``encoder``, ``cross-decoder``, ``mixture-of-experts decoder``, ..."""
    hidden: int
    """Width of the block's input and output."""
    parameters: int
    """All parameters, exact."""
    replicated_parameters: int
    """Those tensor parallelism cannot divide: norms, biases of row-parallel products, routers."""
    matmuls: tuple[Matmul, ...]
    attentions: tuple[Attention, ...]
    saved: SavedActivations
    traffic_elements: float
    """Elements read and written by the memory-bound operations of the forward pass (norms, activation functions,
    residuals, dropout), per token; those divided by tensor parallelism are in `split_traffic_elements`."""
    split_traffic_elements: float = 0.0
    unfused_split_traffic_elements: float = 0.0
    """What activation functions written as separate operations read and write beyond the fused ones counted above;
    like `SavedActivations.unfused_split_elements`, only without the library's fused tensor-parallel layers."""
    all_reduces: int = 2
    """All-reduces of the block's output (tokens x hidden) that tensor parallelism adds to one forward pass."""
    input_tensors: int = 1
    """Tensors of tokens x hidden that enter the block (2 for a decoder with cross-attention)."""
    adapter_parameters: int = 0
    """Trained parameters that an adapter adds beside the frozen ones (`Adapter.applied_to`)."""

    @property
    def gate_elements(self) -> int:
        """Elements a token that a fused gated activation makes anew instead of keeping: its activation's output."""
        return sum(m.outputs // 2 * m.weights_per_token for m in self.matmuls if m.name.endswith("up and gate"))

    @property
    def expert_parameters(self) -> int:
        """Those of the experts of a mixture, all of them together."""
        return sum(m.inputs * m.outputs * m.experts for m in self.matmuls if m.experts > 1)

    @property
    def split_parameters(self) -> int:
        """Parameters that tensor parallelism divides."""
        return self.parameters - self.replicated_parameters
