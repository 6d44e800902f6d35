"""One node: its GPUs, links, host and price."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Instance"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Instance:
    """A machine type, from the dated instance table or custom.

    GB/s are 1e9 bytes a second, Gbps 1e9 bits a second per node, GiB 2**30 bytes.

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
    """Nominal memory of one GPU."""
    usable_gpu_memory_gib: float
    """What the driver reports free to a process before the CUDA context."""
    vcpus: int
    host_memory_gib: float
    intra_node: str
    """The link between the node's GPUs as the vendor names it."""
    intra_node_gb_per_s: float
    """Per GPU, both directions together (vendor's total; halve it for one direction); 0 for a single GPU."""
    inter_node_gbps: float
    """Sustained network bandwidth of the node."""
    efa: bool
    gpudirect_rdma: bool
    peak_tflops: float
    """Dense 16-bit peak of one GPU."""
    hbm_gb_per_s: float
    host_link_gb_per_s: float
    """Host copy per GPU, one direction."""
    usd_per_hour: float | None
    """SageMaker on-demand; None where no price is known."""
    price_note: str = ""
    source: str = ""
    assumed: tuple[str, ...] = ()
    """Names of the fields that no source confirms: general knowledge, or taken from the nearest known GPU."""
    fp8_tflops: float = 0.0
    """Dense 8-bit peak of one GPU; 0 where it has none, or where none is known."""
    board_watts: float = 0.0
    """Power limit of one GPU; 0 where it is not known."""
    bf16: bool = True
    """Whether the GPU computes in bfloat16 (from the A100 on)."""
    custom: bool = False
    """Whether the figures were passed by the user rather than read from the instance table."""

    @property
    def nvlink(self) -> bool:
        """Whether the node's GPUs talk over NVLink rather than PCIe."""
        return "nvlink" in self.intra_node.lower()

    @property
    def gpu_label(self) -> str:
        """The GPU as people say it: ``A100 40 GB``."""
        words = self.gpu.removeprefix("NVIDIA ").split()
        # SXM generations tell boards apart, not what a reader needs to recognise the GPU.
        kept = [word for word in words if not word.upper().startswith("SXM")]
        return " ".join(f"{word[:-2]} GB" if word[:-2].isdigit() and word.endswith("GB") else word for word in kept)
