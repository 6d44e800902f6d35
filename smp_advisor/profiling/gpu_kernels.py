"""GPU kernels in a trace on fake CPU tensors.

Without a GPU, PyTorch decomposes attention and dropout into operations that save different tensors. This module calls
the operators that CUDA would dispatch to, which fake tensors support. The saved bytes of ten models in bf16 agree
within 0.1 % with fake CUDA tensors of a CUDA build.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import sys
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.utils._pytree import tree_map

from smp_advisor.libraries.version import transformers_families
from smp_advisor.profiling.patching import patched
from smp_advisor.profiling.recurrent_kernels import on_fake, recurrent_kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_FLASH_MAX_HEAD_DIM = 256
_ATTENTION = F.scaled_dot_product_attention
_ATEN = torch.ops.aten


@contextlib.contextmanager
def gpu_kernels(
    attention: str,
    on_attention: Callable[[Tensor, Tensor, Tensor, bool, float], None],
    on_launches: Callable[[int], None] = lambda _: None,
) -> Iterator[None]:
    """Run attention, dropout, recurrent layers and mask creation as on a GPU."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,  # noqa: FBT001, FBT002 - PyTorch's signature
        scale: float | None = None,
        enable_gqa: bool = False,  # noqa: ARG001, FBT001, FBT002
    ) -> Tensor:
        on_attention(query, key, value, is_causal, dropout_p)
        if attention == "fused" and torch.is_autocast_enabled("cpu"):
            # Autocast runs attention in 16 bits, but does not apply to the kernels called below.
            low = torch.get_autocast_dtype("cpu")
            query, key, value = (of.to(low) if of.is_floating_point() else of for of in (query, key, value))
        kernel = _fused if attention == "fused" and query.ndim == 4 else _eager
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        return kernel(_Call(query, key, value, attn_mask, dropout_p, is_causal, scale))

    masking = _loaded("transformers.masking_utils")
    experts = _loaded("transformers.integrations.moe")
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (F, "dropout", _dropout),
            (torch, "dropout", _dropout),
            (F, "softmax", _softmax if attention == "eager" else F.softmax),
            (F, "scaled_dot_product_attention", attend),
            (torch._C._nn, "scaled_dot_product_attention", attend),
            # The original reads position values to find packed sequences; without them no mask is materialized.
            (masking, "find_packed_sequence_indices", lambda *_, **__: None),
            (experts, "_grouped_mm", _grouped_product(getattr(experts, "_grouped_mm", None))),
        ):
            stack.enter_context(patched(owner, name, value))
        stack.enter_context(recurrent_kernels(on_launches))
        yield


_SOFTMAX = F.softmax
_SOFTMAX_FORMS = {
    f"transformers.models.{family.replace('-', '_')}.modeling_{family.replace('-', '_')}": entry.softmax
    for family, entry in transformers_families().items()
    if entry.softmax
}
"""Precision of the softmax in the releases that jobs install, by module, where later releases have another."""


def _softmax(scores: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax of eager attention, in the precision of the transformers release that jobs install."""
    form = _SOFTMAX_FORMS.get(sys._getframe(1).f_globals.get("__name__", ""))
    if form is None or scores.ndim != 4:
        return _SOFTMAX(scores, dim, _stacklevel + 1, dtype)
    if form == "fp32":
        return _SOFTMAX(scores.float(), dim).type_as(scores)
    return _SOFTMAX(scores, dim)


def _loaded(name: str) -> Any:
    """Module of a package, or None if the traced model has not imported the package."""
    package = name.split(".", maxsplit=1)[0]
    if package not in sys.modules:
        return None
    try:
        return importlib.import_module(name)
    except ImportError:  # older releases
        return None


class _Call(NamedTuple):
    """Arguments of scaled_dot_product_attention."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout: float
    causal: bool
    scale: float


def _fused(call: _Call) -> Tensor:
    """Return the kernel that scaled_dot_product_attention selects on a recent GPU."""
    query, key, value, mask, dropout, causal, scale = call
    width = query.shape[-1]
    flash = mask is None and query.dtype != torch.float32 and value.shape[-1] == width and width <= _FLASH_MAX_HEAD_DIM
    if not on_fake(query):  # the CPU's fused kernel, which saves the same tensors; a GPU draws dropout again
        key, value = _for_every_head(query, key, value)
        return _ATTENTION(query, key, value, mask, 0.0, causal, scale=scale)
    if not flash:
        return _efficient(call)
    padding = -width % 8  # the kernel requires widths that are multiples of 8
    if padding:
        query, key, value = (F.pad(tensor, (0, padding)) for tensor in (query, key, value))
    result: Tensor = _ATEN._scaled_dot_product_flash_attention(
        query, key, value, dropout, causal, return_debug_mask=False, scale=scale
    )[0]
    return result[..., :width] if padding else result


def _efficient(call: _Call) -> Tensor:
    """Return the memory-efficient kernel, which requires equal head counts and an additive mask with aligned rows."""
    query, key, value, mask, dropout, causal, scale = call
    key, value = _for_every_head(query, key, value)
    bias = mask
    if mask is not None:
        if mask.dtype == torch.bool:
            bias = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
        else:
            bias = mask.to(query.dtype)
        if bias.shape[-1] % 16:
            bias = F.pad(bias, (0, -bias.shape[-1] % 16))[..., : mask.shape[-1]]
        bias = bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    result: Tensor = _ATEN._scaled_dot_product_efficient_attention(
        query, key, value, bias, compute_log_sumexp=True, dropout_p=dropout, is_causal=causal, scale=scale
    )[0]
    return result


def _for_every_head(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat keys and values for the query heads that share them."""
    if query.ndim < 3 or key.shape[-3] == query.shape[-3]:
        return key, value
    groups = query.shape[-3] // key.shape[-3]
    return key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)


def _eager(call: _Call) -> Tensor:
    """Attention as products and a softmax, in the dtype of the query."""
    query, key, value, mask, dropout, causal, scale = call
    key, value = _for_every_head(query, key, value)
    scores = query @ key.transpose(-2, -1) * scale
    if causal:
        hidden = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), float("-inf")) if mask.dtype == torch.bool else scores + mask
    return _dropout(torch.softmax(scores, dim=-1), dropout) @ value


def _dropout(
    input: Tensor,  # noqa: A002 - PyTorch's signature
    p: float = 0.5,
    training: bool = True,  # noqa: FBT001, FBT002
    inplace: bool = False,  # noqa: FBT001, FBT002
) -> Tensor:
    """Dropout with the fused kernel, which saves a mask of one byte per element."""
    if not training or p == 0:
        return input
    dropped: Tensor = torch.native_dropout(input, p, train=True)[0]
    return input.copy_(dropped) if inplace else dropped


def _grouped_product(original: Any) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Product of rows grouped by expert; in some releases PyTorch's operator rejects fake tensors of mixed dtypes."""

    def product(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:  # noqa: A002 - transformers' signature
        if not on_fake(input):
            result: Tensor = original(input, weight, offs)
            return result
        return cast("Tensor", _GroupedProduct.apply(input.to(weight.dtype), weight, offs))  # type: ignore[no-untyped-call]

    return product


class _GroupedProduct(torch.autograd.Function):
    """Shapes, saved tensors and FLOPs of a grouped product: each row is multiplied with one expert's weight."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight, offsets)
        return rows @ weight[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, Tensor | None, None]:
        rows, weight, _ = ctx.saved_tensors
        (gradient,) = gradients
        rows_gradient = gradient @ weight[0].transpose(-2, -1) if ctx.needs_input_grad[0] else None
        weight_gradient = None
        if ctx.needs_input_grad[1]:
            weight_gradient = torch.empty_like(weight)
            weight_gradient[0] = rows.transpose(-2, -1) @ gradient
        return rows_gradient, weight_gradient, None


@contextlib.contextmanager
def without_initialization() -> Iterator[None]:
    """Skip weight initialization: the values are unused, and some initializers fail on fake tensors."""
    modules = [torch.nn.init, _loaded("transformers.initialization")]
    with contextlib.ExitStack() as stack:
        for module in modules:
            names = [] if module is None else [n for n in vars(module) if n.endswith("_") and not n.startswith("_")]
            for name in names:
                if callable(getattr(module, name)):
                    stack.enter_context(patched(module, name, lambda tensor, *_, **__: tensor))
        yield


_IN_FP32 = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm frobenius_norm.dim nuclear_norm
nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d
hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss
multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits
dist pdist cdist renorm logsumexp
""".split()  # noqa: SIM905 - a list would take 44 lines
_WITH_FP32_RESULT = """
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm sum sum.dim_IntList
""".split()  # noqa: SIM905 - a list would take 44 lines
_LOW = (torch.bfloat16, torch.float16)


@contextlib.contextmanager
def cuda_autocast_rules() -> Iterator[None]:
    """Make ``torch.autocast("cpu")`` follow CUDA's rules inside the block, for the entire process."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # overriding a CPU rule is intended
            for names, rule in ((_IN_FP32, _in_fp32), (_WITH_FP32_RESULT, _with_fp32_result)):
                for name in names:
                    packet, _, overload = name.partition(".")
                    operator = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
                    if operator is not None:
                        _override(library, name, rule(operator))
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]


def _override(library: Any, name: str, rule: Callable[..., Any]) -> None:
    try:
        library.impl(name, rule, "AutocastCPU", allow_override=True)
    except TypeError:  # before PyTorch 2.8 there was no such argument
        library.impl(name, rule, "AutocastCPU")


def _without_autocast() -> Any:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    return torch._C._ExcludeDispatchKeyGuard(keys)


def _in_fp32(operator: Any) -> Callable[..., Any]:
    def upcast(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and value.dtype in _LOW else value

    def run(*arguments: Any, **keywords: Any) -> Any:
        with _without_autocast():
            return operator(*tree_map(upcast, arguments), **tree_map(upcast, keywords))

    return run


def _with_fp32_result(operator: Any) -> Callable[..., Any]:
    position = [argument.name for argument in operator._schema.arguments].index("dtype")

    def run(*arguments: Any, **keywords: Any) -> Any:
        values = list(arguments)
        dtype = values[position] if position < len(values) else keywords.get("dtype")
        if dtype is None and values[0].dtype in _LOW:
            if position < len(values):
                values[position] = torch.float32
            else:
                keywords["dtype"] = torch.float32
        with _without_autocast():
            return operator(*values, **keywords)

    return run
