"""Kind of training code of a row."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .table import Row

__all__ = ["kernel_of_row", "stack_of_row"]


@cache
def _entries() -> tuple[tuple[str, str, str], ...]:
    text = (Path(__file__).parent / "data" / "stacks.toml").read_text(encoding="utf-8")
    return tuple(
        (str(entry["framework"]), str(entry.get("attention", "")), str(entry["stack"]))
        for entry in tomllib.loads(text)["row"]
    )


_KERNELS = {"attn 3": "flash-3", "cudnn": "cudnn", "attn 2": "flash-2", "flash2": "flash-2", "attention_2": "flash-2"}
"""Kernels of fused attention by words of the column, as a user would name them."""


def kernel_of_row(row: Row) -> str:
    """`Job.attention_kernel` of a row, from its column."""
    attention = row.text("attention")
    return next((kernel for words, kernel in _KERNELS.items() if words in attention), "auto")


def stack_of_row(row: Row) -> str:
    """`Job.stack` of a row: by its framework, else by its attention."""
    framework, attention = row.text("framework"), row.text("attention")
    for pattern, kernel, name in _entries():
        if pattern in framework and kernel in attention:
            return name
    if row.text("attention_class").startswith("eager"):
        return "hf-eager"
    return "hf-flash-2" if "2" in attention and attention.startswith("flash") else "hf-sdpa"
