"""Faults of a job, from the variable FAULTS: run in each process before the script. The first two are of the second.

full        directories of checkpoints for which the disk has no space
killed      directory of the checkpoint during whose save the process ends without a word
nodes       each process is the only one of a node with a disk of its own
"""

import errno
import json
import os
from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystem

FAULTS = json.loads(os.environ["FAULTS"])
write = FileSystem.create_stream


def create_stream(self, path, mode):
    """Open a file of a checkpoint."""
    if "w" in mode and path.parent.name in FAULTS.get("full", ()):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if "w" in mode and path.parent.name == FAULTS.get("killed"):
        os._exit(9)
    return write(self, path, mode)


if FAULTS.get("nodes"):
    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": os.environ["RANK"]}
    disk = Path(f"node-{os.environ['RANK']}")
    disk.mkdir(exist_ok=True)
    os.chdir(disk)
if os.environ["RANK"] == "1":
    FileSystem.create_stream = create_stream
