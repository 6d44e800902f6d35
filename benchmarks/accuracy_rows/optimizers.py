"""The optimizer column of a row: optimizer state, and storage of gradients."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smp_advisor.workload.job import OptimizerName

    from .table import Row

__all__ = ["OptimizerColumn", "leaves_optimizer_open", "optimizer_column"]


@dataclass(frozen=True, slots=True)
class OptimizerColumn:
    """Optimizer and gradients of a run."""

    optimizer: OptimizerName
    state_bits: int | None
    """Bits per moment; None if not in the column."""
    gradient_bits: int | None
    """Bits per accumulated gradient; None if not in the column."""
    fp32_accumulation: bool
    """Whether fp32 gradients are accumulated in addition to 16-bit ones."""
    master_gradients: bool
    """Whether there are fp32 copies of parameters and gradients (20 bytes per parameter with Adam)."""
    deepspeed: bool
    """Whether DeepSpeed's optimizer runs."""
    fused: bool = False
    """Whether the update is one kernel for many parameters."""


def optimizer_column(row: Row) -> OptimizerColumn:
    """Read the optimizer column. The default is Adam."""
    text = row.text("optimizer")
    return OptimizerColumn(
        optimizer=_optimizer(text),
        state_bits=_bits(text, r"states?"),
        gradient_bits=_bits(text, r"grad(?:ient)?s?"),
        fp32_accumulation="bf16_optimizer" in text or "+4 b/param" in text,
        master_gradients="20 b/param" in text or "main grad" in text,
        deepspeed="deepspeed" in text,
        fused=re.search(r"\bfused", text) is not None,
    )


def leaves_optimizer_open(row: Row) -> bool:
    """Whether the column refers to the optimizer of the library's recipe."""
    return "per recipe" in row.text("optimizer") or "variant" in row.text("optimizer")


def _optimizer(text: str) -> OptimizerName:
    if "adafactor" in text:
        return "adafactor"
    if "adam" in text or not text:
        return "adam-8bit" if re.search(r"8[- ]?bit", text) else "adam"
    if "lion" in text:
        return "lion"
    if "sgd" in text:
        return "sgd" if "momentum" in text else "plain-sgd"
    return "adam"


def _bits(text: str, of: str) -> int | None:
    match = re.search(rf"(bf16|fp16|fp32)\s+{of}\b", text)
    return None if match is None else (32 if match.group(1) == "fp32" else 16)
