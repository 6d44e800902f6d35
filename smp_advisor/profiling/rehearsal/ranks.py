"""Forked processes on one machine that communicate over gloo."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.rehearsal.problems import Problem
from smp_advisor.profiling.sandbox.source_line import user_source_line

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RanksFailed", "run_ranks"]

_COLLECTIVE_SECONDS = 40.0
"""Time limit of one collective; a rank that waits longer waits for one that never comes."""
_GRACE_SECONDS = 3.0
"""Time for the other ranks to end after one failed by itself."""


class RanksFailed(Exception):  # noqa: N818 (an outcome of the rehearsal, which reports it)
    """The ranks did not complete their work."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.text)
        self.problem = problem


def run_ranks(world: int, work: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    """Run ``work(rank)`` in `world` processes of one process group, and return their results.

    The processes share this process's memory until they write to it, so a model built here need not be sent.

    Raises
    ------
    RanksFailed
        A rank failed, or ranks wait for each other. The problem names the rank that failed first and the user's line;
        tracebacks are in the log.
    """
    with tempfile.TemporaryDirectory() as folder:
        children = [_fork(rank, world, work, Path(folder)) for rank in range(world)]
        failed = _wait(children, Path(folder))
        if failed:
            raise RanksFailed(_failure(failed, Path(folder), world))
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(world)]


def _wait(children: list[int], folder: Path) -> dict[int, int]:
    """Wait for all ranks, and return the exit codes of those that failed; ends the others once a rank has failed."""
    running = dict(enumerate(children))
    failed: dict[int, int] = {}
    deadline = float("inf")
    while running:
        for rank, pid in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            del running[rank]
            code = os.waitstatus_to_exitcode(status)
            if code:
                failed[rank] = code
                if not _is_consequence(_error(folder, rank)):
                    deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
        if running and time.monotonic() > deadline:
            for pid in running.values():
                os.kill(pid, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.01)
    return failed


def _error(folder: Path, rank: int) -> dict[str, Any] | None:
    """Error message of a failed rank; None if it crashed or was ended."""
    file = folder / f"{rank}.json"
    try:
        error: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return error if "error" in error else None


def _is_consequence(error: dict[str, Any] | None) -> bool:
    """Whether a rank lost its connection or waited in vain: gloo's errors are consequences of another rank's."""
    return error is not None and "gloo" in error["error"].lower()


def _failure(failed: dict[int, int], folder: Path, world: int) -> Problem:
    """The problem of the rank that failed first, or for ranks that wait for each other."""
    errors = {rank: error for rank in failed if (error := _error(folder, rank)) is not None}
    own = {rank: error for rank, error in errors.items() if not _is_consequence(error)}
    if own:
        rank = min(own, key=lambda number: float(own[number]["time"]))
        text = f"Rank {rank} of {world} failed first: {own[rank]['error']}"
        return Problem(kind="failed rank", text=text, rank=rank, line=own[rank]["line"])
    crashed = [rank for rank in failed if rank not in errors and failed[rank] != -signal.SIGKILL]
    if crashed:
        code = failed[crashed[0]]
        cause = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        text = f"Rank {crashed[0]} of {world} crashed first ({cause})."
        return Problem(kind="failed rank", text=text, rank=crashed[0])
    if not errors:
        first = min(failed)
        return Problem(kind="failed rank", text=f"Rank {first} of {world} was ended from outside.", rank=first)
    waiting = "; ".join(f"rank {rank} waited{_at(error) or ' outside your code'}" for rank, error in errors.items())
    text = (
        f"The ranks wait for each other (a hang): after {_COLLECTIVE_SECONDS:.0f} seconds, {waiting}. Every rank must "
        "run the same collectives in the same order."
    )
    return Problem(kind="hang", text=text, rank=min(errors), line=errors[min(errors)]["line"])


def _at(error: dict[str, Any]) -> str:
    return f" at {error['line']}" if error["line"] else ""


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
        begun = time.monotonic()
        traceback.print_exc()
        error: BaseException = raised
        while error.__cause__ is not None:  # PyTorch wraps the exception of a pipeline stage
            error = error.__cause__
        text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
        line = user_source_line(frames)
        message = {"error": text, "line": "" if line is None else str(line), "time": begun}
        (folder / f"{rank}.json").write_text(json.dumps(message))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run_rank(rank: int, world: int, work: Callable[[int], dict[str, Any]], folder: Path) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world,
        timeout=timedelta(seconds=_COLLECTIVE_SECONDS),
    )  # fmt: skip
    try:
        result = work(rank)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return result
