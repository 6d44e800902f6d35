"""A private view of ``/opt/ml`` for one process and its descendants, by a mount namespace of Linux."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["OPT_ML", "can_mount", "mount_privately"]

OPT_ML = Path("/opt/ml")
"""Folder of a training job in SageMaker's containers."""

_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000


@cache
def can_mount() -> bool:
    """Whether this system allows private mounts; tried once, in a child process."""
    if not Path("/proc/self/ns/mnt").exists():
        return False
    with TemporaryDirectory(prefix="smp-mount-") as folder:
        for name in ("ml", "parent"):
            Path(folder, name).mkdir()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                mount_privately(Path(folder, "ml"), Path(folder, "parent"))
                status = 0 if OPT_ML.is_dir() else 1
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def mount_privately(source: Path, parent: Path) -> None:
    """Make `source` appear as ``/opt/ml`` in this process and its descendants; the machine is unchanged.

    Parameters
    ----------
    source
        Folder to show as ``/opt/ml``.
    parent
        Empty folder, used where ``/opt/ml`` does not exist: the contents of ``/opt`` are shown over a temporary one.

    Raises
    ------
    OSError
        The system does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _enter_namespace(libc)
    _mount(libc, None, "/", _RECURSIVE | _PRIVATE)
    if not OPT_ML.is_dir():
        _mount(libc, OPT_ML.parent, parent, _BIND | _RECURSIVE)
        _mount(libc, None, OPT_ML.parent, 0, kind=b"tmpfs")
        for entry in parent.iterdir():
            shown = OPT_ML.parent / entry.name
            if entry.is_symlink():
                shown.symlink_to(entry.readlink())
                continue
            if entry.is_dir():
                shown.mkdir()
            else:
                shown.touch()
            _mount(libc, entry, shown, _BIND | _RECURSIVE)
        OPT_ML.mkdir()
    _mount(libc, source, OPT_ML, _BIND | _RECURSIVE)


def _enter_namespace(libc: ctypes.CDLL) -> None:
    """Enter a new mount namespace, inside a new user namespace with the same user if that is required."""
    if libc.unshare(_NEW_MOUNTS) == 0:
        return
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_USER | _NEW_MOUNTS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        Path("/proc/self", name).write_text(text)


def _mount(libc: ctypes.CDLL, source: Path | None, target: Path | str, flags: int, kind: bytes | None = None) -> None:
    name = kind or (os.fsencode(source) if source is not None else None)
    if libc.mount(name, os.fsencode(target), kind, ctypes.c_ulong(flags), None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)}: mount {target}")
