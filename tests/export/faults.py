"""Faults of a job, from the variable FAULTS: run in each process before the script. The first three are of the second.

full        directories of checkpoints for which the disk has no space
killed      directory of the checkpoint during whose save the process ends without a word
terminated  the step of the optimizer (loading a checkpoint makes one) in which the process receives SIGTERM
nodes       each process is the only one of a node with a disk of its own
"""

import errno
import json
import os
import signal
from pathlib import Path

import torch
from torch.distributed.checkpoint.filesystem import FileSystem

FAULTS = json.loads(os.environ["FAULTS"])
write, step = FileSystem.create_stream, torch.optim.AdamW.step
steps = []


def create_stream(self, path, mode):
    """Open a file of a checkpoint."""
    if "w" in mode and path.parent.name in FAULTS.get("full", ()):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if "w" in mode and path.parent.name == FAULTS.get("killed"):
        os._exit(9)
    return write(self, path, mode)


def optimizer_step(self, *arguments, **options):
    """Step of the optimizer."""
    steps.append(1)
    if len(steps) == FAULTS.get("terminated"):
        os.kill(os.getpid(), signal.SIGTERM)
    return step(self, *arguments, **options)


if FAULTS.get("nodes"):
    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": os.environ["RANK"]}
    disk = Path(f"node-{os.environ['RANK']}")
    disk.mkdir(exist_ok=True)
    os.chdir(disk)
if os.environ["RANK"] == "1":
    FileSystem.create_stream = create_stream
    torch.optim.AdamW.step = optimizer_step
