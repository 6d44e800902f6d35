"""Names of other libraries: one dotted name for each thing, and functions that the reader knows."""

from __future__ import annotations

import tomllib
from importlib.resources import files

__all__ = [
    "COMMANDS",
    "COMMAND_LINES",
    "ITERATORS",
    "LAUNCHED",
    "LAUNCHERS",
    "LEAVING",
    "NAMESPACES",
    "TRANSPARENT",
    "canonical",
]

_DATA = tomllib.loads((files("smp_advisor.reading") / "names.toml").read_text(encoding="utf-8"))
_PREFIXES: dict[str, str] = _DATA["prefixes"]
LAUNCHERS = frozenset(_DATA["functions"]["launchers"])
LAUNCHED = tuple(_DATA["functions"]["launched"])
COMMAND_LINES = frozenset(_DATA["functions"]["command_lines"])
COMMANDS = frozenset(_DATA["functions"]["commands"])
TRANSPARENT = frozenset(_DATA["functions"]["transparent"])
ITERATORS = frozenset(_DATA["functions"]["iterators"])
LEAVING = frozenset(_DATA["functions"]["leaving"])
NAMESPACES = frozenset(_DATA["functions"]["namespaces"])


def canonical(path: str) -> str:
    """`path` by the name that the checks use: ``smdistributed.modelparallel.torch.step`` is ``smp.step``."""
    for prefix, name in _PREFIXES.items():
        if path.startswith(prefix) and (path == prefix or prefix.endswith(".") or path[len(prefix)] == "."):
            return name + path[len(prefix) :]
    return path
