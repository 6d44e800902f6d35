"""Files of users: regular files of limited size, written completely or not at all; and data files of the package."""

from __future__ import annotations

import csv
import errno
import json
import os
import stat
import tomllib
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from functools import cache
from importlib import resources
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import BinaryIO

SCRIPT = 500_000
"""Most bytes of Python: its syntax tree needs up to 200 times as many."""
NOTEBOOK = 32 * 2**20
"""Most bytes of a notebook, which holds pictures too."""
CONFIGURATION = 1_000_000
"""Most bytes of a recipe or request."""
MODEL = 16 * 2**20
"""Most bytes of a model's config.json, and of a stored advice."""
LOG = 64 * 2**20
"""Most bytes of a log that is read at once."""
_MOST_VALUES = 1_000_000
_OF_THE_SYSTEM = ("/proc/", "/sys/")
"""Folders with files that are regular by their mode, and may have no end or wait for content."""


def data_file(room: str, name: str) -> dict[str, Any]:
    """The content of ``data/<name>.toml`` in a room of the package, which all callers share: do not change it."""
    return table(f"smp_advisor.{room}", f"data/{name}.toml")


def sentence(room: str, key: str, /, **values: Any) -> str:
    """Return a sentence of ``data/sentences.toml`` in a room of the package, with its slots filled."""
    return str(data_file(room, "sentences")[key]).format(**values)


@cache
def table(package: str, file: str) -> dict[str, Any]:
    """Return a TOML file of any package, parsed once. Callers must not change it."""
    return tomllib.loads((resources.files(package) / file).read_text(encoding="utf-8"))


@cache
def rows(package: str, file: str) -> tuple[dict[str, str], ...]:
    """Return the rows of a CSV file of any package, read once. Lines that start with ``#`` are comments."""
    lines = (resources.files(package) / file).read_text(encoding="utf-8").splitlines()
    return tuple(csv.DictReader(line for line in lines if not line.startswith("#")))


_READERS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": {"yes": True, "no": False}.__getitem__,
    "int | None": lambda text: int(text) if text else None,
    "float | None": lambda text: float(text) if text else None,
}


def columns(kind: type[Any], row: dict[str, str]) -> dict[str, Any]:
    """Return the fields of a record that a row of a CSV file has, each read by the annotation of the field."""
    # The fields of a record that was stored have the types, others their names.
    kinds = {field.name: field.type.__name__ if isinstance(field.type, type) else field.type for field in fields(kind)}
    return {name: _READERS[str(of)](row[name]) for name, of in kinds.items() if name in row}


_ROOTS: ContextVar[tuple[str, ...]] = ContextVar("_ROOTS", default=())
"""Real paths of the folders that readers are confined to; none is no limit."""


@contextmanager
def confined(roots: Iterable[Path]) -> Iterator[None]:
    """Refuse files outside of some folders, whoever opens them, as for the tools of assistants."""
    token = _ROOTS.set(tuple(os.path.realpath(root) for root in roots))
    try:
        yield
    finally:
        _ROOTS.reset(token)


def folders_from(file: Path) -> list[Path]:
    """Return the folder of a file and those above it in which a project has its settings, nearest first."""
    return [*file.resolve().parents][:5]


class Text(str):
    """Text of a caller that is never a path, whatever it looks like."""

    __slots__ = ()


def is_path(path: object) -> bool:
    """Whether a value can be the path of a file: text of 1 to 4,096 bytes in parts of up to 255, as Linux takes it."""
    try:
        text = os.fspath(path)  # type: ignore[call-overload]
        encoded = os.fsencode(text) if isinstance(text, str) else b""
    except (TypeError, UnicodeEncodeError):
        return False
    return 0 < len(encoded) <= 4096 and b"\0" not in encoded and max(map(len, encoded.split(b"/"))) <= 255


def user_path(path: str | os.PathLike[str], error: type[Exception]) -> Path:
    """Return the path that a person named, with its ``~``; an error in one sentence if there can be none."""
    try:
        if is_path(target := Path(path).expanduser()) and os.fspath(path):
            return target
        reason = "no file has such a name"
    except (TypeError, ValueError):
        reason = "it is no path"
    except RuntimeError:  # ~name of nobody
        reason = "there is no such user"
    raise error(f"{path!r:.200} cannot be found: {reason}.")


@contextmanager
def opened(path: Path, *, everywhere: bool = False) -> Iterator[BinaryIO]:
    """Open a regular file. Kind and place are those of the file that is read, not of one with the same name.

    Parameters
    ----------
    path
        The file.
    everywhere
        Whether it may lie outside of the folders of `confined`: the package chose it, not the caller.

    Raises
    ------
    OSError
        There is no such file, it is not a regular one, or it is outside of the folders.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "no file has such a name")
    _require_regular(path.stat(), path)  # opening a pipe or device can wait or have effects
    # Between the test and the opening, the name may have got another file.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        _require_regular(status, path)
        roots = _ROOTS.get()
        if roots and not everywhere:
            real = Path(os.path.realpath(path))
            if not os.path.samestat(status, real.stat()) or not any(real.is_relative_to(root) for root in roots):
                folders = ", ".join(roots)
                raise OSError(errno.EACCES, f"only files in {folders} are read")
            if status.st_nlink > 1:  # hard links: a name in the folder of a file outside
                raise OSError(errno.EACCES, "only files in the folder alone are read, and it has another name: copy it")
        yield file


def read_bytes(path: Path, most: int, *, everywhere: bool = False) -> bytes:
    with opened(path, everywhere=everywhere) as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most / 1e6:.3g} MB")
    return raw


def read_text(
    path: Path, most: int, error: type[Exception], *, decoding: str = "strict", everywhere: bool = False
) -> str:
    """Return the text of a regular file in UTF-8; an error in one sentence if it cannot be read."""
    try:
        return read_bytes(path, most, everywhere=everywhere).decode("utf-8", decoding)
    except OSError as problem:
        raise error(f"{str(path)!r:.200} cannot be read: {problem.strerror or problem}.") from None
    except UnicodeError:
        raise error(f"{str(path)!r:.200} is not text in UTF-8.") from None


def read_new(path: Path, place: int, most: int) -> tuple[bytes, int]:
    """Read what a growing file has since a place, at most its last bytes, in complete lines; and the next place."""
    with opened(path) as file:
        size = file.seek(0, os.SEEK_END)
        if size < place:  # another file with the same name
            place = 0
        place = max(place, size - most)
        file.seek(place)
        raw = file.read(most)
    end = raw.rfind(b"\n") + 1
    return raw[:end], place + end


def ends(file: BinaryIO, first: int, last: int) -> tuple[bytes, int]:
    """The first and the last bytes of a file, in complete lines, and the number of bytes left out between them."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size <= first + last:
        return file.read(first + last), 0
    head = file.read(first)
    head = head[: head.rfind(b"\n") + 1]
    file.seek(size - last)
    tail = file.read(last)  # of a file that grows, too
    tail = tail[tail.find(b"\n") + 1 :]
    return head + tail, size - len(head) - len(tail)


def _require_regular(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode) or os.path.realpath(path).startswith(_OF_THE_SYSTEM):
        raise OSError(errno.EINVAL, "it is not a regular file")


def write_text(path: Path, text: str) -> None:
    """Write a file in one step: it has the new text or its earlier content, whatever happens, and keeps its mode."""
    target = Path(os.path.realpath(path))  # a link stays, and its target changes
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    mode = target.stat().st_mode if target.exists() else None
    if mode is not None and not stat.S_ISREG(mode):  # a rename would replace a device itself
        raise OSError(errno.EINVAL, "it is not a regular file")
    temporary = target.with_name(f".smp_advisor_{token_hex(8)}")
    try:
        with temporary.open("x", encoding="utf-8", errors="surrogatepass", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def json_values(json_text: str) -> Any:
    """Return the values of a JSON text; a ValueError where it has more of them, or deeper ones, than a file has."""
    if sum(map(json_text.count, ",[{")) > _MOST_VALUES:  # they would take 200 MB of memory
        raise ValueError("it has too many values")
    try:
        return json.loads(json_text)
    except RecursionError:
        raise ValueError("its values are too deep") from None
