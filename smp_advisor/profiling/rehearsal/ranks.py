"""Forked processes on one machine that communicate over gloo."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ProfileError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run_ranks"]


def run_ranks(world: int, work: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    """Run ``work(rank)`` in `world` processes of one process group, and return their results.

    The processes share this process's memory until they write to it, so a model built here need not be sent.

    Raises
    ------
    ProfileError
        A rank failed; its traceback is in the log.
    """
    with tempfile.TemporaryDirectory() as folder:
        children = [_fork(rank, world, work, Path(folder)) for rank in range(world)]
        failed = [rank for rank, pid in enumerate(children) if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]
        results = [Path(folder, f"{rank}.json") for rank in range(world)]
        if failed:
            errors = [json.loads(results[rank].read_text())["error"] for rank in failed if results[rank].exists()]
            # Errors of gloo are consequences: those ranks lost the connection to the rank that failed first.
            cause = next((text for text in errors if "gloo" not in text.lower()), errors[0] if errors else "it crashed")
            raise ProfileError(f"Rank {failed[0]} of the rehearsal failed: {cause}")
        return [json.loads(result.read_text()) for result in results]


def _fork(rank: int, world: int, work: Callable[[int], dict[str, Any]], folder: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        result = _run_rank(rank, world, work, folder)
        (folder / f"{rank}.json").write_text(json.dumps(result))
        status = 0
    except BaseException as raised:  # noqa: BLE001 (after any failure, the other ranks must not wait for this one)
        traceback.print_exc()
        error: BaseException = raised
        while error.__cause__ is not None:  # PyTorch wraps the exception of a pipeline stage
            error = error.__cause__
        text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        (folder / f"{rank}.json").write_text(json.dumps({"error": text}))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run_rank(rank: int, world: int, work: Callable[[int], dict[str, Any]], folder: Path) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    try:
        result = work(rank)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return result
