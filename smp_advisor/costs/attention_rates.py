"""Rates of fused attention kernels by version, GPU, width of a head and length of the sequence.

``data/attention.csv`` has the TFLOPS that Shah et al. 2024 (arXiv 2407.08608, figures 5 and 6) measured on an H100 SXM5
with 16,384 tokens per kernel, read on 2026-11-22. The cost model uses their ratios. The level, the rate without a mask
at the longest sequence and 128 elements per head as a share of the GPU's peak, is a constant per kernel and GPU.
"""

from __future__ import annotations

import csv
import math
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Literal

import numpy as np

from smp_advisor.costs.constants import gpu_constant, has_gpu_constant
from smp_advisor.elementwise import minimum

if TYPE_CHECKING:
    from collections.abc import Mapping

    Kernel = Literal["flash-1", "flash-2", "flash-3", "cudnn"]
    from smp_advisor.elementwise import Floats

    Pass = Literal["forward", "backward"]

__all__ = ["share_of_peak"]

_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
_REFERENCE = (128, False, "forward")


@cache
def _measured() -> Mapping[tuple[str, int, bool, str], tuple[float, ...]]:
    """TFLOPS at `_LENGTHS` by kernel, width, mask and pass."""
    with (files("smp_advisor.costs") / "data" / "attention.csv").open(encoding="utf-8") as table:
        return {
            (row["kernel"], int(row["head_dim"]), row["causal"] == "yes", row["pass"]): tuple(
                float(row[str(length)]) for length in _LENGTHS
            )
            for row in csv.DictReader(table)
        }


def _at_length(rates: tuple[float, ...], length: int) -> float:
    """Rate at a length. Below the shortest measured one, it falls with the square root of the length."""
    shortest = min(length / _LENGTHS[0], 1.0)
    rate = float(np.interp(np.log2(max(length, 1)), np.log2(_LENGTHS), rates))
    return rate * math.sqrt(shortest)


@cache
def _relative(kernel: str, head_dim: int, *, causal: bool, of: str, length: int) -> float:
    """Rate relative to the kernel's reference, interpolated in the logarithms of width and length."""
    table = _measured()
    if kernel == "flash-1":
        kernel = "flash-2"  # no curve of the first version was published for this GPU
    reference = table[kernel, *_REFERENCE][-1]
    if (kernel, 128, causal, of) not in table:
        # A causal backward pass was not published: its mask costs it the share that it costs the forward pass.
        unmasked = _relative(kernel, head_dim, causal=False, of=of, length=length)
        masked, full = (_relative(kernel, head_dim, causal=mask, of="forward", length=length) for mask in (True, False))
        return unmasked * masked / full
    widths = sorted(width for name, width, mask, which in table if (name, mask, which) == (kernel, causal, of))
    rates = [_at_length(table[kernel, width, causal, of], length) for width in widths]
    return float(np.interp(np.log2(max(head_dim, 1)), np.log2(widths), rates)) / reference


def share_of_peak(kernel: Kernel, gpu: str, head_dim: int, length: int, *, causal: bool, of: Pass) -> Floats:
    """Rate of one kernel as a share of the GPU's dense peak in 16 bits.

    Parameters
    ----------
    head_dim
        Elements per head.
    length
        Keys that a query reaches: the tokens of the sequence, or the window.
    """
    name = f"{kernel.replace('-', '_')}_efficiency"
    if kernel == "flash-3" and not has_gpu_constant(name, gpu):
        kernel, name = "flash-2", "flash_2_efficiency"  # it exists for Hopper only
    return minimum(gpu_constant(name, gpu) * _relative(kernel, head_dim, causal=causal, of=of, length=length), 0.95)
