"""GPT-2 and GPT-3: learned positions, norms before each layer, one feed-forward layer four times as wide."""

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


def build(settings: Settings) -> Model:
    """Model of a GPT-2 configuration."""
    hidden, heads = settings.size("n_embd"), settings.size("n_head")
    ffn = settings.size("n_inner", default=4 * hidden)
    positions = settings.size("n_positions")
    head_dim = settings.head_dim(hidden, heads)
    dropout = settings.rate("resid_pdrop") > 0
    if settings.flag("add_cross_attention"):
        raise settings.error("add_cross_attention must be false: a decoder with cross-attention is read as T5 only")
    block = assemble(
        "decoder",
        hidden,
        (
            norm(hidden),
            attention(hidden, heads, head_dim=head_dim, dropout=settings.rate("attn_pdrop") > 0, joint=True),
            residual(hidden, dropout=dropout),
            norm(hidden),
            feed_forward(hidden, ffn, settings.activation("activation_function")),
            residual(hidden, dropout=dropout),
        ),
    )
    shape = Shape(
        layers=settings.layers("n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn=ffn,
        vocab=settings.size("vocab_size"),
        max_positions=positions,
    )
    return decoder_model(settings, shape, block, position_parameters=positions * hidden, final_parameters=2 * hidden)
