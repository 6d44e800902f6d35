"""Keeps a process that runs somebody's code away from secrets, folders, sockets, processes and networks.

On Linux with user namespaces, the process sees a file system in memory with the interpreter and copies of what it was
given, a network with the loopback device alone, and no processes but its own. The code then runs without capabilities
and cannot gain any, so that nothing of this can be taken off. Elsewhere the caller learns what was not kept away.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import socket
import stat
import struct
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ProfileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_NEW_FILES, _NEW_IPC, _NEW_USER, _NEW_PROCESSES, _NEW_NETWORK = (
    0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
_READ_ONLY, _NO_SETUID, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x1, 0x2, 0x20, 0x1000, 0x4000, 0x40000
_KEPT_FLAGS = 0x2 | 0x4 | 0x8 | 0x400 | 0x800  # nosuid, nodev, noexec, noatime, nodiratime
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_DETACH = 2
_PARENT_DEATH, _DUMPABLE, _DROP_BOUNDING, _NO_NEW_PRIVILEGES, _AMBIENT, _CLEAR_AMBIENT = 1, 4, 24, 38, 47, 4
_CAPABILITIES_VERSION = 0x20080522

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/sys/devices/system/cpu", "/opt/conda")
_SETTINGS = tuple(
    f"/etc/{name}"
    for name in ("passwd", "group", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf", "localtime",
                 "alternatives", "mime.types")
)  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom")
_VARIABLES = ("PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "TERM")
_PREFIXES = ("LC_", "OMP_", "MKL_", "OPENBLAS_", "PYTHONHASH", "TOKENIZERS_PARALLELISM")
UNCONFINED = "the folders, processes, sockets and network of this account"
RECORDS = "the records of its own run"
"""Where the kernel lets a process look into another one of its user that made itself unreadable."""


@dataclass(frozen=True, slots=True)
class Confined:
    """Result of confined work, and what the code could reach; empty if it saw only copies and no network."""

    result: Any
    reachable: tuple[str, ...]


def clean_environment() -> dict[str, str]:
    """Return the variables without which an interpreter does not start; no other one is shown to the code."""
    return {n: v for n, v in os.environ.items() if n in _VARIABLES or n.startswith(_PREFIXES)}


def confined(
    work: Callable[[Path], Any], *, shown: Mapping[str, Path], size_bytes: int, allow_unconfined: bool = False
) -> Confined:
    """Call ``work(root)`` where its code can do no harm, and return its result, which must be plain data.

    Parameters
    ----------
    work
        Called with the root of its file system. It may fork; `release` drops what a fork must not inherit.
    shown
        Absolute path inside to the file or folder that is seen there, read-only.
    size_bytes
        Bound of everything that is written inside: it is kept in memory.
    allow_unconfined
        Work in a temporary folder of this account where namespaces are refused.

    Raises
    ------
    ProfileError
        Namespaces are refused and `allow_unconfined` is false, or the process ended without a result.
    """
    environment = clean_environment()
    if sys.platform == "linux":
        file = os.memfd_create("result")

        def begin() -> None:
            os.write(file, b"\n")
            _answer(file, work(Path("/")))

        is_done = _succeeds(lambda: _in_namespaces(shown, size_bytes, begin, environment))
        with os.fdopen(file, "rb") as stream:
            stream.seek(0)
            data = stream.read()
        if is_done:
            answer = json.loads(data)
            return Confined(answer["result"], () if answer["is_hidden"] else (RECORDS,))
        if data:  # namespaces are not refused
            raise ProfileError("The confined process ended before its work was done.")
    if not allow_unconfined:
        raise ProfileError(
            f"This system refuses namespaces, so the script could reach {UNCONFINED}: pass allow_unconfined=True if "
            "you trust it."
        )
    with tempfile.TemporaryDirectory(prefix="smp-rehearsal-") as folder:
        root = Path(folder).resolve()
        for target, source in shown.items():
            place = root / target.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(source.resolve())
        os.environ.clear()
        os.environ.update(environment | {"HOME": folder, "TMPDIR": folder})
        return Confined(work(root), (UNCONFINED,))


def release() -> None:
    """Close every descriptor of this fork but the standard ones, and let it read its own state; first call of a fork.

    The descriptors of results stay with the parent, which code in the fork can neither open nor trace.
    """
    os.closerange(3, 1 << 16)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DUMPABLE, 1)


def _answer(file: int, result: Any) -> None:
    def look() -> None:
        release()
        Path(f"/proc/{os.getppid()}/fd/0").readlink()

    answer = {"result": result, "is_hidden": not _succeeds(look)}  # whether a fork cannot look into this process
    data = json.dumps(answer).encode()
    while data:
        data = data[os.write(file, data) :]


def _succeeds(work: Callable[[], object]) -> bool:
    """Return whether a function succeeds in a fork of this process."""
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


def _in_namespaces(
    shown: Mapping[str, Path], size_bytes: int, work: Callable[[], object], environment: Mapping[str, str] | None = None
) -> None:
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(libc.unshare(_NEW_USER | _NEW_FILES | _NEW_NETWORK | _NEW_PROCESSES | _NEW_IPC))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    child = os.fork()  # the first process of the new namespace
    if not child:
        libc.prctl(_PARENT_DEATH, signal.SIGKILL)

        def begin() -> None:
            _start_loopback()
            _change_root(shown, size_bytes)
            _give_up_rights()
            if environment is not None:
                os.environ.clear()
                os.environ.update({**environment, "HOME": "/tmp", "TMPDIR": "/tmp"})  # noqa: S108 - of the sandbox
            work()

        _end(begin)
    if os.waitpid(child, 0)[1]:
        raise OSError


def _give_up_rights() -> None:
    """Drop every capability for good, and be unreadable for code in forks, which run as the same user."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = 0
    while not libc.prctl(_DROP_BOUNDING, number, 0, 0, 0):
        number += 1
    libc.prctl(_AMBIENT, _CLEAR_AMBIENT, 0, 0, 0)
    header = struct.pack("Ii", _CAPABILITIES_VERSION, 0)
    _checked(libc.capset(header, bytes(24)))
    _checked(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _checked(libc.prctl(_DUMPABLE, 0, 0, 0, 0))


def _checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), "namespaces are refused")


def _mount(source: str, target: Path | str, kind: str | None, flags: int, options: str | None = None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [None if word is None else word.encode() for word in (source, str(target), kind, options)]
    _checked(libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]))


def _change_root(shown: Mapping[str, Path], size_bytes: int) -> None:
    """Make a file system of bounded size with the interpreter, its packages and what is shown the only one."""
    root = Path(tempfile.gettempdir(), "root")
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)
    # A file system over the folder of temporary files, so that nothing is left on the disk: what is shown is opened
    # before, since it can be in that folder.
    opened: list[tuple[str, int]] = []
    links: list[Path] = []
    for path in _folders():
        real = os.path.realpath(path)
        if not Path(real).exists():
            continue
        if not any(real == parent or real.startswith(f"{parent}/") for parent, _ in opened):
            opened.append((real, os.open(real, os.O_PATH)))
        links += [Path(path)] if path != real else []
    opened += [(target, os.open(path, os.O_PATH)) for target, path in shown.items()]
    first_links = [next(part for part in (*reversed(link.parents), link) if part.is_symlink()) for link in links]
    targets = [(part, os.path.realpath(part)) for part in first_links]
    _mount("tmpfs", root.parent, "tmpfs", _NO_SETUID, f"size={size_bytes},mode=700")
    root.mkdir()
    _mount("tmpfs", root, "tmpfs", _NO_SETUID, f"size={size_bytes},mode=755")
    for target, descriptor in opened:
        _show(f"/proc/self/fd/{descriptor}", root / target.lstrip("/"))
        os.close(descriptor)
    for part, real in targets:
        with suppress(FileExistsError):
            place = root / part.relative_to("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(real)
    for name in _DEVICES:
        _show(f"/dev/{name}", root / "dev" / name, writable=True)
    (root / "dev/shm").mkdir()
    (root / "dev/fd").symlink_to("/proc/self/fd")
    for name in ("tmp", "proc"):
        (root / name).mkdir(exist_ok=True)
    _mount("proc", root / "proc", "proc", 0)
    _lock_settings(root / "proc")
    _enter(root)


def _lock_settings(proc: Path) -> None:
    """Make the settings of the kernel read-only."""
    # Nothing inside can make a namespace, in which mounts would be possible again.
    for limit in (proc / "sys/user").glob("max_*_namespaces"):
        limit.write_text("0")
    for entry in os.scandir(proc):
        is_setting = entry.is_dir(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_mode & stat.S_IWUSR
        if is_setting and not entry.name.isdigit() and not entry.is_symlink():
            _show(entry.path, Path(entry.path))


def _enter(root: Path) -> None:
    old = root / "old"
    old.mkdir()
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError("unknown architecture")
    os.chdir(root)
    _checked(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), b".", b"old"))
    os.chdir("/")
    _checked(ctypes.CDLL(None, use_errno=True).umount2(b"/old", _DETACH))
    old_folder = Path("/old")
    old_folder.rmdir()


def _folders() -> Iterable[str]:
    """Folders of the system, the interpreter, its packages, and this package."""
    yield from (*_SYSTEM, *_SETTINGS)
    yield from (sys.prefix, sys.base_prefix, sys.exec_prefix)
    yield from (path for path in sys.path if Path(path).name in ("site-packages", "dist-packages"))
    yield str(Path(__file__).parents[1])


def _show(source: str, target: Path, *, writable: bool = False) -> None:
    if target.exists():
        pass
    elif Path(source).is_dir():
        target.mkdir(parents=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _mount(source, target, None, _BIND if writable else _BIND | _RECURSIVE)
    if not writable:
        mount_flags = os.statvfs(target).f_flag & _KEPT_FLAGS
        _mount("none", target, None, _BIND | _REMOUNT | _READ_ONLY | mount_flags)


def _start_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        up = struct.pack("16sh", b"lo", 0x1 | 0x40)  # IFF_UP, IFF_RUNNING
        import fcntl  # Windows has none

        fcntl.ioctl(device.fileno(), 0x8914, up)  # SIOCSIFFLAGS
