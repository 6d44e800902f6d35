"""The dated table of GPU instances and boards: one node with its GPUs, links, host and price."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

from smp_advisor.arguments import require_whole, shown
from smp_advisor.arguments.signatures import checked_class
from smp_advisor.core.files import columns, data_file, rows
from smp_advisor.core.words import listed, plain
from smp_advisor.errors import ClusterError, InstanceError

MOST_FIGURE = 10**9
"""Largest figure of an instance."""
_MAY_BE_ZERO = (
    "intra_node_gb_per_s", "inter_node_gbps", "host_link_gb_per_s", "usd_per_hour", "fp8_tflops", "board_watts"
)  # fmt: skip


@checked_class
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

    def __post_init__(self) -> None:
        for name in ("name", "gpu", "intra_node", "price_note", "source", "architecture", "cpu_architecture"):
            object.__setattr__(self, name, plain(getattr(self, name)))  # it can come from a file of others
        for name in ("gpus", "vcpus"):
            require_whole(f"{name} of {self.name}", getattr(self, name), ClusterError, MOST_FIGURE)
        positive = ("gpu_memory_gib", "usable_gpu_memory_gib", "host_memory_gib", "peak_tflops", "hbm_gb_per_s")
        for name in (*positive, *_MAY_BE_ZERO):
            value = getattr(self, name)
            if name == "usd_per_hour" and value is None:
                continue
            if value > MOST_FIGURE or (value == 0 and name in positive):
                least = "above 0" if name in positive else "of at least 0"
                raise ClusterError(f"{name} of {self.name} must be a number {least}, not {shown(value)}.")

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


@cache
def board_rows() -> dict[str, dict[str, str]]:
    """Return rows of the table, by the name of the board in the instance table."""
    return {row["gpu"]: row for row in rows("smp_advisor.cluster", "data/gpus.csv")}


@cache
def instances() -> tuple[Instance, ...]:
    return tuple(_instance(row) for row in rows("smp_advisor.cluster", "data/instances.csv"))


@cache
def sources() -> tuple[SimpleNamespace, ...]:
    """Title and date of each source, its columns, and whether it is assumed: unconfirmed general knowledge."""
    return tuple(SimpleNamespace(**entry) for entry in data_file("cluster", "sources")["source"])


@cache
def sagemaker_names() -> frozenset[str]:
    """Return every instance type of SageMaker training jobs, with and without GPUs (botocore's model of the API)."""
    text = (files("smp_advisor.cluster") / "data" / "instance_types.txt").read_text(encoding="utf-8")
    return frozenset(text.split())


def table_date() -> str:
    return str(data_file("cluster", "sources")["table_date"])


def instance(name: str) -> Instance:
    """Instance by its name, with or without ``ml.``.

    Examples
    --------
    >>> instance("p4d.24xlarge").name
    'ml.p4d.24xlarge'
    """
    by_name, full = _by_name(), _full(name)
    if full in by_name:
        return by_name[full]
    if sentence := not_covered(name):
        raise InstanceError(sentence)
    similar = get_close_matches(full, by_name, n=3, cutoff=0.6)
    examples = ", ".join(similar or data_file("cluster", "sources")["examples"])
    hint = f"the most similar are {examples}" if similar else f"supported are, for example, {examples}"
    raise InstanceError(f"Unknown instance type {name!r}: {hint}; Cluster.custom(...) accepts any other hardware.")


def completed_instance(name: str) -> Instance:
    """Instance by the beginning of its name, if only one family and size begins like that."""
    full = _full(name)
    if full in _by_name() or not full.removeprefix("ml."):
        return instance(name)
    # An entire family, p4d and not p4de, with the number of its size: ml.p4d.24xlarg is misspelled.
    beginning = re.compile(rf"{re.escape(full.rstrip('.'))}([-.]|(?<=\.\d)x|(?<=\.\d\d)x)")
    begins = [entry for entry in instances() if beginning.match(entry.name)]
    if len(begins) == 1:
        return begins[0]
    if not begins:
        return instance(name)
    candidates = listed([entry.name for entry in begins])
    raise InstanceError(f"The instance type {name!r} is not complete: choose one of {candidates}.")


def meant_instance(text: str) -> tuple[Instance, int | None, str]:
    """Instance and number of nodes of ``p5``, ``2x p5``, ``h100``, ``8xH100``, and a note if they are inferred.

    A family of several sizes is its largest one, and a number of GPUs is spread over nodes of the largest size that
    divides it.
    """
    match = re.fullmatch(r"\s*(\d{1,6})\s*[x×*]?\s*([a-z].*?)\s*", text, re.IGNORECASE)
    number, name = (int(match[1]), match[2]) if match else (None, text.strip())
    name = re.sub(r"(?<=\d)xl$", "xlarge", name, flags=re.IGNORECASE)
    count = number
    family = _full(name).removeprefix("ml.")
    sizes = [entry for entry in instances() if entry.name.split(".")[1] == family]
    if len(sizes) > 1:
        machine, kind = max(sizes, key=lambda entry: (entry.gpus, entry.vcpus)), ", its largest size"
    else:
        machine, kind = None, ""
        try:
            machine = completed_instance(name)
        except InstanceError:
            sizes = _with_gpu(name)
            if not sizes:
                raise
    if machine is None:
        fitting = [entry for entry in sizes if number is None or number % entry.gpus == 0]
        if not fitting:
            offered = ", ".join(sorted({str(entry.gpus) for entry in sizes}, key=int))
            raise InstanceError(f"No instance has {number} of {name!r}: nodes have {offered} of them.")
        machine = max(fitting, key=lambda entry: (entry.gpus, entry.inter_node_gbps, -(entry.usd_per_hour or 0)))
        count = None if number is None else number // machine.gpus
    nodes = "" if count is None else f"{count} x "
    inferred = kind or not machine.name.startswith(_full(name))
    return machine, count, f"{text.strip()} is read as {nodes}{machine.name}{kind}" if inferred else ""


def _with_gpu(name: str) -> list[Instance]:
    """Return the instances with a board of this name; empty if none has it."""
    key = _key(name)
    exact = [entry for entry in instances() if key in (_key(entry.gpu), _key(entry.gpu.split()[1]))]
    boards = {entry.gpu_label: entry.name for entry in exact}
    if len(boards) > 1:
        choices = " or ".join(f"{board} ({example})" for board, example in boards.items())
        raise InstanceError(f"{name!r} is {choices}: name one of them.")
    return exact


def not_covered(name: str) -> str:
    """Return the sentence on an instance type without NVIDIA GPUs; empty for any other."""
    full = _full(name)
    family = full.removeprefix("ml.").split(".")[0]
    machines = next(
        (title for title, families in data_file("cluster", "sources")["not_covered"].items() if family in families), ""
    )
    if not machines:
        return ""
    example = data_file("cluster", "sources")["examples"][0]
    return f"{machines} is not covered ({full}): the advisor plans for NVIDIA GPUs, for example {example}."


def _full(name: str) -> str:
    return f"ml.{name.strip().lower().removeprefix('ml.')}"


@cache
def _by_name() -> dict[str, Instance]:
    return {entry.name: entry for entry in instances()}


def _instance(row: dict[str, str]) -> Instance:
    assumed = [column for source in sources() if source.assumed for column in source.columns]
    if row["usd_per_hour"] and row["price_confirmed"] == "no":
        assumed.append("usd_per_hour")
    return Instance(
        name=row["instance_type"],
        architecture=board_rows()[row["gpu"]]["architecture"],
        fp8_tflops=float(board_rows()[row["gpu"]]["fp8_tflops"]),
        board_watts=float(board_rows()[row["gpu"]]["board_watts"]),
        source="; ".join(f"{source.title} ({source.date})" for source in sources()),
        assumed=tuple(assumed),
        **columns(Instance, row),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU board with the figures of its data sheet."""

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


@cache
def gpus() -> tuple[Gpu, ...]:
    """Return every board of the table. Figures in the instance table have priority."""
    machines = {entry.gpu: entry for entry in instances()}
    return tuple(_gpu(row, machines.get(row["gpu"])) for row in board_rows().values())


def gpu(name: str) -> Gpu:
    """Board by its name, with any spaces and hyphens: ``A100-80GB``, ``NVIDIA A100 80 GB``, ``rtx 4090``."""
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

    own = ("fp8_tflops", "nvlink_gb_per_s", "pcie_gb_per_s", "board_watts")
    shared = ("gpu_memory_gib", "usable_gpu_memory_gib", "peak_tflops", "hbm_gb_per_s", "host_link_gb_per_s")
    figures: dict[str, Any] = {name: float(row[name]) for name in own} | {name: figure(name) for name in shared}
    figures["bf16"] = row["bf16"] == "yes" if machine is None else machine.bf16
    return Gpu(name=row["name"], gpu=row["gpu"], architecture=row["architecture"], **figures)
