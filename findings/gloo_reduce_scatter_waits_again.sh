#!/usr/bin/env bash
# torch 2.13.0, gloo: each wait() of an asynchronous reduce_scatter_tensor writes the sum into the output again.
#
# Why it matters: code that averages by hand waits, divides the output by the number of processes, and may wait for the
# same handle once more, as a prefetcher or a wrapper does. With reduce_scatter_tensor the division is undone in silence,
# so gradients are too large by the number of processes. all_reduce of the same backend keeps the division. A script that
# is tested on processors and a job on GPUs (NCCL waits without writing) then train with different gradients.
#
# Seen on 2026-11-29, Linux, Python 3.11, two processes: reduce_scatter_tensor [1.0, 3.0], halved [0.5, 1.5], after a
# second wait [1.0, 3.0]; all_reduce [2.0], halved [1.0], after a second wait [1.0].
# Needs pip and disk for PyTorch. Fails if the behavior changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet 'torch==2.13.0' 'numpy<3'
cat >"$folder/waits.py" <<'PROGRAM'
import sys
import warnings

import torch
import torch.distributed as dist

warnings.simplefilter("ignore")


def work(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    shard = torch.zeros(2)
    handle = dist.reduce_scatter_tensor(shard, torch.arange(4.0) + rank, async_op=True)
    handle.wait()
    summed = shard.tolist()
    shard /= 2
    handle.wait()
    whole = torch.ones(1)
    other = dist.all_reduce(whole, async_op=True)
    other.wait()
    whole /= 2
    other.wait()
    if rank == 0:
        print(f"torch {torch.__version__}: reduce_scatter_tensor {summed}, halved, after a second wait {shard.tolist()}")
        print(f"all_reduce, halved, after a second wait {whole.tolist()}")
        assert summed == [1.0, 3.0], "the sum is another one"
        assert shard.tolist() == summed, "the second wait no longer writes the sum again"
        assert whole.tolist() == [1.0], "all_reduce writes again, too"
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, args=(sys.argv[1],), nprocs=2)
PROGRAM
"$folder/venv/bin/python" "$folder/waits.py" "$folder"
