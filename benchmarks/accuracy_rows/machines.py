"""A `Cluster` from the hardware columns of a row."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from smp_advisor.cluster import Cluster, gpu, instances
from smp_advisor.errors import ClusterError

from .table import SkippedError

if TYPE_CHECKING:
    from smp_advisor.cluster import Gpu

    from .table import Row

__all__ = ["cluster_of", "instance_cluster_of"]

_RDMA_GBPS = 200
"""Networks of at least this rate are InfiniBand, RoCE or EFA, which write to GPU memory without the host."""
_NODE_GPUS = 8


def cluster_of(row: Row) -> Cluster:
    """Cluster of a measured run, with the GPUs, GPUs per node and links of the row."""
    gpus = row.count("gpus")
    if not gpus:
        raise SkippedError("number of GPUs not given")
    nodes = row.count("nodes")
    per_node = row.count("gpus_per_node") or (gpus // nodes if nodes else min(gpus, _NODE_GPUS))
    per_node = min(per_node, gpus)
    if gpus % per_node:
        raise SkippedError("number of GPUs is not a multiple of the GPUs per node")
    return _custom(
        _board(row),
        gpus,
        per_node,
        row.text("intra_node") or "nvlink",
        row.number("inter_node_gbps") or 0.0,
        efa="efa" in row.text("interconnect"),
    )


def instance_cluster_of(row: Row, *, nodes: int = 1) -> Cluster:
    """Cluster of a row with an instance type, or of another machine by its GPU."""
    first = row.text("instance_type").split(" ")[0]
    first = first if first.startswith("ml.") else f"ml.{first}"
    if first in {machine.name for machine in instances()}:
        return Cluster(first, nodes)
    gpus = row.count("gpus") or _NODE_GPUS * nodes
    return _custom(_board(row), gpus, max(1, gpus // nodes), "nvlink", 400.0)


def _board(row: Row) -> str:
    name = row.text("gpu")
    if not name:
        raise SkippedError("GPU not given")
    return name


@lru_cache(maxsize=1024)
def _custom(name: str, gpus: int, per_node: int, link: str, inter_node_gbps: float, *, efa: bool = False) -> Cluster:
    try:
        board = gpu(name)
    except ClusterError as error:
        raise SkippedError(f"unknown GPU {name}") from error
    nvlink = link == "nvlink" and board.nvlink_gb_per_s > 0 and per_node > 1
    nodes = gpus // per_node
    return Cluster.custom(
        gpu=board.gpu,
        usable_gpu_memory_gib=board.usable_gpu_memory_gib,
        peak_tflops=board.peak_tflops,
        gpus_per_node=per_node,
        nodes=nodes,
        intra_node_gb_per_s=_link(board, nvlink=nvlink) if per_node > 1 else 0.0,
        inter_node_gbps=inter_node_gbps if inter_node_gbps or nodes == 1 else 100.0,
        gpu_memory_gib=board.gpu_memory_gib,
        fp8_tflops=board.fp8_tflops,
        board_watts=board.board_watts,
        hbm_gb_per_s=board.hbm_gb_per_s,
        host_link_gb_per_s=board.host_link_gb_per_s,
        nvlink=nvlink,
        efa=efa,
        gpudirect_rdma=inter_node_gbps >= _RDMA_GBPS,
        bf16=board.bf16,
    )


def _link(board: Gpu, *, nvlink: bool) -> float:
    return board.nvlink_gb_per_s if nvlink else board.pcie_gb_per_s
