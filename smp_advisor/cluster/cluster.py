"""Clusters: a number of nodes of one instance type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.cluster.custom import custom_instance
from smp_advisor.cluster.instance import Instance
from smp_advisor.cluster.table import completed_instance
from smp_advisor.errors import ClusterError

if TYPE_CHECKING:
    from typing import Unpack

    from smp_advisor.cluster.custom import OptionalFigures

__all__ = ["Cluster"]


@dataclass(frozen=True, slots=True, init=False)
class Cluster:
    """`nodes` machines of one `Instance`.

    Examples
    --------
    >>> Cluster("ml.p4d.24xlarge", 16).gpus
    128
    """

    instance: Instance
    nodes: int = 1

    def __init__(self, instance: Instance | str, nodes: int = 1) -> None:
        # A custom __init__ lets type checkers accept a name instead of an Instance.
        _check_nodes(nodes)
        object.__setattr__(self, "instance", _resolve(instance))
        object.__setattr__(self, "nodes", nodes)

    @classmethod
    def custom(
        cls,
        *,
        gpu: str,
        usable_gpu_memory_gib: float,
        peak_tflops: float,
        gpus_per_node: int,
        nodes: int,
        intra_node_gb_per_s: float,
        inter_node_gbps: float,
        **optional: Unpack[OptionalFigures],
    ) -> Cluster:
        """Build a cluster of hardware that is not in the instance table.

        Parameters
        ----------
        gpu
            Name of the GPU, for example ``"A100 80GB"``.
        usable_gpu_memory_gib
            GiB per GPU that a process can use.
        peak_tflops
            Dense 16-bit peak per GPU in 1e12 FLOP/s.
        gpus_per_node, nodes
            Whole numbers of at least 1.
        intra_node_gb_per_s
            GB/s per GPU, sum of both directions; 0 only with one GPU per node.
        inter_node_gbps
            Gbps per node; 0 only with one node.
        **optional
            ``gpu_memory_gib``, ``fp8_tflops``, ``board_watts``, ``hbm_gb_per_s``, ``host_memory_gib``,
            ``host_link_gb_per_s``, ``vcpus``, ``nvlink``, ``efa``, ``gpudirect_rdma``, ``bf16``, ``usd_per_hour`` (per
            node) and ``name``. Missing figures are copied from the most similar GPU in the instance table and listed in
            ``cluster.instance.assumed``. A price is never assumed. `smp_advisor.cluster.gpu` returns the figures of a
            board by name.
        """
        instance = custom_instance(
            gpu=gpu,
            gpus_per_node=gpus_per_node,
            network_needed=nodes != 1,
            required={
                "usable_gpu_memory_gib": usable_gpu_memory_gib,
                "peak_tflops": peak_tflops,
                "intra_node_gb_per_s": intra_node_gb_per_s,
                "inter_node_gbps": inter_node_gbps,
            },
            optional=optional,
        )
        return cls(instance, nodes)

    @property
    def gpus(self) -> int:
        """GPUs of the cluster. This is the world size: one process per GPU."""
        return self.nodes * self.instance.gpus

    @property
    def gpus_per_node(self) -> int:
        """GPUs per node."""
        return self.instance.gpus

    @property
    def usd_per_hour(self) -> float | None:
        """USD per hour of the cluster; None if the price is unknown."""
        return None if self.instance.usd_per_hour is None else self.nodes * self.instance.usd_per_hour

    @property
    def intra_node_bytes_per_s(self) -> float:
        """Bytes per second between the GPUs of a node, per GPU and direction; 0 for a single GPU."""
        return self.instance.intra_node_gb_per_s * 1e9 / 2

    @property
    def inter_node_bytes_per_s_per_node(self) -> float:
        """Bytes per second between nodes, per node and direction. A network link has its rate in each direction."""
        return self.instance.inter_node_gbps * 1e9 / 8

    @property
    def summary(self) -> str:
        """Machines, network and price in one line of text."""
        machine = self.instance
        parts = [f"{self.nodes} x {machine.name}: {self.gpus} x {machine.gpu_label}"]
        if machine.gpus > 1:
            parts.append(machine.intra_node)
        if self.nodes > 1:
            network = f"{machine.inter_node_gbps:g} Gbps {'EFA' if machine.efa else 'network'} per node"
            parts.append(network + (" with GPUDirect RDMA" if machine.gpudirect_rdma else ""))
        price = self.usd_per_hour
        parts.append("no on-demand price known" if price is None else f"{price:,.2f} USD per hour")
        return ", ".join(parts)


def _resolve(machine: object) -> Instance:
    if isinstance(machine, str):
        return completed_instance(machine)
    if isinstance(machine, Instance):
        return machine
    raise ClusterError(f"A cluster takes an instance name such as 'ml.p4d.24xlarge' or an Instance, not {machine!r}.")


def _check_nodes(nodes: object) -> None:
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        raise ClusterError(f"The number of nodes must be a whole number of at least 1, not {nodes!r}.")
