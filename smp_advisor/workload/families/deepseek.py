"""DeepSeek V2 and V3: latent attention (MLA), dense layers first, then shared and routed experts.

DeepSeek-AI 2024, arXiv 2405.04434, sections 2.1 and 2.2. Multi-token prediction is not part of transformers' model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.workload.block import Attention, Matmul
from smp_advisor.workload.families.decoder import decoder_model
from smp_advisor.workload.families.decoders import groups_of
from smp_advisor.workload.families.shape import shape_of
from smp_advisor.workload.kernels import Kernels
from smp_advisor.workload.layers import gated_feed_forward, norm, residual
from smp_advisor.workload.part import Part, assemble
from smp_advisor.workload.sparse import gated_experts

if TYPE_CHECKING:
    from smp_advisor.workload.block import Block
    from smp_advisor.workload.model import Model
    from smp_advisor.workload.settings import Settings

__all__ = ["build"]


def build(settings: Settings) -> Model:
    """Model of a DeepSeek V2 or V3 configuration."""
    shape = shape_of(settings)
    hidden, function = shape.hidden, settings.activation("hidden_act")
    if shape.experts_per_token > shape.experts:
        raise settings.error(f"num_experts_per_tok ({shape.experts_per_token}) must be at most {shape.experts}")
    attend = _latent_attention(settings, hidden, shape.heads)
    dense = (gated_feed_forward(hidden, settings.size("intermediate_size"), function),)
    shared = settings.size("n_shared_experts", default=0, least=0) * shape.ffn
    sparse = (
        gated_experts(hidden, shape.ffn, function, shape.experts, shape.experts_per_token),
        # The router reads an fp32 copy of the tokens.
        Part(replicated_elements=hidden, half_replicated_bytes=2 * hidden, weight_replicated_elements=2 * hidden),
        *((gated_feed_forward(hidden, shared, function),) if shared else ()),
    )
    between = residual(hidden, dropout=False)

    def block(kind: str, mlp: tuple[Part, ...]) -> Block:
        return assemble(kind, hidden, (norm(hidden, "rms"), *attend, between, norm(hidden, "rms"), *mlp, between))

    first = min(settings.size("first_k_dense_replace", least=0), shape.layers)
    blocks = [block("decoder", dense)] * first
    blocks += [block("mixture-of-experts decoder", sparse)] * (shape.layers - first)
    return decoder_model(settings, shape, groups_of(blocks), final_parameters=hidden)


def _latent_attention(settings: Settings, hidden: int, heads: int) -> tuple[Part, ...]:
    """Attention with queries, keys and values from two small latents.

    Keys are copied together from their own part and the shared rotated part, and values stay a view of the joint
    product of both.
    """
    rotary, plain = settings.size("qk_rope_head_dim"), settings.size("qk_nope_head_dim")
    value, latent = settings.size("v_head_dim"), settings.size("kv_lora_rank")
    bias = settings.flag("attention_bias")
    wide, joint = heads * (plain + rotary), heads * (plain + value)
    compressed = latent + rotary
    products = [
        Matmul(name="key and value latent", inputs=hidden, outputs=compressed),
        Matmul(name="key and value", inputs=latent, outputs=joint, split="column"),
        Matmul(name="attention output", inputs=heads * value, outputs=hidden, split="row"),
    ]
    norms = [norm(latent, "rms")]
    replicated = hidden * compressed + (compressed + hidden if bias else 0)
    split = latent * joint + heads * value * hidden
    if settings.is_set("q_lora_rank"):
        rank = settings.size("q_lora_rank")
        products[:0] = [
            Matmul(name="query latent", inputs=hidden, outputs=rank),
            Matmul(name="query", inputs=rank, outputs=wide, split="column"),
        ]
        norms.append(norm(rank, "rms"))
        replicated += hidden * rank + (rank if bias else 0)
        split += rank * wide
    else:
        products[:0] = [Matmul(name="query", inputs=hidden, outputs=wide, split="column")]
        split += hidden * wide
    rotated = rotary * (heads + 1)
    attend = Part(
        split_parameters=split,
        replicated_parameters=replicated,
        matmuls=tuple(products),
        attentions=(
            Attention(
                heads=heads,
                kv_heads=heads,
                # Scores need q and k, their product with the values v: half the sum has as many operations.
                head_dim=(plain + rotary + value) // 2,
                dropout=settings.rate("attention_dropout") > 0,
                scores_in_fp32=True,
            ),
        ),
        # Queries are copied together in another layout, which the fused kernel's output has. The output product reads a
        # copy of it.
        split_elements=2 * wide + joint + 2 * heads * value,
        weight_split_elements=heads * value,
        separate=Kernels(split_elements=9 * rotated + 4 * wide, products=len(products), launches=14),
        fused=Kernels(split_elements=2 * rotated + 2 * wide, products=len(products), launches=3),
    )
    return attend, *norms
