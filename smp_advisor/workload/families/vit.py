"""ViT: an encoder over image patches and one class token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.workload.families.shape import shape_of
from smp_advisor.workload.head_task import head_task
from smp_advisor.workload.layers import attention, feed_forward, norm, residual
from smp_advisor.workload.model import BlockGroup, Head, Model
from smp_advisor.workload.part import assemble

if TYPE_CHECKING:
    from smp_advisor.workload.settings import Settings

__all__ = ["build"]


def build(settings: Settings) -> Model:
    """Model of a ViT configuration."""
    (height, width), (patch_height, patch_width) = _pair(settings, "image_size"), _pair(settings, "patch_size")
    patches = (height // patch_height) * (width // patch_width)
    if not patches:
        raise settings.error("patch_size must be at most image_size")
    shape = shape_of(settings, max_positions=patches + 1)
    hidden, heads = shape.hidden, shape.heads
    attend = attention(
        hidden,
        heads,
        head_dim=settings.head_dim(hidden, heads),
        qkv_bias=settings.flag("qkv_bias"),
        causal=False,
        dropout=settings.rate("attention_probs_dropout_prob") > 0,
    )
    mlp = feed_forward(hidden, shape.ffn, settings.activation("hidden_act"))
    between = residual(hidden, dropout=settings.rate("hidden_dropout_prob") > 0)
    block = assemble("encoder", hidden, (norm(hidden), attend, between, norm(hidden), mlp, between))
    projection = settings.size("num_channels") * patch_height * patch_width * hidden + hidden
    purpose = head_task(settings, "image-classification", "none")
    labels = settings.labels() if purpose.task == "image-classification" else 0
    pooler = 0 if labels else hidden * settings.size("pooler_output_size", default=hidden)
    return Model(
        name=settings.family.label,
        family=settings.family.model_type,
        origin="given",
        shape=shape,
        groups=(BlockGroup(block=block, count=shape.layers),),
        embedding_parameters=projection + (patches + 2) * hidden,
        token_embedding_parameters=0,
        final_parameters=2 * hidden + (pooler + pooler // hidden),
        head=Head(
            kind="classification" if labels else "none",
            outputs=labels,
            parameters=(hidden + 1) * labels,
            tied=False,
            per_token=False,
        ),
        fixed_sequence_length=patches + 1,
        note=purpose.note,
    )


def _pair(settings: Settings, key: str) -> tuple[int, int]:
    """Height and width from one number or a pair."""
    value = settings.value(key)
    if isinstance(value, list | tuple):
        if len(value) == 2 and all(isinstance(side, int) and side >= 1 for side in value):
            return value[0], value[1]
        raise settings.error(f"{key} must be a whole number or a pair of them, not {value!r}")
    side = settings.size(key)
    return side, side
