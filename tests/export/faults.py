"""Faults of a job, from the variable FAULTS: run in each process before the script. The first two are of the second.

full        directories of checkpoints for which the disk has no space
killed      directory of the checkpoint during whose save the process ends without a word
removed     file that the newest checkpoint lacks
nodes       each process works on a disk of its own
merged      a later job that has the files of all these disks
"""

import errno
import json
import os
import shutil
from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystem

FAULTS, CHECKPOINTS = json.loads(os.environ.get("FAULTS", "{}")), Path("/opt/ml/checkpoints")
faultless_stream = FileSystem.create_stream


def faulty_stream(self, path, mode):
    """Open a file of a checkpoint."""
    if "w" in mode and path.parent.name in FAULTS.get("full", ()):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if "w" in mode and path.parent.name == FAULTS.get("killed"):
        os._exit(9)
    return faultless_stream(self, path, mode)


if "removed" in FAULTS:
    (CHECKPOINTS / FAULTS["removed"]).unlink(missing_ok=True)
if FAULTS.get("nodes") or FAULTS.get("merged"):
    disk = CHECKPOINTS / f"node-{os.environ['RANK']}"
    disk.mkdir(exist_ok=True)
    if FAULTS.get("merged"):
        shutil.copytree(CHECKPOINTS / "node-1", disk, dirs_exist_ok=True)
    os.chdir(disk)
if os.environ["RANK"] == "1":
    FileSystem.create_stream = faulty_stream
