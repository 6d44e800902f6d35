"""Models with an encoder: BERT, RoBERTa and ELECTRA, ViT, T5."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.workload.block import DECODER, assemble
from smp_advisor.workload.families import given, shape_of
from smp_advisor.workload.layers import attention, feed_forward, gated_feed_forward, norm, residual
from smp_advisor.workload.model import BlockGroup, Head
from smp_advisor.workload.settings import head_task

if TYPE_CHECKING:
    from smp_advisor.workload.block import Block, Part
    from smp_advisor.workload.model import Model
    from smp_advisor.workload.settings import Settings, Task


def build_bert(settings: Settings) -> Model:
    shape = shape_of(settings, max_positions=settings.size("max_position_embeddings"))
    hidden, heads, vocab = shape.hidden, shape.heads, shape.vocab
    settings.refuse_cross_attention()
    roberta, electra = (settings.family.model_type == name for name in ("roberta", "electra"))
    attend = attention(
        hidden,
        heads,
        head_dim=settings.head_dim(hidden, heads),
        causal=settings.flag("is_decoder"),
        dropout=settings.rate("attention_probs_dropout_prob") > 0,
        fusible=not electra,  # transformers runs its scores unfused before 5.3
    )
    mlp = feed_forward(hidden, shape.ffn, settings.activation("hidden_act"))
    between = residual(hidden, dropout=settings.rate("hidden_dropout_prob") > 0)
    block = assemble("encoder", hidden, (attend, between, norm(hidden), mlp, between, norm(hidden)))
    width = settings.size("embedding_size") if electra else hidden
    task, note = head_task(
        settings,
        "pretraining" if electra else "language-model",
        "language-model",
        "sequence-classification",
        "token-classification",
        "none",
        *(() if roberta else ("pretraining",)),
    )
    pooled = task in {"pretraining", "none"} or (task == "sequence-classification" and not roberta)
    tables = (vocab + shape.max_positions + settings.size("type_vocab_size", least=0)) * width
    projection = width * hidden + hidden if width != hidden else 0
    return given(
        settings,
        shape=shape,
        groups=(BlockGroup(block=block, count=shape.layers),),
        embedding_parameters=tables + 2 * width + projection,
        token_embedding_parameters=vocab * width,
        final_parameters=hidden * hidden + hidden if pooled and not electra else 0,
        head=_electra_head(settings, task, hidden, width)
        if electra and task in {"pretraining", "language-model"}
        else _head(settings, task, hidden, vocab, dense=roberta or electra),
        note=note,
    )


def _electra_head(settings: Settings, task: Task, hidden: int, width: int) -> Head:
    """Return whether each token was replaced, or the token itself (ELECTRA's discriminator and generator)."""
    if task == "pretraining":
        dense = hidden * hidden
        own = dense + hidden + hidden + 1
        return Head(kind="classification", outputs=1, parameters=own, tied=False, extra_matmul_parameters=dense)
    vocab, dense, tied = settings.size("vocab_size"), hidden * width, settings.flag("tie_word_embeddings")
    own = dense + 3 * width + vocab + (0 if tied else vocab * width)
    return Head(
        kind="language-model",
        outputs=vocab,
        parameters=own,
        tied=tied,
        loss_in_fp32=False,
        extra_matmul_parameters=dense,
    )


def _head(settings: Settings, task: Task, hidden: int, vocab: int, *, dense: bool) -> Head:
    """Head for the task. `dense`: a sequence classifier has its own dense layer (RoBERTa)."""
    if task == "none":
        return Head(kind="none", outputs=0, parameters=0, tied=False)
    if task in {"sequence-classification", "token-classification"}:
        labels = settings.labels()
        per_token = task == "token-classification"
        square = hidden * hidden if dense and not per_token else 0
        return Head(
            kind="classification",
            outputs=labels,
            parameters=hidden * labels + labels + square + (hidden if square else 0),
            tied=False,
            per_token=per_token,
            extra_matmul_parameters=square,
        )
    tied = settings.flag("tie_word_embeddings")
    transform = hidden * hidden + hidden + 2 * hidden
    # Untied, the output projection has its own bias in addition to the head's.
    output = vocab if tied else vocab * hidden + 2 * vocab
    sentence = 2 * hidden + 2 if task == "pretraining" else 0
    return Head(
        kind="language-model",
        outputs=vocab,
        parameters=transform + output + sentence,
        tied=tied,
        loss_in_fp32=False,
        extra_matmul_parameters=hidden * hidden,
    )


def build_vit(settings: Settings) -> Model:
    (height, width), (patch_height, patch_width) = _pair(settings, "image_size"), _pair(settings, "patch_size")
    patches = (height // patch_height) * (width // patch_width)
    if not patches:
        raise settings.error("patch_size must be at most image_size")
    shape = shape_of(settings, max_positions=patches + 1)
    hidden, heads = shape.hidden, shape.heads
    attend = attention(
        hidden,
        heads,
        head_dim=settings.head_dim(hidden, heads),
        qkv_bias=settings.flag("qkv_bias"),
        causal=False,
        dropout=settings.rate("attention_probs_dropout_prob") > 0,
    )
    mlp = feed_forward(hidden, shape.ffn, settings.activation("hidden_act"))
    between = residual(hidden, dropout=settings.rate("hidden_dropout_prob") > 0)
    block = assemble("encoder", hidden, (norm(hidden), attend, between, norm(hidden), mlp, between))
    projection = settings.size("num_channels") * patch_height * patch_width * hidden + hidden
    task, note = head_task(settings, "image-classification", "none")
    labels = settings.labels() if task == "image-classification" else 0
    pooler = 0 if labels else hidden * settings.size("pooler_output_size", default=hidden)
    return given(
        settings,
        shape=shape,
        groups=(BlockGroup(block=block, count=shape.layers),),
        embedding_parameters=projection + (patches + 2) * hidden,
        token_embedding_parameters=0,
        final_parameters=2 * hidden + (pooler + pooler // hidden),
        head=Head(
            kind="classification" if labels else "none",
            outputs=labels,
            parameters=(hidden + 1) * labels,
            tied=False,
            per_token=False,
        ),
        fixed_sequence_length=patches + 1,
        note=note,
    )


def _pair(settings: Settings, key: str) -> tuple[int, int]:
    """Height and width from one number or a pair."""
    value = settings.value(key)
    if isinstance(value, list | tuple):
        if len(value) == 2 and all(isinstance(side, int) and side >= 1 for side in value):
            return value[0], value[1]
        raise settings.error(f"{key} must be a whole number or a pair of them, not {value!r}")
    side = settings.size(key)
    return side, side


def build_t5(settings: Settings) -> Model:
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
    task, note = head_task(settings, "language-model", "none")
    head = Head(kind="none", outputs=0, parameters=0, tied=False)
    if task != "none":
        tied = settings.flag("tie_word_embeddings")
        own = 0 if tied else vocab * hidden
        head = Head(kind="language-model", outputs=vocab, parameters=own, tied=tied, loss_in_fp32=False)
        note = note if tied else "output weights counted separately from the embedding, as in the published checkpoints"
    return given(
        settings,
        shape=shape_of(settings, layers=encoder_layers + decoder_layers),
        groups=tuple(groups),
        embedding_parameters=vocab * hidden + biases * stacks,
        token_embedding_parameters=vocab * hidden,
        final_parameters=hidden * stacks,
        head=head,
        note=note,
    )


def _block(settings: Settings, *, decoder: bool) -> Block:
    """Return a block of the encoder, or of the decoder with attention to the encoder's output."""
    hidden, dropout = settings.size("d_model"), settings.rate("dropout_rate") > 0
    attend = _attention(settings, causal=decoder)
    layers = [attend, _feed_forward(settings)]
    if decoder:
        layers.insert(1, _attention(settings, causal=False, cross=True))
    parts: list[Part] = []
    for layer in layers:
        parts += [norm(hidden, "t5"), layer, residual(hidden, dropout=dropout)]
    return assemble(
        DECODER if decoder else "encoder",
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
