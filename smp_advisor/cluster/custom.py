"""Hardware outside the instance table: figures from the user, the others from the most similar GPU in the table."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, TypedDict

from smp_advisor.cluster.instance import Instance
from smp_advisor.cluster.table import instances
from smp_advisor.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["OptionalFigures", "custom_instance", "most_similar"]

PCIE_GB_PER_S = 128
"""PCIe Gen5 x16, sum of both directions. A faster link between GPUs must be NVLink."""


class OptionalFigures(TypedDict, total=False):
    """Figures of custom hardware that default to those of the most similar GPU."""

    gpu_memory_gib: float
    """Nominal memory per GPU."""
    fp8_tflops: float
    """Dense 8-bit peak; 0 for none."""
    board_watts: float
    hbm_gb_per_s: float
    host_memory_gib: float
    """Per node."""
    host_link_gb_per_s: float
    """Host copy per GPU, one direction."""
    vcpus: int
    """Per node."""
    nvlink: bool
    """Whether NVLink connects the GPUs of a node. Default: assumed from the link's bandwidth."""
    efa: bool
    gpudirect_rdma: bool
    bf16: bool
    usd_per_hour: float
    """Per node."""
    name: str


_UNITS = {
    "usable_gpu_memory_gib": "GiB",
    "peak_tflops": "TFLOPS",
    "intra_node_gb_per_s": "GB/s per GPU, both directions",
    "inter_node_gbps": "Gbps per node",
    "gpu_memory_gib": "GiB",
    "fp8_tflops": "TFLOPS",
    "board_watts": "watts",
    "hbm_gb_per_s": "GB/s",
    "host_memory_gib": "GiB",
    "host_link_gb_per_s": "GB/s",
    "usd_per_hour": "USD",
}
_COPIED = ("efa", "gpudirect_rdma", "fp8_tflops", "board_watts", "hbm_gb_per_s", "host_link_gb_per_s", "bf16")
"""Figures that are the same for any number of GPUs per node."""


def custom_instance(
    *,
    gpu: str,
    gpus_per_node: int,
    network_needed: bool = True,
    required: Mapping[str, float],
    optional: OptionalFigures,
) -> Instance:
    """Build an `Instance` from figures. Missing ones come from the most similar GPU and are listed as assumed."""
    unknown = sorted(optional.keys() - OptionalFigures.__annotations__.keys())
    if unknown:
        raise TypeError(f"Cluster.custom() got an unexpected keyword argument {unknown[0]!r}")
    figures: dict[str, Any] = {name: value for name, value in optional.items() if value is not None}
    _check_name(gpu)
    _check_whole("gpus_per_node", gpus_per_node)
    if "vcpus" in figures:
        _check_whole("vcpus", figures["vcpus"])
    linked = gpus_per_node > 1
    may_be_zero = {"fp8_tflops": True, "usd_per_hour": True}
    may_be_zero |= {"intra_node_gb_per_s": not linked, "inter_node_gbps": not network_needed}
    for field, unit in _UNITS.items():
        if field in required or field in figures:
            value = required.get(field, figures.get(field))
            _check_figure(field, value, unit, may_be_zero=may_be_zero.get(field, False))
    for field in ("nvlink", "efa", "gpudirect_rdma", "bf16"):
        if not isinstance(figures.get(field, True), bool):
            raise ClusterError(f"{field} must be True or False, not {figures[field]!r}.")
    usable_gib = required["usable_gpu_memory_gib"]
    if figures.get("gpu_memory_gib", usable_gib) < usable_gib:
        raise ClusterError(
            f"usable_gpu_memory_gib ({usable_gib:g}) cannot exceed gpu_memory_gib ({figures['gpu_memory_gib']:g})."
        )

    similar = most_similar(gpu, usable_gib, required["peak_tflops"])
    fallbacks = {
        "nvlink": linked and required["intra_node_gb_per_s"] > PCIE_GB_PER_S,
        "gpu_memory_gib": max(similar.gpu_memory_gib, usable_gib),
        "vcpus": similar.vcpus * gpus_per_node // similar.gpus,
        "host_memory_gib": similar.host_memory_gib / similar.gpus * gpus_per_node,
        **{field: getattr(similar, field) for field in _COPIED},
    }
    assumed = tuple("intra_node" if field == "nvlink" else field for field in fallbacks if field not in figures)
    figures = {"name": "custom", "usd_per_hour": None, **fallbacks, **figures}
    figures |= {field: float(value) for field, value in required.items()}
    nvlink = figures.pop("nvlink")
    source = f"figures from the user; assumed ones from {similar.gpu} in {similar.name}" if assumed else "from the user"
    return Instance(
        gpu=gpu,
        gpus=gpus_per_node,
        intra_node="single GPU" if not linked else "NVLink" if nvlink else "PCIe",
        source=source,
        assumed=assumed,
        custom=True,
        **figures,
    )


def most_similar(gpu: str, usable_gpu_memory_gib: float, peak_tflops: float) -> Instance:
    """Find the instance with the most similar GPU: first by the name's words, then by memory and peak (log distance).

    Among instances with the same GPU, the one with most GPUs has priority: its host is sized for training.
    """
    words = set(re.findall(r"[a-z0-9]+", gpu.lower()))

    def distance(instance: Instance) -> tuple[int, float, int]:
        board = set(re.findall(r"[a-z0-9]+", instance.gpu.split()[1].lower()))
        other_name = 0 if board <= words else 1
        by_memory = abs(math.log(instance.usable_gpu_memory_gib / usable_gpu_memory_gib))
        by_peak = abs(math.log(instance.peak_tflops / peak_tflops))
        return other_name, by_memory + by_peak, -instance.gpus

    return min(instances(), key=distance)


def _check_name(gpu: object) -> None:
    if not isinstance(gpu, str) or not gpu.strip():
        raise ClusterError(f"gpu must be the name of the GPU, for example 'A100 80GB', not {gpu!r}.")


def _check_whole(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ClusterError(f"{field} must be a whole number of at least 1, not {value!r}.")


def _check_figure(field: str, value: object, unit: str, *, may_be_zero: bool) -> None:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if math.isfinite(number) and (number > 0 or (number == 0 and may_be_zero)):
        return
    least = "of at least 0" if may_be_zero else "above 0"
    raise ClusterError(f"{field} must be a number {least} ({unit}), not {value!r}.")
