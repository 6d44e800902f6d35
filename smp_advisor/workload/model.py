"""A model as the cost model sees it: blocks with counts, an embedding, a head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from smp_advisor.workload.block import Block

__all__ = ["BlockGroup", "Head", "Model", "Origin", "Shape"]

Origin = Literal["given", "inferred", "measured"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The few numbers a person recognises a transformer by."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    """0 where there is no vocabulary (vision)."""
    max_positions: int = 0
    """Rows of a learned position table, 0 where there is none."""
    experts: int = 1
    experts_per_token: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockGroup:
    """`count` equal blocks in a row."""

    block: Block
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """What turns the last hidden states into a loss."""

    kind: Literal["language-model", "classification", "none"]
    outputs: int
    """Vocabulary size or number of classes: columns of the logits."""
    parameters: int
    """Parameters of the head itself that are not the tied embedding (bias, transform layers, untied weight)."""
    tied: bool
    """Whether the output weight is the token embedding."""
    per_token: bool = True
    """Logits for every token (language models) or one row a sample (classification)."""
    loss_in_fp32: bool = True
    """Whether the model's code takes the loss of an fp32 copy of 16-bit logits (decoders; BERT and T5 do not)."""
    extra_matmul_parameters: int = 0
    """Weights of dense layers before the output projection (BERT's and RoBERTa's transform, T5: 0)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A model to train.

    Build one with `from_parameters`, `from_shape`, `from_config`, `from_module` or `from_profile`; tied weights are
    counted once.

    Examples
    --------
    >>> Model.from_shape(layers=48, hidden=1600, heads=25, vocab=50257, max_positions=1024).parameter_count
    1557611200
    """

    name: str
    family: str
    """``gpt2``, ``llama``, ``mixtral``, ...: the transformers ``model_type`` whose layout the counts follow."""
    origin: Origin
    """Whether the shape was ``given``, ``inferred`` from a parameter count, or ``measured`` by a profile."""
    shape: Shape
    groups: tuple[BlockGroup, ...]
    """Blocks in the order they run."""
    embedding_parameters: int
    """Token and position tables, embedding norms and projections: what precedes the first block."""
    token_embedding_parameters: int
    """The part of `embedding_parameters` that is the token table (shared with a tied head)."""
    final_parameters: int
    """Norms and poolers between the last block and the head."""
    head: Head
    fixed_sequence_length: int | None = None
    """Tokens per sample where the architecture fixes them (ViT: patches + 1), else None."""
    around_elements: float = 0.0
    """Elements a token that autograd keeps outside the blocks beyond what embedding, final norm, head and loss keep in
    any model: convolutions before the blocks, stages that do not repeat. Only a profile tells."""
    around_flops: float = 0.0
    """FLOPs a token of their forward pass."""
    config_json: str = "{}"
    """The transformers configuration that builds this model, as JSON text (sorted keys)."""
    activation_band: float = 0.0
    """Relative error that activation memory may have because the shape is inferred (nine of ten shapes stay within)."""
    note: str = ""
    """How the shape came about, for people: "inferred from 10 B parameters, GPT-3 family"."""

    @classmethod
    def from_parameters(
        cls,
        count: float | str,
        *,
        family: str = "gpt2",
        layers: int | None = None,
        hidden: int | None = None,
        heads: int | None = None,
        vocab: int | None = None,
        sequence_length: int | None = None,
        name: str | None = None,
    ) -> Model:
        """Model of a given size whose shape is inferred.

        A count within 3 % of a published model takes that model's shape; any other interpolates the hidden size
        between published models (activation memory within about 25 %).

        Parameters
        ----------
        count
            A number, or text such as ``"10B"`` or ``"350M"``.
        family
            ``gpt2`` or ``llama``: the form of the blocks.
        layers, hidden, heads, vocab
            What is known of the shape; the rest follows from the count.
        sequence_length
            Positions that the model must have at least (2048 otherwise).

        Examples
        --------
        >>> Model.from_parameters("175B").name
        'GPT-3 175B'
        """
        from smp_advisor.workload.from_count import model_from_count

        return model_from_count(
            count,
            family=family,
            layers=layers,
            hidden=hidden,
            heads=heads,
            vocab=vocab,
            sequence_length=sequence_length,
            name=name,
        )

    @classmethod
    def from_shape(
        cls,
        *,
        layers: int,
        hidden: int,
        heads: int,
        vocab: int | None = None,
        family: str = "gpt2",
        kv_heads: int | None = None,
        ffn: int | None = None,
        max_positions: int | None = None,
        tied: bool | None = None,
        experts: int | None = None,
        experts_per_token: int | None = None,
        name: str | None = None,
    ) -> Model:
        """Model of a given shape.

        What is left open follows the family: feed-forward width 4 × hidden (Llama: 8/3, with fewer key-value heads
        3.5), 2048 positions, its own vocabulary, output weights tied or not.

        Examples
        --------
        >>> Model.from_shape(layers=32, hidden=4096, heads=32, kv_heads=8, vocab=128256, family="llama").parameter_count
        8030261248
        """
        from smp_advisor.workload.from_shape import model_from_shape

        return model_from_shape(
            layers=layers,
            hidden=hidden,
            heads=heads,
            vocab=vocab,
            family=family,
            kv_heads=kv_heads,
            ffn=ffn,
            max_positions=max_positions,
            tied=tied,
            experts=experts,
            experts_per_token=experts_per_token,
            name=name,
        )

    @classmethod
    def from_config(cls, config: str | os.PathLike[str] | Mapping[str, Any] | object) -> Model:
        """Model of a transformers configuration, counted exactly.

        Parameters
        ----------
        config
            A configuration object or dict, or the path of a ``config.json`` or of the folder that holds one. Read
            as it is: nothing is looked up or downloaded, and transformers is not needed.

        Examples
        --------
        >>> Model.from_config({"model_type": "bert"}).parameter_count
        109514298
        """
        from smp_advisor.workload.from_config import model_from_config

        return model_from_config(config)

    @classmethod
    def from_profile(cls, profile: Any) -> Model:
        """Model with the activation bytes and FLOPs that a profile measured.

        Parameters
        ----------
        profile
            What `smp_advisor.profile` returns, or its ``as_dict()``.

        Examples
        --------
        >>> Model.from_profile(smp_advisor.profile(module, job)).origin  # doctest: +SKIP
        'measured'
        """
        from smp_advisor.workload.from_profile import model_from_profile

        return model_from_profile(profile)

    @classmethod
    def from_module(cls, module: Any) -> Model:
        """Model of a live ``torch.nn.Module`` of a known transformers family, without tracing it.

        The family's formulas count its configuration, and the module's own parameters have to be as many. Any other
        module is profiled first: ``Model.from_profile(smp_advisor.profile(module, job))``.

        Raises
        ------
        ModelError
            The module has no configuration, or has been changed since it was built from it.
        """
        from smp_advisor.workload.from_module import model_from_module

        return model_from_module(module)

    @property
    def parameter_count(self) -> int:
        """Number of parameters, tied weights once."""
        blocks = sum(group.block.parameters * group.count for group in self.groups)
        return self.embedding_parameters + blocks + self.final_parameters + self.head.parameters

    @property
    def layer_count(self) -> int:
        """Blocks in all."""
        return sum(group.count for group in self.groups)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Every block in execution order, repeats included."""
        return tuple(group.block for group in self.groups for _ in range(group.count))

    @property
    def summary(self) -> str:
        """The model in one line, for people."""
        from smp_advisor.workload.summary import summary

        return summary(self)

    @property
    def reads_tokens(self) -> bool:
        """Whether a sample is a sequence of tokens; an image is one thing, whatever its patches are to the blocks."""
        return self.fixed_sequence_length is None

    @property
    def has_width(self) -> bool:
        """Whether the shape's hidden size is a width; of a module traced by the sample it is the size of one."""
        return self.fixed_sequence_length != 1

    @property
    def attends(self) -> bool:
        """Whether there is attention, and so a number of heads."""
        return any(group.block.attentions for group in self.groups)

    def sequence_length(self, job_sequence_length: int) -> int:
        """Tokens a sample has: the architecture's own where it fixes them, else the job's."""
        return self.fixed_sequence_length or job_sequence_length
