"""A model as input of the cost model: blocks with counts, an embedding, a head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.arguments import brief
from smp_advisor.arguments.signatures import checked_class
from smp_advisor.core.words import plain
from smp_advisor.errors import ModelError
from smp_advisor.workload.block import DECODER, shortened
from smp_advisor.workload.counts import format_count
from smp_advisor.workload.settings import families

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from smp_advisor.workload.block import Block


Origin = Literal["given", "inferred", "measured"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The few numbers that characterize a transformer."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    """0 where there is no vocabulary (vision)."""
    max_positions: int = 0
    """Rows of a learned position table; 0 without one."""
    experts: int = 1
    experts_per_token: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockGroup:
    block: Block
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """The layers from the last hidden states to the loss."""

    kind: Literal["language-model", "classification", "none"]
    outputs: int
    """Columns of the logits: vocabulary size or number of classes."""
    parameters: int
    """Parameters of the head without the tied embedding (bias, transform layers, untied weight)."""
    tied: bool
    """Whether the output weight is the token embedding."""
    per_token: bool = True
    """Whether every token has logits (language models) or every sample one row (classification)."""
    loss_in_fp32: bool = True
    """Whether the model's code computes the loss from an fp32 copy of 16-bit logits (decoders; BERT and T5 do not)."""
    rows_per_token: float = 1.0
    """Rows of logits per token of the sequence, if every token has one: fewer after a shorter decoder."""
    extra_matmul_parameters: int = 0
    """Weights of dense layers before the output projection (BERT's and RoBERTa's transform, T5: 0)."""


@checked_class
@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
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
    """The transformers ``model_type`` whose layout the counts follow: ``gpt2``, ``llama``, ``mixtral``, ..."""
    origin: Origin
    """Whether the shape was ``given``, ``inferred`` from a parameter count, or ``measured`` by a profile."""
    shape: Shape
    groups: tuple[BlockGroup, ...]
    """Blocks in execution order."""
    embedding_parameters: int
    """Parameters before the first block: token and position tables, embedding norms and projections."""
    token_embedding_parameters: int
    """The part of `embedding_parameters` that is the token table (shared with a tied head)."""
    final_parameters: int
    """Parameters of norms and poolers between the last block and the head."""
    head: Head
    fixed_sequence_length: int | None = None
    """Tokens per sample of a fixed-length architecture (ViT: patches + 1), else None."""
    outside_elements: float = 0.0
    """Elements per token that autograd saves in addition to blocks, embedding, final norm, head and loss: capped
    logits, tables of a measured language model."""
    config_json: str = "{}"
    """The transformers configuration that builds this model, as JSON text (sorted keys)."""
    activation_band: float = 0.0
    """Relative error of activation memory of an inferred shape (for nine of ten shapes)."""
    note: str = ""
    """Origin of the shape as text: "inferred from 10 B parameters, GPT-3 family"."""
    sample_is_call: bool = False
    """Whether a sample is one call with the inputs of the profile, whose number of samples is unknown."""
    verdicts: tuple[str, ...] = ()
    """Findings of the model's profile, one sentence each: the warnings of every advice on it."""

    def __post_init__(self) -> None:
        title: object = self.name
        if not isinstance(title, str):
            raise ModelError(f"The name of a model must be text, not {title!r:.80}.")
        object.__setattr__(self, "name", plain(title))  # it can come from a file of others

    def __hash__(self) -> int:
        # Every look-up in a cache hashes the model: a few fields instead of all blocks.
        return hash((self.name, self.shape, self.embedding_parameters))

    @classmethod
    def from_parameters(
        cls,
        count: float | str,
        *,
        family: str | None = None,
        layers: int | None = None,
        hidden: int | None = None,
        heads: int | None = None,
        vocab: int | None = None,
        sequence_length: int | None = None,
        activation: str | None = None,
        name: str | None = None,
    ) -> Model:
        """Model with an inferred shape from its number of parameters.

        A count within 3 % of a published model has that model's shape. Otherwise the hidden size is interpolated
        between published models (error of activation memory about 25 %).

        Parameters
        ----------
        count
            A number, or text such as ``"10B"`` or ``"350M"``.
        family
            ``gpt2`` or ``llama``: the form of the blocks. By default ``llama``, and ``gpt2`` for counts below the
            smallest Llama: one shape per count, whatever library trains it.
        layers, hidden, heads, vocab
            Fixed parts of the shape. The others follow from the count.
        sequence_length
            Minimum number of positions (default 2048).
        activation
            Activation function by its transformers name; None for that of the family, as in `from_shape`.

        Examples
        --------
        >>> Model.from_parameters("8B").name
        'Llama 3 8B'
        """
        from smp_advisor.workload.from_count import PartialShape, model_from_count

        fixed = PartialShape(layers, hidden, heads, vocab, sequence_length, activation)
        return model_from_count(count, family, fixed, name)

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
        activation: str | None = None,
        name: str | None = None,
    ) -> Model:
        """Model from its shape.

        Defaults follow the family: feed-forward width 4 × hidden (Llama: 8/3, or 3.5 with fewer key-value heads), 2048
        positions, the family's vocabulary, tied or untied output weights, and its activation function. GPT-2's
        ``gelu_new`` runs as separate operations, which save 3 more elements per element of its output; ``gelu`` is one
        kernel.

        Examples
        --------
        >>> Model.from_shape(layers=32, hidden=4096, heads=32, kv_heads=8, vocab=128256, family="llama").parameter_count
        8030261248
        """
        from smp_advisor.workload.families import model_from_shape

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
            activation=activation,
            name=name,
        )

    @classmethod
    def from_name(cls, name: str) -> Model:
        """Model with the shape of a published model, with or without the owner of its repository.

        Raises
        ------
        ModelError
            The package's tables have no such name. Nothing is downloaded.

        Examples
        --------
        >>> Model.from_name("meta-llama/Meta-Llama-3-70B").parameter_count
        70553706496
        """
        from smp_advisor.workload.from_config import model_from_name

        return model_from_name(name)

    @classmethod
    def from_config(cls, config: str | os.PathLike[str] | Mapping[str, Any] | object) -> Model:
        """Model of a transformers configuration, with exact counts.

        Parameters
        ----------
        config
            A configuration object or dict, or the path of a ``config.json`` or of its folder. Nothing is looked up or
            downloaded, and transformers is not required.

        Examples
        --------
        >>> Model.from_config({"model_type": "bert"}).parameter_count
        109514298
        """
        from smp_advisor.workload.from_config import model_from_config

        return model_from_config(config)

    @classmethod
    def from_profile(cls, profile: Any) -> Model:
        """Model with the activation bytes and FLOPs of a profile.

        Parameters
        ----------
        profile
            Result of `smp_advisor.profile`, or its ``as_dict()``.

        Examples
        --------
        >>> Model.from_profile(smp_advisor.profile(module, job)).origin  # doctest: +SKIP
        'measured'
        """
        from smp_advisor.workload.from_profile import model_from_profile

        return model_from_profile(profile)

    @classmethod
    def from_module(cls, module: Any) -> Model:
        """Model of a live ``torch.nn.Module`` of a supported transformers family, without tracing it.

        The family's formulas count the module's configuration. The module must have the same number of parameters. For
        any other module, use a profile: ``Model.from_profile(smp_advisor.profile(module, job))``.

        Raises
        ------
        ModelError
            The module has no configuration, or was changed after its construction.
        """
        from smp_advisor.workload.from_config import model_from_module

        return model_from_module(module)

    def __repr__(self) -> str:
        count = f"{format_count(self.parameter_count)} parameters"
        return brief("Model", [repr(self.name), count, f"{self.layer_count} layers", self.origin])

    @property
    def parameter_count(self) -> int:
        """Number of parameters, with tied weights counted once."""
        return _parameter_count(self)

    @property
    def layer_count(self) -> int:
        """Total number of blocks."""
        return sum(group.count for group in self.groups)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Every block in execution order, with repeats."""
        return tuple(group.block for group in self.groups for _ in range(group.count))

    @property
    def summary(self) -> str:
        """The model in one line of text: shape, size and their origin."""
        shape = self.shape
        family = families().get(self.family)
        parts = [f"{family.label if family else self.family} shape", f"{self.layer_count} layers"]
        if self.fixed_sequence_length != 1:  # of a module traced per sample, the hidden size is that of a sample
            parts.append(f"hidden {shape.hidden}")
        if self.attends:
            heads = f"{shape.heads} head{'s' if shape.heads > 1 else ''}"
            parts.append(heads + (f" ({shape.kv_heads} key-value)" if shape.kv_heads != shape.heads else ""))
        if shape.experts > 1:
            parts.append(f"{shape.experts} experts ({shape.experts_per_token} per token)")
        if shape.vocab:
            parts.append(f"vocabulary {shape.vocab:,}")
        aside = self.note.split(";")[0] if self.origin != "given" else ""
        return f"{', '.join(parts)}; {format_count(self.parameter_count)} parameters" + (f" ({aside})" if aside else "")

    @property
    def reads_tokens(self) -> bool:
        """Whether a sample is a sequence of tokens. An image is not, although its patches are tokens to the blocks."""
        return self.fixed_sequence_length is None

    @property
    def attends(self) -> bool:
        """Whether the model has attention, and so a number of heads."""
        return any(group.block.attentions for group in self.groups)

    @property
    def has_decoder(self) -> bool:
        """Whether a decoder reads the output of an encoder, and so has a number of tokens of its own."""
        return any(group.block.kind == DECODER for group in self.groups)

    def sequence_length(self, job_sequence_length: int) -> int:
        """Return the tokens per sample: fixed by the architecture, else the job's."""
        return self.fixed_sequence_length or job_sequence_length


@lru_cache(maxsize=256)
def _parameter_count(model: Model) -> int:
    blocks = sum(group.block.parameters * group.count for group in model.groups)
    return model.embedding_parameters + blocks + model.final_parameters + model.head.parameters


@lru_cache(maxsize=256)
def with_decoder(model: Model, share: float) -> Model:
    """Return the model whose decoder reads `share` of the tokens of its encoder; any other model as it is."""
    if share == 1 or not model.has_decoder:
        return model
    groups = tuple(replace(group, block=shortened(group.block, share)) for group in model.groups)
    return replace(model, groups=groups, head=replace(model.head, rows_per_token=share))
