"""Parts of a profile: figures of blocks, modules and operators, their sources, and the peak memory of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from smp_advisor.profiling.polynomial import Polynomial

if TYPE_CHECKING:
    from smp_advisor.profiling.operator_log import OperatorKind

Method = Literal["counted", "traced", "real steps", "formula"]
"""``counted``: on the model itself; ``traced``: at full size with fake tensors; ``real steps``: a polynomial fitted to
real steps of the model on short inputs; ``formula``: from the shape alone."""
Confidence = Literal["exact", "high", "low"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """Source of one figure."""

    figure: str
    """``parameters``, ``saved bytes``, ``FLOPs``, ``peak memory``, ``inputs``."""
    method: Method
    confidence: Confidence
    note: str = ""
    """Assumptions, as text for the user."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """Comparison of one predicted figure with a measurement."""

    figure: str
    predicted: float
    measured: float
    against: str
    """Source of the measurement: ``the full trace``, ``an unseen size``, ``real steps of the copy``, ..."""

    @property
    def ratio(self) -> float:
        """Predicted over measured; 1 if both are 0."""
        if self.measured == 0:
            return 1.0 if self.predicted == 0 else float("inf")
        return self.predicted / self.measured


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductProfile:
    """Matrix product of activations with one weight."""

    name: str
    inputs: int
    outputs: int
    experts: int = 1
    flops: Polynomial = field(default_factory=Polynomial)
    """Forward FLOPs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionProfile:
    """One scaled dot-product attention."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    causal: bool
    dropout: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """One interval of a step's timeline, with the change in live memory."""

    phase: Literal["forward", "backward"]
    change_bytes: Polynomial
    """Live bytes at the end minus live bytes at the start."""
    rise_bytes: Polynomial
    """Peak live bytes within the interval minus live bytes at the start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorProfile:
    """Equal operators of one module in one pass. Views and allocations, which run no kernel, are not included."""

    module: str
    """Path of the module: within its block, or from the model for operators outside the blocks. "" is the block or the
    model itself."""
    operator: str
    """Name in PyTorch's dispatcher: ``aten.mm``."""
    kind: OperatorKind
    """``product``, ``attention`` (one kernel from scores to output) or ``memory`` (bound by its memory traffic)."""
    phase: Literal["forward", "backward"]
    count: Polynomial
    flops: Polynomial
    """Of products; 0 for other operators."""
    bytes: Polynomial
    """Operands read and results written, each once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleProfile:
    """Figures of one module without those of its children. Polynomials are functions of (batch, sequence)."""

    kind: str
    """Class name."""
    parameters: int
    """Its own, and those of children that run no operators; shared parameters count where they are used first."""
    forward_flops: Polynomial
    backward_flops: Polynomial
    saved_bytes: Polynomial
    """Saved by autograd until its backward pass."""
    crossing_bytes: Polynomial
    """Activations that exist after its last operator and that later modules read: what a cut behind it sends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockProfile:
    """One kind of repeated block. Polynomials are functions of (batch, sequence) of one microbatch."""

    name: str
    """Path of the first block of the kind: ``model.layers.1``."""
    kind: str
    """Class name."""
    parameters: int
    one_dimensional_parameters: int
    """Norm weights and biases among the parameters."""
    hidden: int
    """Last dimension of the block's input, or its channels for images; 0 if unknown."""
    saved_bytes: Polynomial
    """Saved by autograd until the block's backward pass."""
    input_bytes: Polynomial
    """Input activations: saved instead of `saved_bytes` with activation checkpointing."""
    forward_flops: Polynomial
    backward_flops: Polynomial
    products: tuple[ProductProfile, ...] = ()
    attentions: tuple[AttentionProfile, ...] = ()
    attention_flops: Polynomial = field(default_factory=Polynomial)
    """Forward FLOPs of products between activations, without skipping masked scores."""
    operators: tuple[OperatorProfile, ...] = field(default=(), compare=False)
    """Every operator of one block, in order of execution."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PeakMemory:
    """Peak bytes of a step with resident optimizer state, excluding allocator overhead and CUDA context."""

    phase: Literal["forward", "backward", "optimizer"]
    parameters_bytes: int
    optimizer_state_bytes: int
    """Moments and fp32 copies."""
    gradients_bytes: int
    """Gradients of all parameters, at the end of the backward pass."""
    activations_bytes: int
    """Activations saved by autograd at the end of the forward pass."""
    peak_bytes: int

    @property
    def peak_gib(self) -> float:
        """`peak_bytes` in GiB."""
        return self.peak_bytes / 2**30


def restored(kind: Any, value: Any) -> Any:
    """A value of the annotated kind: dataclasses from mappings of their fields, tuples from lists, polynomials."""
    if kind is Polynomial:
        return Polynomial.from_list(value["polynomial"])
    if is_dataclass(kind):
        return kind(**{name: restored(hints(kind)[name], entry) for name, entry in value.items()})  # type: ignore[operator, arg-type]
    kinds = get_args(kind)
    if get_origin(kind) is UnionType:
        return None if value is None else restored(next(part for part in kinds if part is not NoneType), value)
    if get_origin(kind) is not tuple:
        return value
    return tuple(restored(kinds[0] if kinds[-1] is ... else kinds[i], entry) for i, entry in enumerate(value))


@cache
def hints(kind: Any) -> dict[str, Any]:
    """Return the types of a record's fields."""
    return get_type_hints(kind, localns={"Mapping": Mapping, "OperatorKind": str})
