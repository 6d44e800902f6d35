"""GPT-2 and the decoders that follow it. They differ in norms, biases, positions and attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.workload.block import assemble
from smp_advisor.workload.families import decoder_model, shape_of
from smp_advisor.workload.layers import activation, attention, feed_forward, norm, residual

if TYPE_CHECKING:
    from smp_advisor.workload.block import Part
    from smp_advisor.workload.layers import Activation
    from smp_advisor.workload.model import Model, Shape
    from smp_advisor.workload.settings import Settings

_OPT_POSITION_OFFSET = 2
"""Rows of OPT's position table before the first position."""


def _decoder(
    settings: Settings,
    shape: Shape,
    function: Activation,
    dropouts: tuple[str, str],
    attend: dict[str, Any],
    *,
    parallel: bool = False,
    shared_norm: bool = False,
    bias: bool = True,
    affine: bool = True,
    **model: Any,
) -> Model:
    """Equal blocks; layers with a `shared_norm`, which only a sum follows, share one all-reduce."""
    hidden, heads = shape.hidden, shape.heads
    of_scores, of_stream = (settings.rate(key) > 0 for key in dropouts)
    layer = attention(hidden, heads, head_dim=settings.head_dim(hidden, heads), dropout=of_scores, **attend)
    mlp = feed_forward(hidden, shape.ffn, function, up_bias=bias, down_bias=bias)
    between = residual(hidden, dropout=of_stream)
    # The position of the norms changes neither saved tensors nor counts.
    second = () if shared_norm else (norm(hidden, affine=affine, input_saved=not parallel),)
    parts = (norm(hidden, affine=affine), layer, between, *second, mlp, between)
    kind = "parallel decoder" if parallel or shared_norm else "decoder"
    return decoder_model(settings, shape, assemble(kind, hidden, parts, all_reduces=1 if shared_norm else 2), **model)


def build_gpt2(settings: Settings) -> Model:
    """GPT-2 and GPT-3: learned positions, norms before each layer, one feed-forward layer four times as wide."""
    shape = shape_of(settings, max_positions=settings.size("n_positions"))
    settings.refuse_cross_attention()
    function = settings.activation("activation_function")
    return _decoder(settings, shape, function, ("attn_pdrop", "resid_pdrop"), {"joint": True})


def build_gpt_neo(settings: Settings) -> Model:
    """GPT-Neo: GPT-2 with every second attention masked to a window and no bias on q, k and v."""
    shape = shape_of(settings, max_positions=settings.size("max_position_embeddings"))
    if _layers_of(settings.value("attention_types")) != shape.layers:
        raise settings.error(f"attention_types must describe each of the {shape.layers} layers of num_layers")
    # Local layers mask full score matrices, so their windows reduce neither memory nor time.
    attend = {"qkv_bias": False, "fusible": False, "scores_in_fp32": True}
    function = settings.activation("activation_function")
    return _decoder(settings, shape, function, ("attention_dropout", "resid_dropout"), attend)


def _layers_of(types: object) -> int | None:
    """Return the number of layers in ``attention_types``. Each entry is a pattern and its number of repeats."""
    try:
        return sum(len(pattern) * times for pattern, times in types)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return None


def build_gptj(settings: Settings) -> Model:
    """GPT-J: parallel attention and feed-forward layer after one norm, rotary positions, an output with a bias."""
    shape = shape_of(settings)
    attend = {
        "qkv_bias": False,
        "output_bias": False,
        "rotary_dim": settings.size("rotary_dim", default=settings.head_dim(shape.hidden, shape.heads)),
        "upcast_queries": True,
        "fusible": False,
        "scores_in_fp32": True,
    }
    function, dropouts = settings.activation("activation_function"), ("attn_pdrop", "resid_pdrop")
    return _decoder(settings, shape, function, dropouts, attend, shared_norm=True, head_bias=True)


def _partly_rotated(settings: Settings, shape: Shape, key: str) -> dict[str, Any]:
    """Rotation of a share of each head. transformers 5 stores it with the other rotary parameters."""
    rope = settings.value("rope_parameters")
    share = rope.get("partial_rotary_factor") if isinstance(rope, dict) else None
    rotated_share = share if isinstance(share, int | float) and 0 <= share <= 1 else settings.rate(key)
    rotated = int(settings.head_dim(shape.hidden, shape.heads) * rotated_share)
    return {"rotary_dim": rotated, "partly_rotated": True, "scores_in_fp32": True}


def build_gpt_neox(settings: Settings) -> Model:
    """GPT-NeoX and Pythia: two norms on one input feed attention and feed-forward layer, partly rotary positions."""
    shape, bias = shape_of(settings), settings.flag("attention_bias")
    attend = _partly_rotated(settings, shape, "rotary_pct") | {"joint": True, "qkv_bias": bias, "output_bias": bias}
    function, dropouts = settings.activation("hidden_act"), ("attention_dropout", "hidden_dropout")
    return _decoder(settings, shape, function, dropouts, attend, parallel=settings.flag("use_parallel_residual"))


def build_phi(settings: Settings) -> Model:
    """Phi-1.5 and Phi-2: parallel attention and feed-forward layer after one norm, an output with a bias."""
    if settings.flag("qk_layernorm"):
        raise settings.error("qk_layernorm is not supported: profile the module")
    shape = shape_of(settings)
    attend = _partly_rotated(settings, shape, "partial_rotary_factor") | {"kv_heads": shape.kv_heads}
    function, dropouts = settings.activation("hidden_act"), ("attention_dropout", "resid_pdrop")
    return _decoder(settings, shape, function, dropouts, attend, shared_norm=True, head_bias=True)


def build_bloom(settings: Settings) -> Model:
    """BLOOM: GPT's blocks with linear position biases (ALiBi) and a norm after the token table."""
    shape = shape_of(settings)
    # Linear position biases are added to the scores.
    attend = {"joint": True, "fusible": False, "scores_in_fp32": True}
    # Its own GELU saves only its input and recomputes the rest in the backward pass, like the fused form.
    dropouts = ("attention_dropout", "hidden_dropout")
    return _decoder(settings, shape, activation("gelu"), dropouts, attend, input_parameters=2 * shape.hidden)


def build_opt(settings: Settings) -> Model:
    """OPT: GPT-3's blocks with ReLU. The 350M model has a narrower token table and norms after the layers."""
    shape = shape_of(settings, max_positions=settings.size("max_position_embeddings") + _OPT_POSITION_OFFSET)
    hidden, bias = shape.hidden, settings.flag("enable_bias")
    affine = settings.flag("layer_norm_elementwise_affine")
    token_width = settings.size("word_embed_proj_dim", default=hidden)
    projection = token_width * hidden if token_width != hidden else 0
    final_norm = settings.flag("do_layer_norm_before") and not settings.flag("_remove_final_layer_norm")
    return _decoder(
        settings,
        shape,
        settings.activation("activation_function"),
        ("attention_dropout", "dropout"),
        {"qkv_bias": bias, "output_bias": bias, "scores_in_fp32": True},
        bias=bias,
        affine=affine,
        input_parameters=projection,
        final_parameters=(2 * hidden if final_norm and affine else 0) + projection,
        token_width=token_width,
    )


def build_falcon(settings: Settings) -> Model:
    """Falcon: parallel attention and feed-forward layer, one or few key-value heads. 40B and 180B have two norms."""
    grouped, heads = settings.flag("new_decoder_architecture"), settings.size("num_attention_heads")
    fixed = {} if grouped else {"kv_heads": 1 if settings.flag("multi_query") else heads}
    shape = shape_of(settings, **fixed)
    hidden, head_dim = shape.hidden, settings.head_dim(shape.hidden, heads)
    bias, parallel, alibi = (settings.flag(key) for key in ("bias", "parallel_attn", "alibi"))
    # Without ALiBi, Falcon's code ignores the configured dropout of the scores.
    attend = attention(
        hidden,
        heads,
        joint=True,
        kv_heads=shape.kv_heads,
        head_dim=head_dim,
        qkv_bias=bias,
        output_bias=bias,
        dropout=alibi and settings.rate("attention_dropout") > 0,
        rotary_dim=0 if alibi else head_dim,
        expanded_keys=True,
    )
    mlp = feed_forward(hidden, shape.ffn, settings.activation("activation"), up_bias=bias, down_bias=bias)
    last = residual(hidden, dropout=settings.rate("hidden_dropout") > 0)
    parts: tuple[Part, ...]
    if not parallel:
        # Here the code applies `attention_dropout` to the attention's output.
        between = residual(hidden, dropout=settings.rate("attention_dropout") > 0)
        parts = (norm(hidden), attend, between, norm(hidden), mlp, last)
    else:
        norms = settings.size("num_ln_in_parallel_attn", default=2 if grouped else 1)
        second = (norm(hidden, input_saved=False),) if norms == 2 else ()
        parts = (norm(hidden), *second, attend, residual(hidden, dropout=False), mlp, last)
    # A parallel block adds the outputs of both layers, so it needs a single all-reduce.
    kind, all_reduces = ("parallel decoder", 1) if parallel else ("decoder", 2)
    return decoder_model(settings, shape, assemble(kind, hidden, parts, all_reduces=all_reduces))
