"""Refuse tests that compare a measured time: ``python scripts/clocks.py``.

A slow or busy machine would fail them. Work is counted (`tests/steps.py`), and speed is a benchmark.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
NAMES = {"monotonic", "perf_counter", "process_time", "thread_time"}
CLOCKS = {f"{module}{name}{unit}" for module in ("", "time.") for name in NAMES for unit in ("", "_ns")}
CLOCKS |= {"time.time", "time.time_ns", "default_timer", "timeit.default_timer"}


def measured(node: ast.AST, times: set[str]) -> bool:
    """Whether an expression reads a clock, or a name that has a time."""
    texts = {ast.unparse(part.func if isinstance(part, ast.Call) else part) for part in ast.walk(node)}
    return not texts.isdisjoint(CLOCKS | times)


def timed_assertions(source: str) -> list[int]:
    """Lines of the assertions that compare a time which the same function measured."""
    lines = set()
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        times: set[str] = set()
        nodes = sorted((node for node in ast.walk(function) if hasattr(node, "lineno")), key=lambda node: node.lineno)
        for node in nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                value = node.value
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
                targets, value = [node.func.value], node
            else:
                compared = [part for part in ast.walk(node) if isinstance(part, ast.Compare)]
                if isinstance(node, ast.Assert) and any(measured(part, times) for part in compared):
                    lines.add(node.lineno)
                continue
            if value is not None and measured(value, times):
                times |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return sorted(lines)


def main() -> int:
    """Print each such assertion; the exit status is 1 if there is one."""
    found = [
        f"{path.relative_to(TESTS.parent)}:{line}: the test compares a measured time: count steps instead"
        for path in sorted(TESTS.rglob("*.py"))
        if any(clock in (source := path.read_text("utf-8")) for clock in CLOCKS)
        for line in timed_assertions(source)
    ]
    print("\n".join(found), end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
