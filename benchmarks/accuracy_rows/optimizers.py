"""Bytes of optimizer state and gradients, from the optimizer column."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smp_advisor.workload.optimizer import OptimizerName

    from .table import Row

__all__ = ["Keeping", "keeping", "leaves_optimizer_open"]


@dataclass(frozen=True, slots=True)
class Keeping:
    """State of a run in addition to its parameters."""

    optimizer: OptimizerName
    state_bits: int | None
    """Of a moment, if the column states it."""
    gradient_bits: int | None
    """Of an accumulated gradient, if the column states it."""
    fp32_beside: bool
    """Whether fp32 gradients are accumulated in addition to 16-bit ones."""
    master_gradients: bool
    """Whether fp32 copies of parameters and of gradients are kept (20 bytes per parameter with Adam)."""
    deepspeed: bool
    """Whether DeepSpeed's optimizer runs."""


def keeping(row: Row) -> Keeping:
    """Read the optimizer column; an empty one means Adam."""
    text = row.text("optimizer")
    return Keeping(
        optimizer=_optimizer(text),
        state_bits=_bits(text, r"states?"),
        gradient_bits=_bits(text, r"grad(?:ient)?s?"),
        fp32_beside="bf16_optimizer" in text or "+4 b/param" in text,
        master_gradients="20 b/param" in text or "main grad" in text,
        deepspeed="deepspeed" in text,
    )


def leaves_optimizer_open(row: Row) -> bool:
    """Whether the column leaves the optimizer to the library's own recipe."""
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
    found = re.search(rf"(bf16|fp16|fp32)\s+{of}\b", text)
    return None if found is None else (32 if found.group(1) == "fp32" else 16)
