"""Child process: runs programs as two processes over gloo, forks of this one, since importing PyTorch takes longest.

Each line of the input is a program and its port as JSON. The answer is a line with the exit status, output and errors
of rank 0, and whether it waited in vain.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

import torch._dynamo
import torch.distributed.fsdp
import torch.nn.parallel
import torch.utils.data

from smp_advisor.profiling.sandbox.deadlock import answer_in, ends_of


def rank(number: int, port: int, program: str, output: Path) -> int:
    """Process of a rank that runs the program, with its output in files."""
    if pid := os.fork():
        return pid
    status = 1
    try:
        answer_in(output / f"{number}.stack")
        for stream in (1, 2):
            os.dup2(os.open(output / f"{number}.{stream}", os.O_WRONLY | os.O_CREAT), stream)
        os.environ |= {"RANK": str(number), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        # A program without collectives may end on one rank before the other one has connected to it.
        os.environ |= {"TORCH_DIST_INIT_BARRIER": "1", "GLOO_SOCKET_IFNAME": "lo"}
        exec(compile(program, "program", "exec"), {"__name__": "__main__"})
        status = 0
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run(program: str, port: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        pids = [rank(number, port, program, Path(folder)) for number in range(2)]
        ends = ends_of({pid: Path(folder, f"{number}.stack") for number, pid in enumerate(pids)})
        output, errors = (Path(folder, f"0.{stream}").read_text() for stream in (1, 2))
    first = ends[pids[0]]
    return {"status": first.code, "waited": first.waited, "output": output, "errors": errors}


if __name__ == "__main__":
    assert torch.distributed.is_gloo_available()
    gc.freeze()  # a collection in a fork would copy the pages of all that was imported
    for line in sys.stdin:
        print(json.dumps(run(*json.loads(line))), flush=True)
