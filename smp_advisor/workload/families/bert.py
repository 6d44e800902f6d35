"""BERT and RoBERTa: encoders with norms after the layers and a dense layer before the output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.workload.families.shape import shape_of
from smp_advisor.workload.head_task import head_task
from smp_advisor.workload.layers import attention, feed_forward, norm, residual
from smp_advisor.workload.model import BlockGroup, Head, Model
from smp_advisor.workload.part import assemble

if TYPE_CHECKING:
    from smp_advisor.workload.head_task import Task
    from smp_advisor.workload.settings import Settings

__all__ = ["build"]


def build(settings: Settings) -> Model:
    """Model of a BERT or RoBERTa configuration."""
    shape = shape_of(settings, max_positions=settings.size("max_position_embeddings"))
    hidden, heads, vocab = shape.hidden, shape.heads, shape.vocab
    settings.refuse_cross_attention()
    attend = attention(
        hidden,
        heads,
        head_dim=settings.head_dim(hidden, heads),
        causal=settings.flag("is_decoder"),
        dropout=settings.rate("attention_probs_dropout_prob") > 0,
    )
    mlp = feed_forward(hidden, shape.ffn, settings.activation("hidden_act"))
    between = residual(hidden, dropout=settings.rate("hidden_dropout_prob") > 0)
    block = assemble("encoder", hidden, (attend, between, norm(hidden), mlp, between, norm(hidden)))
    roberta = settings.family.model_type == "roberta"
    purpose = head_task(
        settings,
        "language-model",
        "sequence-classification",
        "token-classification",
        "none",
        *(() if roberta else ("pretraining",)),
    )
    pooled = purpose.task in {"pretraining", "none"} or (purpose.task == "sequence-classification" and not roberta)
    tables = (vocab + shape.max_positions + settings.size("type_vocab_size", least=0)) * hidden
    return Model(
        name=settings.family.label,
        family=settings.family.model_type,
        origin="given",
        shape=shape,
        groups=(BlockGroup(block=block, count=shape.layers),),
        embedding_parameters=tables + 2 * hidden,
        token_embedding_parameters=vocab * hidden,
        final_parameters=hidden * hidden + hidden if pooled else 0,
        head=_head(settings, purpose.task, hidden, vocab, dense=roberta),
        note=purpose.note,
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
