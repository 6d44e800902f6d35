"""GPT-J: parallel attention and feed-forward layer after one norm, rotary positions, an output with a bias."""

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
    """Model of a GPT-J configuration."""
    hidden, heads = settings.size("n_embd"), settings.size("n_head")
    ffn = settings.size("n_inner", default=4 * hidden)
    head_dim = settings.head_dim(hidden, heads)
    dropout = settings.rate("resid_pdrop") > 0
    block = assemble(
        "parallel decoder",
        hidden,
        (
            norm(hidden),
            attention(
                hidden,
                heads,
                head_dim=head_dim,
                qkv_bias=False,
                output_bias=False,
                dropout=settings.rate("attn_pdrop") > 0,
                rotary_dim=settings.size("rotary_dim", default=head_dim),
                upcast_queries=True,
                fusible=False,
                scores_in_fp32=True,
            ),
            residual(hidden, dropout=dropout),
            feed_forward(hidden, ffn, settings.activation("activation_function")),
            residual(hidden, dropout=dropout),
        ),
        # One norm feeds both layers and only a sum follows them, so they share one all-reduce.
        all_reduces=1,
    )
    shape = Shape(
        layers=settings.layers("n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn=ffn,
        vocab=settings.size("vocab_size"),
    )
    return decoder_model(settings, shape, block, final_parameters=2 * hidden, head_bias=True)
