"""Clusters: nodes of one instance type of the table, or of custom hardware."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.arguments import brief, options, require_whole, shown
from smp_advisor.cluster.table import MOST_FIGURE, Instance, completed_instance, instances
from smp_advisor.errors import ClusterError

if TYPE_CHECKING:
    from typing import Unpack

    from smp_advisor.keywords import OptionalFigures


PCIE_GB_PER_S = 128
"""PCIe Gen5 x16, sum of both directions. A faster link between GPUs must be NVLink."""


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
_FLAGS = ("nvlink", "efa", "gpudirect_rdma", "bf16")
_REQUIRED = ("usable_gpu_memory_gib", "peak_tflops", "intra_node_gb_per_s", "inter_node_gbps")
OPTIONAL = (*(name for name in _UNITS if name not in _REQUIRED), "vcpus", *_FLAGS, "name")
"""Figures of custom hardware that default to those of the most similar GPU."""
_COPIED = ("efa", "gpudirect_rdma", "fp8_tflops", "board_watts", "hbm_gb_per_s", "host_link_gb_per_s", "bf16")
"""Figures that are the same for any number of GPUs per node."""


def most_similar(gpu: str, usable_gpu_memory_gib: float, peak_tflops: float) -> Instance:
    """The instance with the most similar GPU: by the words of its name, then by memory and peak (log distance)."""
    words = set(re.findall(r"[a-z0-9]+", gpu.lower()))

    def distance(instance: Instance) -> tuple[int, float, int]:
        board = set(re.findall(r"[a-z0-9]+", instance.gpu.split()[1].lower()))
        other_name = 0 if board <= words else 1
        by_memory = abs(math.log(instance.usable_gpu_memory_gib / usable_gpu_memory_gib))
        by_peak = abs(math.log(instance.peak_tflops / peak_tflops))
        return other_name, by_memory + by_peak, -instance.gpus

    return min(instances(), key=distance)


@dataclass(frozen=True, slots=True, init=False, repr=False)
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
        require_whole("The number of nodes", nodes, ClusterError, options()["instance_count"].most)
        machine: object = completed_instance(instance) if isinstance(instance, str) else instance
        if not isinstance(machine, Instance):
            takes = "an instance name such as 'ml.p4d.24xlarge' or an Instance"
            raise ClusterError(f"A cluster takes {takes}, not {machine!r}.")
        object.__setattr__(self, "instance", machine)
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
            ``cluster.instance.assumed``. A price is never assumed. `smp_advisor.cluster.table` returns the figures of a
            board by name.
        """
        unknown = sorted(optional.keys() - set(OPTIONAL))
        if unknown:
            raise TypeError(f"Cluster.custom() got an unexpected keyword argument {unknown[0]!r}")
        figures: dict[str, Any] = {name: value for name, value in optional.items() if value is not None}
        title: object = gpu
        if not isinstance(title, str) or not title.strip():
            raise ClusterError(f"gpu must be the name of the GPU, for example 'A100 80GB', not {gpu!r}.")
        for field, number in (("gpus_per_node", gpus_per_node), ("nodes", nodes), ("vcpus", figures.get("vcpus", 1))):
            require_whole(field, number, ClusterError, MOST_FIGURE)
        # A link or a price of 0 means that there is none; every other 0 would divide.
        required = {
            "usable_gpu_memory_gib": usable_gpu_memory_gib,
            "peak_tflops": peak_tflops,
            "intra_node_gb_per_s": intra_node_gb_per_s,
            "inter_node_gbps": inter_node_gbps,
        }
        linked = gpus_per_node > 1
        may_be_zero = {"fp8_tflops": True, "usd_per_hour": True}
        may_be_zero |= {"intra_node_gb_per_s": not linked, "inter_node_gbps": nodes == 1}
        for field, value in (figures | required).items():
            if field in _UNITS:
                number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
                least = "of at least 0" if may_be_zero.get(field) else "above 0"
                if not 0 <= number <= MOST_FIGURE or (number == 0 and least == "above 0"):
                    raise ClusterError(f"{field} must be a number {least} ({_UNITS[field]}), not {shown(value)}.")
        for field in _FLAGS:
            if not isinstance(figures.get(field, True), bool):
                raise ClusterError(f"{field} must be True or False, not {figures[field]!r}.")
        if figures.get("gpu_memory_gib", usable_gpu_memory_gib) < usable_gpu_memory_gib:
            raise ClusterError(
                f"usable_gpu_memory_gib ({usable_gpu_memory_gib:g}) cannot exceed gpu_memory_gib"
                f" ({figures['gpu_memory_gib']:g})."
            )

        # Figures that the user leaves out are those of the most similar board, and listed as assumed.
        similar = most_similar(gpu, usable_gpu_memory_gib, peak_tflops)
        fallbacks = {
            "nvlink": linked and intra_node_gb_per_s > PCIE_GB_PER_S,
            "gpu_memory_gib": max(similar.gpu_memory_gib, usable_gpu_memory_gib),
            "vcpus": similar.vcpus * gpus_per_node // similar.gpus,
            "host_memory_gib": similar.host_memory_gib / similar.gpus * gpus_per_node,
            **{field: getattr(similar, field) for field in _COPIED},
        }
        assumed = tuple("intra_node" if field == "nvlink" else field for field in fallbacks if field not in figures)
        figures = {"name": "custom", "usd_per_hour": None, **fallbacks, **figures}
        figures |= {field: float(value) for field, value in required.items()}
        nvlink = figures.pop("nvlink")
        of_similar = f"figures from the user; assumed ones from {similar.gpu} in {similar.name}"
        instance = Instance(
            gpu=gpu,
            gpus=gpus_per_node,
            intra_node="single GPU" if not linked else "NVLink" if nvlink else "PCIe",
            source=of_similar if assumed else "from the user",
            assumed=assumed,
            custom=True,
            **figures,
        )
        return cls(instance, nodes)

    def __repr__(self) -> str:
        machine = self.instance
        return brief("Cluster", [f"'{machine.name}'", f"{self.nodes}", *([machine.gpu] if machine.custom else [])])

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
