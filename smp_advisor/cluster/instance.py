"""One node: its GPUs, links, host and price."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Instance"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Instance:
    """A machine type from the dated instance table or from custom figures.

    GB/s are 1e9 bytes per second, Gbps 1e9 bits per second per node, GiB 2**30 bytes.

    Examples
    --------
    >>> from smp_advisor.cluster import instance
    >>> instance("ml.p4d.24xlarge").gpus
    8
    """

    name: str
    gpu: str
    gpus: int
    gpu_memory_gib: float
    """Nominal memory per GPU."""
    usable_gpu_memory_gib: float
    """Memory per GPU that the driver reports as free before the CUDA context."""
    vcpus: int
    host_memory_gib: float
    intra_node: str
    """The vendor's name of the link between the node's GPUs."""
    intra_node_gb_per_s: float
    """Per GPU, sum of both directions (the vendor's total); 0 for a single GPU."""
    inter_node_gbps: float
    """Sustained network bandwidth of the node."""
    efa: bool
    gpudirect_rdma: bool
    peak_tflops: float
    """Dense 16-bit peak per GPU."""
    hbm_gb_per_s: float
    host_link_gb_per_s: float
    """Host copy per GPU, one direction."""
    usd_per_hour: float | None
    """SageMaker on-demand price; None if unknown."""
    price_note: str = ""
    source: str = ""
    assumed: tuple[str, ...] = ()
    """Names of the fields that no source confirms: general knowledge, or copied from the most similar GPU."""
    architecture: str = ""
    """Architecture of the GPU (its compute capability): ``8.0``; empty if unknown."""
    cpu_architecture: str = "x86_64"
    """``x86_64`` or ``arm64``."""
    fp8_tflops: float = 0.0
    """Dense 8-bit peak per GPU; 0 if there is none or it is unknown."""
    board_watts: float = 0.0
    """Power limit per GPU in watts; 0 if unknown."""
    bf16: bool = True
    """Whether the GPU supports bfloat16 (A100 and later)."""
    custom: bool = False
    """Whether the figures come from the user instead of the instance table."""

    @property
    def nvlink(self) -> bool:
        """Whether NVLink connects the node's GPUs."""
        return "nvlink" in self.intra_node.lower()

    @property
    def gpu_label(self) -> str:
        """Common name of the GPU: ``A100 40 GB``."""
        words = self.gpu.removeprefix("NVIDIA ").split()
        # A reader recognizes the GPU without its SXM generation.
        name = [word for word in words if not word.upper().startswith("SXM")]
        return " ".join(f"{word[:-2]} GB" if word[:-2].isdigit() and word.endswith("GB") else word for word in name)
