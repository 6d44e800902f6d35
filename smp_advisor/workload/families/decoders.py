"""Llama, and the decoders with rotary positions that follow it: Mixtral, Qwen, Gemma, Phi, OLMo, DeepSeek."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from smp_advisor.workload.block import Attention, Kernels, Matmul, Part, assemble
from smp_advisor.workload.families import decoder_model, shape_of
from smp_advisor.workload.layers import attention, gated_experts, gated_feed_forward, head_norm, norm, residual
from smp_advisor.workload.model import BlockGroup

if TYPE_CHECKING:
    from smp_advisor.workload.block import Block
    from smp_advisor.workload.layers import Norm
    from smp_advisor.workload.model import Model, Shape
    from smp_advisor.workload.settings import Settings


_MOST_RUNS = 4
"""Groups of consecutive blocks from which equal blocks are put together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Traits:
    norm: Norm = "rms"
    norms: Literal["before", "after", "around"] = "before"
    """Places of the norms of attention and feed-forward layer."""
    query_key_norm: Literal["", "head", "full", "l2"] = ""
    """Norm of queries and keys: of each head, over all heads, or of each head without a weight."""
    biases: str = ""
    mlp_biases: str = ""
    qkv_bias: bool | str = False
    """Whether q, k and v have biases and the output has none; or the key of this setting."""
    joint: bool = False
    """Whether one product computes q, k and v, of which rotation copies q and k (Phi-3)."""
    window_flag: str = "sliding_window"
    """Key of the switch of the sliding window. Empty: the window is on wherever it has a size."""
    full_every: int = 0
    """Every layer of this number attends to all tokens, the others to a window. 0: all layers are alike."""
    fusible: bool = True
    """Whether transformers' code runs with PyTorch's fused attention."""
    sinks: bool = False
    """Whether each head has a learned sink of attention."""
    expert_bias: bool = False
    """Whether router and experts have biases, and gates are clamped (gpt-oss)."""
    dense_width: str = "intermediate_size"
    shared_width: str = ""
    """Key of the width of the expert that all tokens use; empty without one."""
    shared_gate: bool = False
    """Whether a gate weights that expert."""


@dataclass(frozen=True, slots=True)
class _Layer:
    windowed: bool
    sparse: bool
    rotated: bool = True


def build_decoders(settings: Settings) -> Model:
    traits, shape = _Traits(**settings.family.traits), shape_of(settings)
    layers = [_layer(settings, traits, index) for index in range(shape.layers)]
    blocks = {layer: _block(settings, traits, shape, layer) for layer in dict.fromkeys(layers)}
    model = decoder_model(
        settings,
        shape,
        groups_of([blocks[layer] for layer in layers]),
        final_parameters=0 if traits.norm == "plain-layer" else shape.hidden,
    )
    # The soft cap of the logits saves the output of its tanh.
    capped = settings.is_set("final_logit_softcapping") and model.head.kind == "language-model"
    return replace(model, outside_elements=float(shape.vocab)) if capped else model


def groups_of(blocks: list[Block]) -> tuple[BlockGroup, ...]:
    runs = [(block, len(list(run))) for block, run in groupby(blocks)]
    if len(runs) > _MOST_RUNS:
        runs = [(block, blocks.count(block)) for block in dict.fromkeys(blocks)]
    return tuple(BlockGroup(block=block, count=count) for block, count in runs)


def windowed_layers(settings: Settings) -> list[int]:
    """Return the indices of the layers with a window or chunks."""
    traits = _Traits(**settings.family.traits)
    return [index for index in range(shape_of(settings).layers) if _windowed(settings, traits, index)]


def _layer(settings: Settings, traits: _Traits, index: int) -> _Layer:
    rotated = not settings.is_set("no_rope_layer_interval") or _rotated(settings, index)
    return _Layer(
        windowed=_windowed(settings, traits, index),
        sparse="experts" in settings.family.shape_keys and _sparse(settings, index),
        rotated=rotated,
    )


_TYPES_ARE_IGNORED = frozenset({"mistral", "mixtral", "phi3", "qwen3_moe"})
"""Families whose models take no notice of `layer_types` in training: their caches alone follow it."""
_PATTERN_IS_READ = frozenset({"gemma3_text"})
_LAYERS_BEFORE_WINDOWS = 28
"""Default of `max_window_layers` in the configurations of Qwen."""


def _windowed(settings: Settings, traits: _Traits, index: int) -> bool:
    """Whether a layer has a window or chunks, as the model that transformers builds (measured with 5.24, 2026-11)."""
    family = settings.family.model_type
    kinds = settings.value("layer_types")
    if isinstance(kinds, list) and index < len(kinds) and family not in _TYPES_ARE_IGNORED:
        has_size = settings.is_set("attention_chunk_size") or settings.value("sliding_window")
        return bool(has_size and kinds[index] in ("sliding_attention", "chunked_attention"))
    if settings.is_set("attention_chunk_size"):
        return not settings.is_set("no_rope_layer_interval") or _rotated(settings, index)
    if not settings.is_set("sliding_window") or settings.value("sliding_window") == 0:
        return False
    if traits.full_every:
        own = settings.size("sliding_window_pattern", default=traits.full_every)
        return (index + 1) % (own if family in _PATTERN_IS_READ else traits.full_every) != 0
    if traits.window_flag == "use_sliding_window":
        last = settings.size("max_window_layers", default=_LAYERS_BEFORE_WINDOWS, least=0)
        at = {"qwen3_moe": True, "qwen2_moe": index < last and index % 2 == 0}.get(family, index >= last)
        return settings.flag("use_sliding_window") and at
    return True


def _rotated(settings: Settings, index: int) -> bool:
    marks = settings.value("no_rope_layers")
    if isinstance(marks, list) and index < len(marks):
        return bool(marks[index])
    return (index + 1) % settings.size("no_rope_layer_interval") != 0


def _sparse(settings: Settings, index: int) -> bool:
    """Return whether a layer has experts: by a list of dense or of sparse layers, or one layer in several."""
    listed = settings.value("moe_layers")
    if isinstance(listed, list):
        return index in listed
    dense = settings.value("mlp_only_layers")
    if isinstance(dense, list) and index in dense:
        return False
    key = "interleave_moe_layer_step" if settings.is_set("interleave_moe_layer_step") else "decoder_sparse_step"
    return (index + 1) % settings.size(key, default=1) == 0


def _block(settings: Settings, traits: _Traits, shape: Shape, layer: _Layer) -> Block:
    hidden = shape.hidden
    attend = _attention(settings, traits, shape, layer)
    mlp = _feed_forward(settings, traits, shape, layer)
    between = residual(hidden, dropout=settings.is_set("resid_pdrop") and settings.rate("resid_pdrop") > 0)
    before = (norm(hidden, traits.norm),) if traits.norms in {"before", "around"} else ()
    # A layer without a norm before it still saves its input, which the residual stream does not keep otherwise.
    inputs = (Part(replicated_elements=hidden, weight_replicated_elements=hidden),) if traits.norms == "after" else ()
    after = (norm(hidden, traits.norm, output_saved=False),) if traits.norms in {"after", "around"} else ()
    kind = "mixture-of-experts decoder" if layer.sparse else "decoder"
    return assemble(kind, hidden, (*before, *inputs, *attend, *after, between, *before, *inputs, *mlp, *after, between))


def _attention(settings: Settings, traits: _Traits, shape: Shape, layer: _Layer) -> tuple[Part, ...]:
    heads, kv_heads = shape.heads, shape.kv_heads
    head_dim = settings.head_dim(shape.hidden, heads, "head_dim")
    every = bool(traits.biases) and settings.value(traits.biases) is True
    own = settings.value(traits.qkv_bias) is True if isinstance(traits.qkv_bias, str) else traits.qkv_bias
    window = "attention_chunk_size" if settings.is_set("attention_chunk_size") else "sliding_window"
    capped = settings.is_set("attn_logit_softcapping")
    attend = attention(
        shape.hidden,
        heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        qkv_bias=every or own,
        output_bias=every,
        window=settings.size(window) if layer.windowed else None,
        dropout=settings.rate("attention_dropout") > 0,
        rotary_dim=head_dim if layer.rotated else 0,
        joint=traits.joint,
        partly_rotated=traits.joint,
        fusible=traits.fusible,
        # gpt-oss and Llama 4 keep the softmax in 16 bits.
        scores_in_fp32=not traits.sinks and traits.query_key_norm != "l2",
        # Softmax in fp32, its 16-bit copy and the output of tanh; softmax without the sink, and its copy.
        score_bytes=8.0 if capped else 4.0 if traits.sinks else None,
    )
    queries, keys = heads * head_dim, kv_heads * head_dim
    parts = [attend]
    if traits.query_key_norm and (traits.query_key_norm != "l2" or (layer.rotated and settings.flag("use_qk_norm"))):
        weights = {"head": 2 * head_dim, "full": queries + keys, "l2": 0}[traits.query_key_norm]
        parts.append(head_norm(queries + keys, traits.norm, weights=weights))
    if traits.sinks:
        parts.append(Part(replicated_parameters=heads))
    if settings.is_set("clip_qkv"):  # the clamp saves its input
        parts.append(Part(split_elements=queries + 2 * keys))
    return tuple(parts)


def _feed_forward(settings: Settings, traits: _Traits, shape: Shape, layer: _Layer) -> tuple[Part, ...]:
    function = settings.activation(settings.family.shape_keys["activation"])
    if not layer.sparse:
        biases = bool(traits.mlp_biases) and settings.value(traits.mlp_biases) is True
        return (gated_feed_forward(shape.hidden, settings.size(traits.dense_width), function, bias=biases),)
    experts = gated_experts(
        shape.hidden, shape.ffn, function, shape.experts, shape.experts_per_token, clamped=traits.expert_bias
    )
    if not traits.shared_width:
        return (experts,)
    shared = gated_feed_forward(shape.hidden, settings.size(traits.shared_width), function)
    if not traits.shared_gate:
        return experts, shared
    gate = Part(replicated_parameters=shape.hidden, replicated_elements=shape.hidden)  # it saves the expert's output
    return experts, shared, gate


def build_deepseek(settings: Settings) -> Model:
    shape = shape_of(settings)
    hidden, function = shape.hidden, settings.activation("hidden_act")
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
    """Attention with queries, keys and values from two small latents."""
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
