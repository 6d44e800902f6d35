"""Llama, Mistral and Mixtral: RMSNorm, rotary positions, grouped queries, gated feed-forward layers or experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.workload.families.decoder import decoder_model
from smp_advisor.workload.layers import attention, gated_feed_forward, norm, residual
from smp_advisor.workload.model import Shape
from smp_advisor.workload.part import assemble
from smp_advisor.workload.sparse import gated_experts

if TYPE_CHECKING:
    from smp_advisor.workload.model import Model
    from smp_advisor.workload.settings import Settings

__all__ = ["build"]


def build(settings: Settings) -> Model:
    """Model of a Llama, Mistral or Mixtral configuration."""
    hidden, heads = settings.size("hidden_size"), settings.size("num_attention_heads")
    kv_heads = settings.size("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise settings.error(f"num_key_value_heads ({kv_heads}) must divide the {heads} attention heads")
    head_dim = settings.head_dim(hidden, heads, "head_dim")
    ffn = settings.size("intermediate_size")
    function = settings.activation("hidden_act")
    sparse = "experts" in settings.family.shape_keys
    experts = settings.size("num_local_experts") if sparse else 1
    experts_per_token = settings.size("num_experts_per_tok") if sparse else 1
    if experts_per_token > experts:
        raise settings.error(f"num_experts_per_tok ({experts_per_token}) must be at most the {experts} experts")
    bias = settings.value("attention_bias") is True
    block = assemble(
        "mixture-of-experts decoder" if sparse else "decoder",
        hidden,
        (
            norm(hidden, "rms"),
            attention(
                hidden,
                heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                qkv_bias=bias,
                output_bias=bias,
                window=settings.size("sliding_window") if settings.is_set("sliding_window") else None,
                dropout=settings.rate("attention_dropout") > 0,
                rotary_dim=head_dim,
                scores_in_fp32=True,
            ),
            residual(hidden, dropout=False),
            norm(hidden, "rms"),
            gated_experts(hidden, ffn, function, experts=experts, experts_per_token=experts_per_token)
            if sparse
            else gated_feed_forward(hidden, ffn, function, bias=settings.value("mlp_bias") is True),
            residual(hidden, dropout=False),
        ),
    )
    shape = Shape(
        layers=settings.layers("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocab=settings.size("vocab_size"),
        experts=experts,
        experts_per_token=experts_per_token,
    )
    return decoder_model(settings, shape, block, final_parameters=hidden)
