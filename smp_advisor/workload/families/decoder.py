"""Parts shared by decoder-only families: token table, equal blocks, final norm, tied or untied output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.workload.head_task import head_task
from smp_advisor.workload.model import BlockGroup, Head, Model

if TYPE_CHECKING:
    from smp_advisor.workload.block import Block
    from smp_advisor.workload.model import Shape
    from smp_advisor.workload.settings import Settings

__all__ = ["decoder_model"]


def decoder_model(
    settings: Settings,
    shape: Shape,
    block: Block | tuple[BlockGroup, ...],
    *,
    input_parameters: int = 0,
    final_parameters: int | None = None,
    token_width: int | None = None,
    head_bias: bool = False,
) -> Model:
    """Assemble a decoder-only model with the head of its configuration.

    Parameters
    ----------
    block
        The block that repeats, or groups of blocks in execution order.
    input_parameters
        Parameters before the first block besides the token and position tables: norms, projections.
    final_parameters
        Parameters of norms and projections after the last block. None for one layer norm.
    token_width
        Columns of the token table where they differ from the hidden size.
    head_bias
        Whether the untied output projection of the language model has a bias.
    """
    purpose = head_task(settings, "language-model", "sequence-classification", "token-classification", "none")
    width = token_width or shape.hidden
    tokens = shape.vocab * width
    if purpose.task == "language-model":
        tied = settings.flag("tie_word_embeddings")
        own = (0 if tied else tokens) + (shape.vocab if head_bias else 0)
        head = Head(kind="language-model", outputs=shape.vocab, parameters=own, tied=tied)
    elif purpose.task == "none":
        head = Head(kind="none", outputs=0, parameters=0, tied=False)
    else:
        per_token = purpose.task == "token-classification"
        labels = settings.labels()
        own = width * labels + (labels if per_token else 0)
        head = Head(kind="classification", outputs=labels, parameters=own, tied=False, per_token=per_token)
    return Model(
        name=settings.family.label,
        family=settings.family.model_type,
        origin="given",
        shape=shape,
        groups=block if isinstance(block, tuple) else (BlockGroup(block=block, count=shape.layers),),
        embedding_parameters=tokens + shape.max_positions * shape.hidden + input_parameters,
        token_embedding_parameters=tokens,
        final_parameters=2 * shape.hidden if final_parameters is None else final_parameters,
        head=head,
        note=purpose.note,
    )
