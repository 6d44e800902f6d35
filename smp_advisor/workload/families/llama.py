"""Llama, Mistral and Mixtral: RMSNorm, rotary positions, grouped queries, gated feed-forward layers or experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.workload.families.decoder import decoder_model
from smp_advisor.workload.families.shape import shape_of
from smp_advisor.workload.layers import attention, gated_feed_forward, norm, residual
from smp_advisor.workload.part import assemble
from smp_advisor.workload.sparse import gated_experts

if TYPE_CHECKING:
    from smp_advisor.workload.model import Model
    from smp_advisor.workload.settings import Settings

__all__ = ["build"]


def build(settings: Settings) -> Model:
    """Model of a Llama, Mistral or Mixtral configuration."""
    shape = shape_of(settings)
    hidden, heads, ffn = shape.hidden, shape.heads, shape.ffn
    head_dim = settings.head_dim(hidden, heads, "head_dim")
    function = settings.activation("hidden_act")
    experts, active = shape.experts, shape.experts_per_token
    if active > experts:
        raise settings.error(f"num_experts_per_tok ({active}) must be at most the {experts} experts")
    bias = settings.value("attention_bias") is True
    attend = attention(
        hidden,
        heads,
        kv_heads=shape.kv_heads,
        head_dim=head_dim,
        qkv_bias=bias,
        output_bias=bias,
        window=settings.size("sliding_window") if settings.is_set("sliding_window") else None,
        dropout=settings.rate("attention_dropout") > 0,
        rotary_dim=head_dim,
        scores_in_fp32=True,
    )
    if "experts" in settings.family.shape_keys:
        kind, mlp = "mixture-of-experts decoder", gated_experts(hidden, ffn, function, experts, active)
    else:
        kind, mlp = "decoder", gated_feed_forward(hidden, ffn, function, bias=settings.value("mlp_bias") is True)
    between = residual(hidden, dropout=False)
    block = assemble(kind, hidden, (norm(hidden, "rms"), attend, between, norm(hidden, "rms"), mlp, between))
    return decoder_model(settings, shape, block, final_parameters=hidden)
