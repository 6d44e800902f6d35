"""GPT-NeoX and Pythia: two norms on the same input feed attention and feed-forward layer, partly rotary positions."""

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
    """Model of a GPT-NeoX configuration."""
    hidden, heads = settings.size("hidden_size"), settings.size("num_attention_heads")
    ffn = settings.size("intermediate_size")
    head_dim = settings.head_dim(hidden, heads)
    dropout = settings.rate("hidden_dropout") > 0
    bias = settings.flag("attention_bias")
    parallel = settings.flag("use_parallel_residual")
    block = assemble(
        "parallel decoder" if parallel else "decoder",
        hidden,
        (
            norm(hidden),
            attention(
                hidden,
                heads,
                joint=True,
                head_dim=head_dim,
                qkv_bias=bias,
                output_bias=bias,
                dropout=settings.rate("attention_dropout") > 0,
                rotary_dim=int(head_dim * _rotary_share(settings)),
                partly_rotated=True,
                scores_in_fp32=True,
            ),
            residual(hidden, dropout=dropout),
            norm(hidden, input_saved=not parallel),
            feed_forward(hidden, ffn, settings.activation("hidden_act")),
            residual(hidden, dropout=dropout),
        ),
        # The sums could share one all-reduce, but in Megatron and in the library each row-parallel product has its own.
        all_reduces=2,
    )
    shape = Shape(
        layers=settings.layers("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn=ffn,
        vocab=settings.size("vocab_size"),
    )
    return decoder_model(settings, shape, block, final_parameters=2 * hidden)


def _rotary_share(settings: Settings) -> float:
    """Rotated share of each head. transformers 5 stores it with the other rotary parameters."""
    rope = settings.value("rope_parameters")
    share = rope.get("partial_rotary_factor") if isinstance(rope, dict) else None
    return float(share) if isinstance(share, int | float) and 0 <= share <= 1 else settings.rate("rotary_pct")
