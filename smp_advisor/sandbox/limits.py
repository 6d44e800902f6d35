"""Limits of child processes, and the memory available on this machine."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from smp_advisor.core import GIB

GUARD_SECONDS = 3600.0
"""Time after which a child process is stopped, with an error: ten times what the slowest profile takes on one core. It
guards against code that hangs; counts of operators, FLOPs and bytes limit the work of a stage."""
ANSWER_SECONDS = 60.0
"""A last guard against a process that never answers a signal; a result names it when it strikes."""

_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Files with limit and use of a container's memory, in control groups version 2 and version 1."""
_UNLIMITED = 1 << 60
_FILE_BYTES = 8 * GIB
"""Maximum size of a file that a child may write; checkpoints of a scaled copy are far smaller."""
_THREAD_STACKS_BYTES = GIB // 4
"""RLIMIT_DATA counts the full stacks of threads, even if unused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of a child process and all its descendants."""

    seconds: float = 1800.0
    """A last guard against code that never ends; no result depends on it."""
    memory_bytes: int | None = None
    """Memory in addition to the kernel's; None is half of the available memory, at most 4 GiB."""
    processes: int = 64
    """Maximum number of processes at a time."""
    output_bytes: int = 16 * 2**20
    """Maximum output to the standard streams."""

    def resolved_memory_bytes(self) -> int:
        """`memory_bytes`, or the default of this machine."""
        return default_memory_bytes() if self.memory_bytes is None else self.memory_bytes


def available_memory_bytes() -> int:
    """Return the memory available without swapping, on the machine or in the container, whichever is less."""
    free = int(psutil.virtual_memory().available)
    for limit, used in _CGROUPS:
        try:
            maximum = Path(limit).read_text().strip()
            if maximum != "max" and int(maximum) < _UNLIMITED:
                free = min(free, int(maximum) - int(Path(used).read_text()))
        except (OSError, ValueError):
            continue
    return max(free, 0)


def default_memory_bytes() -> int:
    """Half of the available memory, at most 4 GiB, so that the notebook keeps the other half."""
    return min(4 * GIB, available_memory_bytes() // 2)


def apply(limits: Limits) -> None:
    """Apply the limits to this process and its descendants, before the user's code runs.

    RLIMIT_DATA counts private writable memory only. RLIMIT_AS would also count address space that CUDA builds of
    PyTorch and thread arenas reserve but do not use.
    """
    import resource  # Windows has none

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    data_bytes = (
        status_bytes(Path("/proc/self/status"), "VmData:") + limits.resolved_memory_bytes() + _THREAD_STACKS_BYTES
    )
    _lower(resource.RLIMIT_DATA, data_bytes)
    _lower(resource.RLIMIT_FSIZE, _FILE_BYTES)
    try:
        os.nice(10)
        # If the machine runs out of memory, this process is killed before the kernel and its server.
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        pass


def _lower(which: int, maximum: int) -> None:
    import resource

    _, hard = resource.getrlimit(which)
    maximum = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
    resource.setrlimit(which, (maximum, maximum))


def memory_bytes(pids: list[int], shared_bytes: int, limit: int = -1) -> int:
    """Return the total memory of processes beyond pages shared with the kernel.

    Up to `limit`, it is an estimate that takes no time, and does not count pages of the kernel that a process has
    written, which are copies.
    """
    resident = [status_bytes(Path(f"/proc/{pid}/status"), "RssAnon:", "RssShmem:") for pid in pids]
    estimate = sum(max(0, size - shared_bytes) for size in resident)
    if estimate <= limit:
        return estimate
    exact = sum(status_bytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss_Anon:", "Pss_Shmem:") for pid in pids)
    # Each process has its share of a page: so have the kernel and the supervisor of pages that all share.
    return max(0, exact - shared_bytes * len(pids) // (len(pids) + 2))


def status_bytes(file: Path, *names: str) -> int:
    """Sum of the named fields of a file in /proc, in bytes; 0 if it cannot be read."""
    with suppress(OSError, ValueError):  # the process has just ended
        return sum(int(line.split()[1]) * 1024 for line in file.read_text().splitlines() if line.startswith(names))
    return 0
