"""Imports of large libraries in a fresh interpreter, without Python's garbage collection."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["without_collections"]

_OBJECTS_PER_COLLECTION = 20_000
"""New objects between later collections: work on models has few cycles, and the default of 700 takes a tenth of it."""


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Collect nothing, and never visit the objects made here again.

    Imports create hundreds of thousands of objects that live as long as the process, and almost no cycles.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(_OBJECTS_PER_COLLECTION)
        gc.enable()
