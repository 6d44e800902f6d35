"""A few processes of one machine, forked from this one, that talk over gloo."""

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
    """Run `work(rank)` in as many processes, each a member of the default process group; what each returned.

    The processes share the memory of this one until they write to it: a model built here needs no sending.

    Raises
    ------
    ProfileError
        A rank failed; its traceback is in the log.
    """
    with tempfile.TemporaryDirectory() as folder:
        children = [_fork(rank, world, work, Path(folder)) for rank in range(world)]
        failed = [rank for rank, pid in enumerate(children) if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]
        answers = [Path(folder, f"{rank}.json") for rank in range(world)]
        if failed:
            said = [json.loads(answers[rank].read_text())["error"] for rank in failed if answers[rank].exists()]
            # The first to fail is the cause; the others lost their partner.
            cause = next((text for text in said if "gloo" not in text.lower()), said[0] if said else "it crashed")
            raise ProfileError(f"Rank {failed[0]} of the rehearsal failed: {cause}")
        return [json.loads(answer.read_text()) for answer in answers]


def _fork(rank: int, world: int, work: Callable[[int], dict[str, Any]], folder: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        answer = _live(rank, world, work, folder)
        (folder / f"{rank}.json").write_text(json.dumps(answer))
        status = 0
    except BaseException as raised:  # noqa: BLE001 (whatever it is, the others must not wait for this rank)
        traceback.print_exc()
        error: BaseException = raised
        while error.__cause__ is not None:  # PyTorch wraps what a stage raises
            error = error.__cause__
        text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        (folder / f"{rank}.json").write_text(json.dumps({"error": text}))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _live(rank: int, world: int, work: Callable[[int], dict[str, Any]], folder: Path) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    try:
        answer = work(rank)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return answer
