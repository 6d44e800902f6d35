"""Records files that a script's Python processes write outside the script's folders.

Python imports this module when a process starts, because its folder is on PYTHONPATH. It appends each path to a log
that the environment names, and then imports the ``sitecustomize`` that it hides.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

__all__: list[str] = []

_MAX_PATHS = 200


def _watch(log: str, folders: tuple[str, ...]) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    written: set[str] = set()
    ignored = (*(f"{folder}{os.sep}" for folder in folders), "/dev/", "/proc/")

    def record(path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike) or len(written) >= _MAX_PATHS:
            return
        absolute = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 (pathlib takes longer to import)
        if absolute in written or absolute in folders or "__pycache__" in absolute or absolute.startswith(ignored):
            return
        written.add(absolute)
        os.write(descriptor, f"{absolute}\n".encode())

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            if isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                record(arguments[0])
            _watch_torch(record)
        elif event == "os.mkdir":
            record(arguments[0])
        elif event in {"os.rename", "os.link", "os.symlink"}:
            record(arguments[1])

    sys.addaudithook(hook)


def _watch_torch(record: Any) -> None:
    """Record the paths of ``torch.save``, which opens files in compiled code."""
    writer = getattr(sys.modules.get("torch.serialization"), "_open_zipfile_writer_file", None)
    if writer is None or hasattr(writer, "_smp_advisor"):
        return
    original = writer.__init__

    def opened(self: Any, name: Any) -> None:
        record(name)
        original(self, name)

    writer.__init__, writer._smp_advisor = opened, True


if "LOCAL_RUN_WRITES" in os.environ:
    _watch(os.environ["LOCAL_RUN_WRITES"], tuple(os.environ["LOCAL_RUN_FOLDERS"].split(os.pathsep)))

_own = os.path.dirname(__file__)  # noqa: PTH120
sys.path[:] = [path for path in sys.path if path != _own]
_hidden = sys.modules.pop("sitecustomize", None)
try:
    import_module("sitecustomize")
except ImportError:
    if _hidden is not None:
        sys.modules["sitecustomize"] = _hidden
