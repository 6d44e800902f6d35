"""What a child process may take, and how much this machine has to give."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

__all__ = ["GIB", "Limits", "available_memory_bytes", "default_memory_bytes"]

GIB = 2**30

_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Limit and use of a container's memory, in version 2 and version 1 of control groups."""
_UNLIMITED = 1 << 60
_FILE_BYTES = 8 * GIB
"""Largest file that a child may write: checkpoints of a scaled copy are far smaller."""
_THREADS_BYTES = GIB // 4
"""Stacks of threads count as data whether touched or not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds of a child process and everything it starts."""

    seconds: float = 120.0
    memory_bytes: int | None = None
    """Beyond what the kernel itself holds; None for half of what the machine has to give, at most 4 GiB."""
    processes: int = 64
    """Processes alive at a time."""
    output_bytes: int = 16 * 2**20
    """Written to the standard streams."""

    def resolved_memory_bytes(self) -> int:
        """`memory_bytes`, or this machine's default for it."""
        return default_memory_bytes() if self.memory_bytes is None else self.memory_bytes


def available_memory_bytes() -> int:
    """Memory that can be taken without swapping: of the machine, or of the container where that is less."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    except OSError:
        pass
    for limit, used in _CGROUPS:
        try:
            most = Path(limit).read_text().strip()
            if most != "max" and int(most) < _UNLIMITED:
                free = min(free, int(most) - int(Path(used).read_text()))
        except (OSError, ValueError):
            continue
    return max(free, 0)


def default_memory_bytes() -> int:
    """Half of what is available, at most 4 GiB: the notebook goes on beside it."""
    return min(4 * GIB, available_memory_bytes() // 2)


def apply(limits: Limits) -> None:
    """Bound this process, and what it starts, before anything of the user's runs in it.

    RLIMIT_DATA counts private writable memory only; RLIMIT_AS would also count address space that CUDA builds of
    PyTorch and thread arenas reserve without using.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = _data_bytes() + limits.resolved_memory_bytes() + _THREADS_BYTES
    _lower(resource.RLIMIT_DATA, most)
    _lower(resource.RLIMIT_FSIZE, _FILE_BYTES)
    try:
        os.nice(10)
        # Where the machine itself runs out of memory, this process goes before the kernel and its server.
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        pass


def _lower(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (most, most))


def _data_bytes() -> int:
    """Private writable memory of this process, as RLIMIT_DATA counts it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0
