"""Read files of users: regular files only, up to a size for each kind."""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CONFIGURATION", "MODEL", "NOTEBOOK", "SCRIPT", "has_too_many_values", "read_bytes"]

SCRIPT = 500_000
"""Most bytes of Python: its syntax tree needs up to 200 times as many."""
NOTEBOOK = 32 * 2**20
"""Most bytes of a notebook, which holds pictures too."""
CONFIGURATION = 1_000_000
"""Most bytes of a recipe or request."""
MODEL = 16 * 2**20
"""Most bytes of a model's config.json."""
_MOST_VALUES = 1_000_000


def read_bytes(path: Path, most: int) -> bytes:
    """The bytes of a regular file.

    Raises
    ------
    OSError
        If it is missing, a device, pipe or folder, or larger than `most` bytes; ``strerror`` is the reason.
    """
    mode = path.stat().st_mode  # opening a pipe or device can wait or have effects
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    with path.open("rb") as file:
        raw = file.read(most + 1)  # the size of a file in /proc is 0
    if len(raw) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most / 1e6:.3g} MB")
    return raw


def has_too_many_values(json_text: str) -> bool:
    """Whether a JSON text can have more values than fit in 200 MB of memory."""
    return sum(map(json_text.count, ",[{")) > _MOST_VALUES
