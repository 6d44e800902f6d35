"""GPT-Neo: GPT-2 with every second attention masked to a window and no bias on q, k and v."""

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
    """Model of a GPT-Neo configuration."""
    hidden, heads = settings.size("hidden_size"), settings.size("num_heads")
    ffn = settings.size("intermediate_size", default=4 * hidden)
    positions = settings.size("max_position_embeddings")
    dropout = settings.rate("resid_dropout") > 0
    block = assemble(
        "decoder",
        hidden,
        (
            norm(hidden),
            # Local layers mask full score matrices, so their windows reduce neither memory nor time.
            attention(
                hidden,
                heads,
                head_dim=settings.head_dim(hidden, heads),
                qkv_bias=False,
                dropout=settings.rate("attention_dropout") > 0,
                fusible=False,
                scores_in_fp32=True,
            ),
            residual(hidden, dropout=dropout),
            norm(hidden),
            feed_forward(hidden, ffn, settings.activation("activation_function")),
            residual(hidden, dropout=dropout),
        ),
    )
    layers = settings.layers("num_layers")
    if _layers_of(settings.value("attention_types")) != layers:
        raise settings.error(f"attention_types must describe each of the {layers} layers of num_layers")
    shape = Shape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn=ffn,
        vocab=settings.size("vocab_size"),
        max_positions=positions,
    )
    return decoder_model(settings, shape, block, position_parameters=positions * hidden, final_parameters=2 * hidden)


def _layers_of(types: object) -> int | None:
    """Number of layers in ``attention_types``. Each entry is a pattern and its number of repeats."""
    try:
        return sum(len(pattern) * times for pattern, times in types)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return None
