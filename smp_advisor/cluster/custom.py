"""Hardware outside the instance table: figures from the user, the others from the most similar GPU in the table."""

from __future__ import annotations

import math
import re
from typing import TypedDict, TypeVar

from smp_advisor.cluster.instance import Instance
from smp_advisor.cluster.table import instances
from smp_advisor.errors import ClusterError

__all__ = ["OptionalFigures", "custom_instance", "most_similar"]

T = TypeVar("T")

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


def custom_instance(
    *,
    gpu: str,
    usable_gpu_memory_gib: float,
    peak_tflops: float,
    gpus_per_node: int,
    intra_node_gb_per_s: float,
    inter_node_gbps: float,
    network_needed: bool = True,
    gpu_memory_gib: float | None = None,
    fp8_tflops: float | None = None,
    board_watts: float | None = None,
    hbm_gb_per_s: float | None = None,
    host_memory_gib: float | None = None,
    host_link_gb_per_s: float | None = None,
    vcpus: int | None = None,
    nvlink: bool | None = None,
    efa: bool | None = None,
    gpudirect_rdma: bool | None = None,
    bf16: bool | None = None,
    usd_per_hour: float | None = None,
    name: str = "custom",
) -> Instance:
    """Build an `Instance` from figures. Missing ones come from the most similar GPU and are listed as assumed."""
    _check_name(gpu)
    _check_whole("gpus_per_node", gpus_per_node)
    if vcpus is not None:
        _check_whole("vcpus", vcpus)
    linked = gpus_per_node > 1
    for field, value, unit, may_be_zero in (
        ("usable_gpu_memory_gib", usable_gpu_memory_gib, "GiB", False),
        ("peak_tflops", peak_tflops, "TFLOPS", False),
        ("intra_node_gb_per_s", intra_node_gb_per_s, "GB/s per GPU, both directions", not linked),
        ("inter_node_gbps", inter_node_gbps, "Gbps per node", not network_needed),
        ("gpu_memory_gib", gpu_memory_gib, "GiB", False),
        ("fp8_tflops", fp8_tflops, "TFLOPS", True),
        ("board_watts", board_watts, "watts", False),
        ("hbm_gb_per_s", hbm_gb_per_s, "GB/s", False),
        ("host_memory_gib", host_memory_gib, "GiB", False),
        ("host_link_gb_per_s", host_link_gb_per_s, "GB/s", False),
        ("usd_per_hour", usd_per_hour, "USD", True),
    ):
        if value is not None or field in _REQUIRED:
            _check_figure(field, value, unit, may_be_zero=may_be_zero)
    for field, flag in (("nvlink", nvlink), ("efa", efa), ("gpudirect_rdma", gpudirect_rdma), ("bf16", bf16)):
        if flag is not None and not isinstance(flag, bool):
            raise ClusterError(f"{field} must be True or False, not {flag!r}.")
    if gpu_memory_gib is not None and gpu_memory_gib < usable_gpu_memory_gib:
        raise ClusterError(
            f"usable_gpu_memory_gib ({usable_gpu_memory_gib:g}) cannot exceed gpu_memory_gib ({gpu_memory_gib:g})."
        )

    similar = most_similar(gpu, usable_gpu_memory_gib, peak_tflops)
    assumed: list[str] = []

    def or_assumed(field: str, value: T | None, fallback: T) -> T:
        if value is not None:
            return value
        assumed.append(field)
        return fallback

    nvlink = or_assumed("intra_node", nvlink, linked and intra_node_gb_per_s > PCIE_GB_PER_S)
    link = "single GPU" if not linked else "NVLink" if nvlink else "PCIe"
    return Instance(
        name=name,
        gpu=gpu,
        gpus=gpus_per_node,
        gpu_memory_gib=or_assumed("gpu_memory_gib", gpu_memory_gib, max(similar.gpu_memory_gib, usable_gpu_memory_gib)),
        usable_gpu_memory_gib=float(usable_gpu_memory_gib),
        vcpus=or_assumed("vcpus", vcpus, similar.vcpus * gpus_per_node // similar.gpus),
        host_memory_gib=or_assumed(
            "host_memory_gib", host_memory_gib, similar.host_memory_gib / similar.gpus * gpus_per_node
        ),
        intra_node=link,
        intra_node_gb_per_s=float(intra_node_gb_per_s),
        inter_node_gbps=float(inter_node_gbps),
        efa=or_assumed("efa", efa, similar.efa),
        gpudirect_rdma=or_assumed("gpudirect_rdma", gpudirect_rdma, similar.gpudirect_rdma),
        peak_tflops=float(peak_tflops),
        fp8_tflops=or_assumed("fp8_tflops", fp8_tflops, similar.fp8_tflops),
        board_watts=or_assumed("board_watts", board_watts, similar.board_watts),
        hbm_gb_per_s=or_assumed("hbm_gb_per_s", hbm_gb_per_s, similar.hbm_gb_per_s),
        host_link_gb_per_s=or_assumed("host_link_gb_per_s", host_link_gb_per_s, similar.host_link_gb_per_s),
        bf16=or_assumed("bf16", bf16, similar.bf16),
        usd_per_hour=usd_per_hour,
        source=f"figures from the user; assumed ones from {similar.gpu} in {similar.name}"
        if assumed
        else "from the user",
        assumed=tuple(assumed),
        custom=True,
    )


_REQUIRED = frozenset({"usable_gpu_memory_gib", "peak_tflops", "intra_node_gb_per_s", "inter_node_gbps"})


def most_similar(gpu: str, usable_gpu_memory_gib: float, peak_tflops: float) -> Instance:
    """Find the instance with the most similar GPU: first by the name's words, then by memory and peak (log distance).

    Among instances with the same GPU, the one with most GPUs has priority: its host is sized for training.
    """
    words = set(_words(gpu))

    def distance(instance: Instance) -> tuple[int, float, int]:
        board = instance.gpu.split()[1].lower()
        other_name = 0 if board in words else 1
        by_memory = abs(math.log(instance.usable_gpu_memory_gib / usable_gpu_memory_gib))
        by_peak = abs(math.log(instance.peak_tflops / peak_tflops))
        return other_name, by_memory + by_peak, -instance.gpus

    return min(instances(), key=distance)


def _words(gpu: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", gpu.lower())


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
