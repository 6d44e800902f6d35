"""BLOOM: GPT's blocks with linear position biases (ALiBi) and a norm after the token table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.workload.activation import activation
from smp_advisor.workload.families.decoder import decoder_model
from smp_advisor.workload.layers import attention, feed_forward, norm, residual
from smp_advisor.workload.model import Shape
from smp_advisor.workload.part import assemble

if TYPE_CHECKING:
    from smp_advisor.workload.model import Model
    from smp_advisor.workload.settings import Settings

__all__ = ["build"]


def build(settings: Settings) -> Model:
    """Model of a BLOOM configuration."""
    hidden, heads = settings.size("hidden_size"), settings.size("n_head")
    dropout = settings.rate("hidden_dropout") > 0
    block = assemble(
        "decoder",
        hidden,
        (
            norm(hidden),
            attention(
                hidden,
                heads,
                joint=True,
                head_dim=settings.head_dim(hidden, heads),
                dropout=settings.rate("attention_dropout") > 0,
                fusible=False,  # linear position biases are added to the scores
                scores_in_fp32=True,
            ),
            residual(hidden, dropout=dropout),
            norm(hidden),
            # Its own GELU saves only its input and recomputes the rest in the backward pass, like the fused form.
            feed_forward(hidden, 4 * hidden, activation("gelu")),
            residual(hidden, dropout=dropout),
        ),
    )
    shape = Shape(
        layers=settings.layers("n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn=4 * hidden,
        vocab=settings.size("vocab_size"),
    )
    return decoder_model(settings, shape, block, position_parameters=2 * hidden, final_parameters=2 * hidden)
