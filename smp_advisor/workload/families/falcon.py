"""Falcon: parallel attention and feed-forward layer, one or few key-value heads. 40B and 180B have two norms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.workload.families.decoder import decoder_model
from smp_advisor.workload.layers import attention, feed_forward, norm, residual
from smp_advisor.workload.model import Shape
from smp_advisor.workload.part import assemble

if TYPE_CHECKING:
    from smp_advisor.workload.model import Model
    from smp_advisor.workload.part import Part
    from smp_advisor.workload.settings import Settings

__all__ = ["build"]


def build(settings: Settings) -> Model:
    """Model of a Falcon configuration."""
    hidden, heads = settings.size("hidden_size"), settings.size("num_attention_heads")
    ffn = settings.size("ffn_hidden_size", default=4 * hidden)
    kv_heads = _kv_heads(settings, heads)
    if heads % kv_heads:
        raise settings.error(f"num_kv_heads ({kv_heads}) must divide the {heads} attention heads")
    head_dim = settings.head_dim(hidden, heads)
    bias, grouped, parallel = (settings.flag(key) for key in ("bias", "new_decoder_architecture", "parallel_attn"))
    alibi = settings.flag("alibi")
    # Without ALiBi, Falcon's code ignores the configured dropout of the scores.
    attention_part = attention(
        hidden,
        heads,
        joint=True,
        kv_heads=kv_heads,
        head_dim=head_dim,
        qkv_bias=bias,
        output_bias=bias,
        dropout=alibi and settings.rate("attention_dropout") > 0,
        rotary_dim=0 if alibi else head_dim,
        expanded_keys=True,
    )
    mlp_part = feed_forward(hidden, ffn, settings.activation("activation"), up_bias=bias, down_bias=bias)
    last = residual(hidden, dropout=settings.rate("hidden_dropout") > 0)
    if not parallel:
        # Here the code applies `attention_dropout` to the attention's output.
        between = residual(hidden, dropout=settings.rate("attention_dropout") > 0)
        parts: tuple[Part, ...] = (norm(hidden), attention_part, between, norm(hidden), mlp_part, last)
    else:
        norms = settings.size("num_ln_in_parallel_attn", default=2 if grouped else 1)
        second = (norm(hidden, input_saved=False),) if norms == 2 else ()
        parts = (norm(hidden), *second, attention_part, residual(hidden, dropout=False), mlp_part, last)
    block = assemble(
        "parallel decoder" if parallel else "decoder",
        hidden,
        parts,
        # A parallel block adds the outputs of both layers, so it needs a single all-reduce.
        all_reduces=1 if parallel else 2,
    )
    shape = Shape(
        layers=settings.layers("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocab=settings.size("vocab_size"),
    )
    return decoder_model(settings, shape, block, final_parameters=2 * hidden)


def _kv_heads(settings: Settings, heads: int) -> int:
    if settings.flag("new_decoder_architecture"):
        return settings.size("num_kv_heads", default=heads)
    return 1 if settings.flag("multi_query") else heads
