"""CUDA's autocast rules on the CPU: which operators stay in fp32 under ``torch.autocast``.

Autocast on the CPU leaves layer norms, softmax and losses in 16 bits. The rules are PyTorch's
(aten/src/ATen/autocast_mode.h).
"""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["cuda_autocast_rules"]

_IN_FP32 = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm frobenius_norm.dim nuclear_norm
nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d
hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss
multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits
dist pdist cdist renorm logsumexp
""".split()  # noqa: SIM905 - a list of 44 lines says no more
_WITH_FP32_RESULT = """
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm sum sum.dim_IntList
""".split()  # noqa: SIM905 - a list of 44 lines says no more
_LOW = (torch.bfloat16, torch.float16)


@contextlib.contextmanager
def cuda_autocast_rules() -> Iterator[None]:
    """``torch.autocast("cpu")`` follows CUDA's rules within the block, in the whole process."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a rule of the CPU is overridden is meant
            for name in _IN_FP32:
                operator = _operator(name)
                if operator is not None:
                    _override(library, name, _in_fp32(operator))
            for name in _WITH_FP32_RESULT:
                operator = _operator(name)
                if operator is not None:
                    _override(library, name, _with_fp32_result(operator))
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]


def _override(library: Any, name: str, rule: Callable[..., Any]) -> None:
    try:
        library.impl(name, rule, "AutocastCPU", allow_override=True)
    except TypeError:  # before PyTorch 2.8 it needed no leave
        library.impl(name, rule, "AutocastCPU")


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


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
    place = [argument.name for argument in operator._schema.arguments].index("dtype")

    def run(*arguments: Any, **keywords: Any) -> Any:
        given = list(arguments)
        current = given[place] if place < len(given) else keywords.get("dtype")
        if current is None and given[0].dtype in _LOW:
            if place < len(given):
                given[place] = torch.float32
            else:
                keywords["dtype"] = torch.float32
        with _without_autocast():
            return operator(*given, **keywords)

    return run
