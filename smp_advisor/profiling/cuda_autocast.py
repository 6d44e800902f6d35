"""CUDA's autocast rules on the CPU: operators that stay in fp32 under ``torch.autocast``.

On the CPU, autocast runs layer norms, softmax and losses in 16 bits. The rules are from PyTorch
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
                    operator = _operator(name)
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
