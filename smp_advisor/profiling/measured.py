"""What a profile says of a model: every figure with the method that produced it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.profiling.polynomial import Polynomial

if TYPE_CHECKING:
    from smp_advisor.profiling.peak import PeakMemory

__all__ = ["Agreement", "Attending", "BlockProfile", "Method", "Product", "Profile", "Provenance", "Segment"]

Method = Literal["counted", "traced", "guided trace", "real steps", "formula"]
"""``counted`` on the model itself; ``traced`` in full with fake tensors; ``guided trace``: traced with the answers of a
data-dependent test assumed; ``real steps``: polynomial through real steps of scaled copies; ``formula``: from the
shape alone."""
Confidence = Literal["exact", "high", "low"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """Where one figure comes from."""

    figure: str
    """``parameters``, ``saved bytes``, ``FLOPs``, ``peak memory``, ``inputs``."""
    method: Method
    confidence: Confidence
    note: str = ""
    """For people: what was assumed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """One figure obtained in two ways."""

    figure: str
    predicted: float
    measured: float
    against: str
    """What it was measured on: ``the full trace``, ``an unseen size``, ``real steps of the copy``, ..."""

    @property
    def ratio(self) -> float:
        """Predicted over measured; 1 where both are 0."""
        if self.measured == 0:
            return 1.0 if self.predicted == 0 else float("inf")
        return self.predicted / self.measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """A weight that activations are multiplied with."""

    name: str
    inputs: int
    outputs: int
    experts: int = 1
    flops: Polynomial = field(default_factory=Polynomial)
    """Of its forward pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attending:
    """One scaled dot-product attention."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    causal: bool
    dropout: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A stretch of a step's timeline: how live memory moves between its ends."""

    phase: Literal["forward", "backward"]
    change_bytes: Polynomial
    """Live bytes at its end less those at its start."""
    rise_bytes: Polynomial
    """The highest live bytes within it less those at its start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockProfile:
    """One kind of repeated block; polynomials in (batch, sequence) of one microbatch."""

    name: str
    """Path of the first block of the kind: ``model.layers.1``."""
    kind: str
    """Its class."""
    parameters: int
    trainable_parameters: int
    one_dimensional_parameters: int
    """Norm weights and biases among the parameters."""
    hidden: int
    """Last dimension of the block's input, its channels for images; 0 where unknown."""
    saved_bytes: Polynomial
    """Kept by autograd until the block's backward pass."""
    input_bytes: Polynomial
    """Of the activations that enter it: what checkpointing keeps in place of `saved_bytes`."""
    forward_flops: Polynomial
    backward_flops: Polynomial
    products: tuple[Product, ...] = ()
    attentions: tuple[Attending, ...] = ()
    attention_flops: Polynomial = field(default_factory=Polynomial)
    """Forward FLOPs of products between activations, full square."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """A model as measured: parameters, and per block FLOPs and activation bytes as functions of batch and sequence.

    Examples
    --------
    >>> profile = smp_advisor.profile(model, job)  # doctest: +SKIP
    >>> profile.saved_bytes(batch=4, sequence=2048)  # doctest: +SKIP
    >>> smp_advisor.advise(profile, "ml.p4d.24xlarge", instance_count=16)  # doctest: +SKIP
    """

    name: str
    """Class of the model, or what a person calls it."""
    source: Literal["module", "configuration", "count", "script"]
    """What was profiled; ``count``: a shape inferred from a parameter count, ``origin`` says how."""
    origin: str = ""
    parameter_count: int
    """Tied parameters once."""
    trainable_parameter_count: int
    buffer_bytes: int = 0
    tied: tuple[tuple[str, ...], ...] = ()
    """Groups of names that stand for one parameter."""
    precision: str
    """``fp32``, ``amp``, ``bf16`` or ``fp16`` (SMP v1's wrapper, 20 bytes a parameter)."""
    attention: str
    """``fused`` or ``eager``: the kernel that was traced."""
    optimizer: str = "adam"
    batch: int
    """Samples of the job's microbatch; the polynomials hold for every other."""
    sequence: int
    """Tokens a sample of the job; 1 where the inputs have no sequence (images)."""
    has_sequence: bool = True
    vocab: int = 0
    outputs: int = 0
    """Columns of the logits; 0 where there are none."""
    inputs: str = ""
    """What the model was called with, for people, and whether it was given or inferred."""
    blocks: tuple[BlockProfile, ...] = ()
    """Every repeated block in the order it runs; equal ones are the same object."""
    saved_bytes: Polynomial
    """Kept by autograd at the end of the forward pass, parameters and buffers left out."""
    checkpointed_bytes: Polynomial | None = None
    """The same with every block checkpointed; None where blocks cannot be checkpointed alone."""
    forward_flops: Polynomial
    backward_flops: Polynomial
    input_bytes: Polynomial = field(default_factory=Polynomial)
    """Of the tensors that the model is called with."""
    timeline: tuple[Segment, ...] = ()
    """Of forward and backward pass, in order, gradients freed between steps."""
    checkpointed_timeline: tuple[Segment, ...] = ()
    gradient_bytes: int = 0
    """Of all trainable parameters."""
    optimizer_rise_bytes: int = 0
    """Temporaries of the optimizer's step beyond what is resident."""
    largest_parameter: int = 0
    """Elements."""
    provenance: tuple[Provenance, ...] = ()
    agreements: tuple[Agreement, ...] = ()
    warnings: tuple[str, ...] = ()
    operations: int = 0
    """Of the traced step."""
    seconds: float = 0.0
    versions: tuple[tuple[str, str], ...] = ()
    """Of torch and transformers."""
    config_json: str = "{}"
    """The transformers configuration, where there is one."""
    scaled: Any = None
    """`ScaledRun`: real steps of the scaled copy, once run."""
    local: Any = None
    """`LocalRun`: the script's run under the SageMaker contract, once run."""
    rehearsal: Any = None
    """`Rehearsal`: the plan on local processes, once run."""

    def activation_bytes(self, batch: int, sequence: int = 1, *, checkpointing: bool = False) -> int:
        """Bytes autograd keeps of one microbatch at the end of its forward pass, on one GPU without parallelism."""
        if checkpointing and self.checkpointed_bytes is not None:
            return self.checkpointed_bytes(batch, sequence)
        return self.saved_bytes(batch, sequence)

    def peak_memory(
        self, batch: int, sequence: int = 1, *, checkpointing: bool = False, persistent_gradients: bool = False
    ) -> PeakMemory:
        """Peak of a steady-state training step on one GPU, composed of its parts."""
        from smp_advisor.profiling.peak import peak_memory

        return peak_memory(
            self, batch, sequence, checkpointing=checkpointing, persistent_gradients=persistent_gradients
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        from smp_advisor.profiling.plain import profile_as_dict

        return profile_as_dict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Profile:
        """Profile of `as_dict`; the results of the other stages stay plain data."""
        from smp_advisor.profiling.plain import profile_from_dict

        return profile_from_dict(values)

    @property
    def is_traced(self) -> bool:
        """Whether activations and FLOPs are known."""
        return any(one.figure == "saved bytes" for one in self.provenance)

    def as_html(self) -> str:
        """For a notebook."""
        from smp_advisor.profiling.summary import summary_html

        return summary_html(self)

    def _repr_html_(self) -> str:
        return self.as_html()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001 (IPython's own form)
        # What a saved notebook keeps beside the HTML, and what a terminal shows.
        printer.text("..." if cycle else str(self))

    def __str__(self) -> str:
        from smp_advisor.profiling.summary import summary

        return summary(self)
