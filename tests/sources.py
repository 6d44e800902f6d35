"""The modules of the package as trees, parsed once for all tests that read them in one process (`GROUPS`)."""

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "smp_advisor"


@cache
def trees() -> dict[Path, ast.Module]:
    """Return the tree of each file."""
    return {path: ast.parse(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")}
