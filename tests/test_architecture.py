"""The arrows between rooms are those of docs/architecture.md, and they go one way."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.sources import PACKAGE, trees

pytestmark = pytest.mark.slow  # together, since they read the same files

ROOT = PACKAGE.parent
ROW = re.compile(r"^\| `(?P<room>\w+)` \| [^|]* \| (?P<imports>[^|]*) \|$", re.MULTILINE)
MUTUAL = [
    {"workload"},  # `Model.from_profile` and its kin build the class that they are methods of
    {"profiling"},  # a result and its form on disk
]
"""Rooms in which modules may import each other."""


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


@cache
def modules() -> dict[str, ast.Module]:
    return {name_of(path): tree for path, tree in trees().items()}


def imports_of(tree: ast.AST, *, typing_only: bool = False) -> set[tuple[str, bool]]:
    """Modules of the package that a module imports, at its top or in a function, and whether for types only."""
    found = set()
    for node in ast.iter_child_nodes(tree):
        typing = typing_only or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("smp_advisor"):
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {(name if name in modules() else str(node.module), typing) for name in names}
        elif isinstance(node, ast.Import):
            found |= {(alias.name, typing) for alias in node.names if alias.name.startswith("smp_advisor")}
        elif not isinstance(node, ast.expr):  # which contains no statement
            found |= imports_of(node, typing_only=typing)
    return found


@cache
def graph() -> dict[str, set[str]]:
    """For each module, what it imports to run."""
    return {name: {target for target, typing in imports_of(tree) if not typing} for name, tree in modules().items()}


def circles(arrows: dict[str, set[str]]) -> list[set[str]]:
    """Groups of nodes that reach each other."""
    reach = {node: set(targets) for node, targets in arrows.items()}
    for middle, beyond in reach.items():
        for targets in reach.values():
            if middle in targets:
                targets |= beyond  # noqa: PLW2901 - changed in place
    groups = [frozenset(other for other in targets if node in reach.get(other, ())) for node, targets in reach.items()]
    return [set(group) for group in set(groups) if len(group) > 1]


def room_arrows() -> dict[str, set[str]]:
    arrows: dict[str, set[str]] = defaultdict(set)
    for module, targets in graph().items():
        room = room_of(module)
        if room:
            arrows[room] |= {room_of(target) for target in targets} - {room, ""}
    return arrows


def test_the_page_lists_the_arrows_between_rooms_which_go_up():
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    listed = {row["room"]: set(re.findall(r"`(\w+)`", row["imports"])) for row in ROW.finditer(page)}
    arrows = room_arrows()
    assert set(listed) == set(arrows) | {room for targets in arrows.values() for room in targets}
    assert listed == {room: arrows.get(room, set()) for room in listed}
    rooms = [*listed]
    for room, targets in arrows.items():
        assert all(rooms.index(target) < rooms.index(room) for target in targets), room
    assert not circles(arrows)


def test_modules_import_each_other_only_where_it_is_explained():
    for group in circles(graph()):
        assert {room_of(module) for module in group} in MUTUAL, sorted(group)
        assert len(group) <= 5


def test_the_page_links_to_what_exists():
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    for path in re.findall(r"`((?:smp_advisor|js|tests|docs|scripts|benchmarks)/[\w./-]+)`", page):
        assert (ROOT / path).exists(), path


def test_the_commands_of_developers_find_what_they_import():
    """Not all of them run in the tests."""
    names = [f"scripts.{path.stem}" for path in sorted((ROOT / "scripts").glob("*.py"))]
    code = f"import importlib\nfor name in {names}: importlib.import_module(name)"
    end = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert not end.returncode, end.stderr
