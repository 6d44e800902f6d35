"""Files next to a configuration: its training script, and configurations that its notebook writes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from smp_advisor.files import CONFIGURATION, NOTEBOOK, SCRIPT, read_bytes

__all__ = ["Siblings"]

_WRITES = re.compile(r"\s*%%writefile\s+(?:-a\s+)?(?P<path>\S+)[^\n]*\n(?P<text>.*)", re.DOTALL)
_MOST_FOLDERS = 3
"""Folders above the file in which a relative path of the text may start."""


@dataclass(frozen=True, slots=True)
class Siblings:
    """Files near the one that was checked; none for pasted text."""

    file: Path | None

    def text(self, *parts: str) -> str | None:
        """Text of a file by its path in the configuration, or of the cell that writes it; None if there is none."""
        if self.file is None or not all(parts):
            return None
        relative = PurePosixPath(*(part.replace("\0", "") for part in parts))
        if relative.is_absolute():
            relative = PurePosixPath(relative.name)  # a path in the container
        most = SCRIPT if relative.suffix == ".py" else CONFIGURATION
        for folder in (self.file.parent, *list(self.file.parent.parents)[:_MOST_FOLDERS]):
            try:
                return read_bytes(folder / relative, most).decode("utf-8")
            except (OSError, ValueError):
                continue
        return self._written(relative.name)

    def _written(self, name: str) -> str | None:
        if self.file is None or self.file.suffix != ".ipynb":
            return None
        try:
            cells = json.loads(read_bytes(self.file, NOTEBOOK))["cells"]
            texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        for text in texts:
            match = _WRITES.match(text)
            if match is not None and PurePosixPath(match["path"]).name == name:
                return match["text"]
        return None
