"""Keeps a process that runs somebody's code away from secrets, folders, sockets, processes and networks.

On Linux with user namespaces, the process gets a file system with the interpreter and one folder, a network with the
loopback device, and no processes but its own. Elsewhere it reports what it could not keep away.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import signal
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_FILES, _NEW_IPC, _NEW_USER, _NEW_PROCESSES, _NEW_NETWORK = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
_KEPT_FLAGS = 0x2 | 0x4 | 0x8 | 0x400 | 0x800  # nosuid, nodev, noexec, noatime, nodiratime
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_DETACH = 2
_PARENT_DEATH_SIGNAL = 1

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/sys/devices/system/cpu", "/opt/conda")
_SETTINGS = tuple(
    f"/etc/{name}"
    for name in ("passwd", "group", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf", "localtime",
                 "alternatives", "mime.types")
)  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom")
_VARIABLES = ("PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "TERM")
_PREFIXES = ("LC_", "OMP_", "MKL_", "OPENBLAS_", "PYTHONHASH", "HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM")


def clean_environment() -> dict[str, str]:
    """The variables without which an interpreter does not start; no other one is shown to the code."""
    return {n: v for n, v in os.environ.items() if n in _VARIABLES or n.startswith(_PREFIXES)}


def confined(folder: Path, work: Callable[[], object]) -> list[str]:
    """Call `work` in a confined process with `folder`, and return what could not be kept away from it.

    `work` returns nothing; its results are files in the folder. It runs in this process if namespaces are refused.
    """
    environment = clean_environment()
    os.environ.clear()
    os.environ.update(environment | {"HOME": str(folder), "TMPDIR": str(folder)})
    if _succeeds(lambda: _in_namespaces(folder, lambda: None)):
        if not _succeeds(lambda: _in_namespaces(folder, work)):
            raise RuntimeError("The process of the proof ended before its runs.")
        return []
    reachable = ["the folders, processes and Unix sockets of this account"]
    if _LIBC.unshare(_NEW_USER | _NEW_NETWORK):
        reachable.append("the network, through compiled code")
    else:
        _start_loopback()
    _refuse_connections()
    work()
    return reachable


def _succeeds(work: Callable[[], object]) -> bool:
    """Whether a function succeeds in a fork of this process."""
    child = os.fork()
    if not child:
        _end(work)
    return os.waitpid(child, 0)[1] == 0


def _end(work: Callable[[], object]) -> None:
    status = 1
    try:
        work()
        status = 0
    except OSError:
        pass
    finally:
        os._exit(status)


def _in_namespaces(folder: Path, work: Callable[[], object]) -> None:
    user, group = os.getuid(), os.getgid()
    _checked(_LIBC.unshare(_NEW_USER | _NEW_FILES | _NEW_NETWORK | _NEW_PROCESSES | _NEW_IPC))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    child = os.fork()  # the first process of the new namespace
    if not child:
        _LIBC.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)

        def begin() -> None:
            _start_loopback()
            _change_root(folder)
            work()

        _end(begin)
    if os.waitpid(child, 0)[1]:
        raise OSError


def _checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), "namespaces are refused")


def _mount(source: str, target: Path | str, kind: str | None, flags: int) -> None:
    kind_bytes = None if kind is None else kind.encode()
    _checked(_LIBC.mount(source.encode(), str(target).encode(), kind_bytes, ctypes.c_ulong(flags), None))


def _change_root(folder: Path) -> None:
    """Make a file system with the interpreter, its packages and the folder the only one."""
    root = folder / "root"
    root.mkdir(exist_ok=True)
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)
    _mount("tmpfs", root, "tmpfs", 0)
    shown: list[str] = []
    for path in _folders():
        real = os.path.realpath(path)
        if not Path(real).exists():
            continue
        if not any(real == parent or real.startswith(f"{parent}/") for parent in shown):
            _show(Path(real), root)
            shown.append(real)
        if path != real:
            _link(Path(path), root)
    _show(folder, root, writable=True)
    for name in _DEVICES:
        _show(Path("/dev", name), root, writable=True)
    (root / "dev/shm").mkdir()
    (root / "dev/fd").symlink_to("/proc/self/fd")
    (root / "tmp").mkdir(exist_ok=True)
    (root / "proc").mkdir()
    _mount("proc", root / "proc", "proc", 0)
    old = root / "old"
    old.mkdir()
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError("unknown architecture")
    os.chdir(root)
    _checked(_LIBC.syscall(ctypes.c_long(number), b".", b"old"))
    os.chdir("/")
    _checked(_LIBC.umount2(b"/old", _DETACH))
    old_folder = Path("/old")
    old_folder.rmdir()


def _folders() -> Iterable[str]:
    """Folders of the system, the interpreter, its packages, and this package."""
    yield from (*_SYSTEM, *_SETTINGS)
    yield from (sys.prefix, sys.base_prefix, sys.exec_prefix)
    yield from (path for path in sys.path if Path(path).name in ("site-packages", "dist-packages"))
    yield str(Path(__file__).parents[1])


def _show(path: Path, root: Path, *, writable: bool = False) -> None:
    target = root / path.relative_to("/")
    if path.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _mount(str(path), target, None, _BIND if writable else _BIND | _RECURSIVE)
    if not writable:
        mount_flags = os.statvfs(target).f_flag & _KEPT_FLAGS
        _mount("none", target, None, _BIND | _REMOUNT | _READ_ONLY | mount_flags)


def _link(path: Path, root: Path) -> None:
    """Make the first symbolic link of a path in the new file system."""
    for part in (*reversed(path.parents), path):
        if part.is_symlink():
            target = root / part.relative_to("/")
            with suppress(FileExistsError):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(os.path.realpath(part))
            return


def _start_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        up = struct.pack("16sh", b"lo", 0x1 | 0x40)  # IFF_UP, IFF_RUNNING
        fcntl.ioctl(device.fileno(), 0x8914, up)  # SIOCSIFFLAGS


def _refuse_connections() -> None:
    """Refuse connections of Python code to other machines and to Unix sockets, where namespaces are not allowed."""
    connect = socket.socket.connect

    def local(self: socket.socket, address: Any) -> None:
        if not isinstance(address, tuple) or address[0] not in ("127.0.0.1", "localhost", "::1"):
            raise OSError("The proof runs without a network.")
        connect(self, address)

    socket.socket.connect = local  # type: ignore[method-assign, assignment]
