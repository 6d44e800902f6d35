"""OPT: GPT-3's blocks with ReLU. The 350M model has a narrower token table and norms after the layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.workload.families.decoder import decoder_model
from smp_advisor.workload.layers import attention, feed_forward, norm, residual
from smp_advisor.workload.model import Shape
from smp_advisor.workload.part import assemble

if TYPE_CHECKING:
    from smp_advisor.workload.model import Model
    from smp_advisor.workload.settings import Settings

__all__ = ["build"]

_POSITION_OFFSET = 2
"""Rows of the position table before the first position."""


def build(settings: Settings) -> Model:
    """Model of an OPT configuration."""
    hidden, heads = settings.size("hidden_size"), settings.size("num_attention_heads")
    ffn = settings.size("ffn_dim")
    positions = settings.size("max_position_embeddings") + _POSITION_OFFSET
    token_width = settings.size("word_embed_proj_dim", default=hidden)
    dropout = settings.rate("dropout") > 0
    bias, affine = settings.flag("enable_bias"), settings.flag("layer_norm_elementwise_affine")
    block = assemble(
        "decoder",
        hidden,
        (
            # The position of the norms changes neither saved tensors nor counts.
            norm(hidden, affine=affine),
            attention(
                hidden,
                heads,
                head_dim=settings.head_dim(hidden, heads),
                qkv_bias=bias,
                output_bias=bias,
                dropout=settings.rate("attention_dropout") > 0,
                scores_in_fp32=True,
            ),
            residual(hidden, dropout=dropout),
            norm(hidden, affine=affine),
            feed_forward(hidden, ffn, settings.activation("activation_function"), up_bias=bias, down_bias=bias),
            residual(hidden, dropout=dropout),
        ),
    )
    shape = Shape(
        layers=settings.layers("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn=ffn,
        vocab=settings.size("vocab_size"),
        max_positions=positions,
    )
    projection = token_width * hidden if token_width != hidden else 0
    final_norm = settings.flag("do_layer_norm_before") and not settings.flag("_remove_final_layer_norm")
    return decoder_model(
        settings,
        shape,
        block,
        position_parameters=positions * hidden + projection,
        final_parameters=(2 * hidden if final_norm and affine else 0) + projection,
        token_width=token_width,
    )
