"""GPU boards by name, in and outside the instance table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING

from smp_advisor.cluster.boards import board_rows
from smp_advisor.cluster.table import instances
from smp_advisor.errors import ClusterError

if TYPE_CHECKING:
    from smp_advisor.cluster.instance import Instance

__all__ = ["Gpu", "gpu", "gpus"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU board with the figures of its data sheet.

    Examples
    --------
    >>> gpu("A100-80GB").peak_tflops
    312.0
    """

    name: str
    """Model and memory: ``A100-80GB``."""
    gpu: str
    """Name of the board in the instance table."""
    architecture: str
    """Compute capability: ``8.0``."""
    gpu_memory_gib: float
    usable_gpu_memory_gib: float
    """Memory that the driver reports as free before the CUDA context."""
    peak_tflops: float
    """Dense 16-bit peak, with fp32 accumulation where that is slower."""
    fp8_tflops: float
    """Dense 8-bit peak; 0 without 8-bit products."""
    bf16: bool
    hbm_gb_per_s: float
    nvlink_gb_per_s: float
    """Per GPU, sum of both directions; 0 without NVLink."""
    pcie_gb_per_s: float
    """Per GPU, sum of both directions."""
    host_link_gb_per_s: float
    """Host copy, one direction."""
    board_watts: float
    """Power limit."""


@cache
def gpus() -> tuple[Gpu, ...]:
    """Every board of the table. Figures in the instance table have priority."""
    machines = {entry.gpu: entry for entry in instances()}
    return tuple(_gpu(row, machines.get(row["gpu"])) for row in board_rows().values())


def gpu(name: str) -> Gpu:
    """Board by its name, with any spaces and hyphens: ``A100-80GB``, ``NVIDIA A100 80 GB``, ``rtx 4090``.

    The memory may be omitted for a board that has one size only.
    """
    key = _key(name)
    table = gpus()
    exact = [board for board in table if key in {_key(board.name), _key(board.gpu)}]
    if not exact:
        exact = [board for board in table if _key(board.name.rsplit("-", 1)[0]) == key]
    if len(exact) == 1:
        return exact[0]
    near = exact or [board for board in table if board.name in get_close_matches(name, [b.name for b in table], n=3)]
    hint = ", ".join(board.name for board in near) or ", ".join(board.name for board in table[:3])
    raise ClusterError(
        f"Unknown GPU {name!r}: supported are, for example, {hint}; Cluster.custom(...) accepts any figures."
    )


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", re.sub(r"nvidia|geforce|sxm\d?|hbm\w*", "", name.lower()))


def _gpu(row: dict[str, str], machine: Instance | None) -> Gpu:
    def figure(field: str) -> float:
        if row[field]:
            return float(row[field])
        if machine is None:
            raise ValueError(f"{row['name']} has no {field} and is in no instance")
        return float(getattr(machine, field))

    return Gpu(
        name=row["name"],
        gpu=row["gpu"],
        architecture=row["architecture"],
        gpu_memory_gib=figure("gpu_memory_gib"),
        usable_gpu_memory_gib=figure("usable_gpu_memory_gib"),
        peak_tflops=figure("peak_tflops"),
        fp8_tflops=float(row["fp8_tflops"]),
        bf16=row["bf16"] == "yes" if machine is None else machine.bf16,
        hbm_gb_per_s=figure("hbm_gb_per_s"),
        nvlink_gb_per_s=float(row["nvlink_gb_per_s"]),
        pcie_gb_per_s=float(row["pcie_gb_per_s"]),
        host_link_gb_per_s=figure("host_link_gb_per_s"),
        board_watts=float(row["board_watts"]),
    )
