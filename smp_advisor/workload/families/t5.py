"""T5: encoder and decoder with relative position biases. Version 1.1 and FLAN-T5 have gated feed-forward layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.workload.families.shape import shape_of
from smp_advisor.workload.head_task import head_task
from smp_advisor.workload.layers import attention, feed_forward, gated_feed_forward, norm, residual
from smp_advisor.workload.model import BlockGroup, Head, Model
from smp_advisor.workload.part import assemble

if TYPE_CHECKING:
    from smp_advisor.workload.block import Block
    from smp_advisor.workload.part import Part
    from smp_advisor.workload.settings import Settings

__all__ = ["build"]


def build(settings: Settings) -> Model:
    """Model of a T5 configuration: the encoder's blocks, then the decoder's."""
    hidden, heads, vocab = settings.size("d_model"), settings.size("num_heads"), settings.size("vocab_size")
    encoder_only = settings.value("architectures") == ["T5EncoderModel"]
    encoder_layers = settings.layers("num_layers")
    decoder_layers = 0 if encoder_only else settings.layers("num_decoder_layers", default=encoder_layers)
    groups = [BlockGroup(block=_block(settings, decoder=False), count=encoder_layers)]
    if decoder_layers:
        groups.append(BlockGroup(block=_block(settings, decoder=True), count=decoder_layers))
    stacks = len(groups)
    # The first block of each stack owns the table of position biases for all blocks of the stack.
    biases = settings.size("relative_attention_num_buckets") * heads
    purpose = head_task(settings, "language-model", "none")
    if purpose.task == "none":
        head = Head(kind="none", outputs=0, parameters=0, tied=False)
    else:
        tied = settings.flag("tie_word_embeddings")
        own = 0 if tied else vocab * hidden
        head = Head(kind="language-model", outputs=vocab, parameters=own, tied=tied, loss_in_fp32=False)
    note = purpose.note
    if head.kind != "none" and not head.tied:
        note = "output weights counted separately from the embedding, as in the published checkpoints"
    return Model(
        name=settings.family.label,
        family=settings.family.model_type,
        origin="given",
        shape=shape_of(settings, layers=encoder_layers + decoder_layers),
        groups=tuple(groups),
        embedding_parameters=vocab * hidden + biases * stacks,
        token_embedding_parameters=vocab * hidden,
        final_parameters=hidden * stacks,
        head=head,
        note=note,
    )


def _block(settings: Settings, *, decoder: bool) -> Block:
    """A block of the encoder, or of the decoder with attention to the encoder's output."""
    hidden, dropout = settings.size("d_model"), settings.rate("dropout_rate") > 0
    attend = _attention(settings, causal=decoder)
    layers = [attend, _feed_forward(settings)]
    if decoder:
        layers.insert(1, _attention(settings, causal=False, cross=True))
    parts: list[Part] = []
    for layer in layers:
        parts += [norm(hidden, "t5"), layer, residual(hidden, dropout=dropout)]
    return assemble(
        "cross-decoder" if decoder else "encoder",
        hidden,
        parts,
        all_reduces=len(layers),
        input_tensors=2 if decoder else 1,
    )


def _attention(settings: Settings, *, causal: bool, cross: bool = False) -> Part:
    return attention(
        settings.size("d_model"),
        settings.size("num_heads"),
        head_dim=settings.size("d_kv"),
        qkv_bias=False,
        output_bias=False,
        causal=causal,
        dropout=settings.rate("dropout_rate") > 0,
        cross=cross,
        # Position biases are added to the scores. The transformers releases in the libraries' containers have no fused
        # form; since transformers 5 there is one, and it saves the biases.
        fusible=False,
        scores_in_fp32=True,
        position_biases=True,
    )


def _feed_forward(settings: Settings) -> Part:
    hidden, ffn, dropout = settings.size("d_model"), settings.size("d_ff"), settings.rate("dropout_rate") > 0
    kind = settings.value("feed_forward_proj")
    gate, _, name = kind.rpartition("-") if isinstance(kind, str) else ("?", "", "")
    if gate not in {"", "gated"}:
        raise settings.error(f"feed_forward_proj must be an activation such as 'relu' or 'gated-gelu', not {kind!r}")
    # "gated-gelu" is the tanh approximation, in separate operations.
    function = settings.activation("feed_forward_proj", "gelu_new" if kind == "gated-gelu" else name)
    if gate:
        return gated_feed_forward(hidden, ffn, function, dropout=dropout)
    return feed_forward(hidden, ffn, function, up_bias=False, down_bias=False, dropout=dropout)
