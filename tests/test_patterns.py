"""Every pattern over a text of others grows linearly with the text."""

import ast
import importlib
import pkgutil
import re
import signal

import pytest

import smp_advisor
from tests.sources import PACKAGE, trees

pytestmark = pytest.mark.slow

METHODS = {"search", "match", "fullmatch", "finditer", "findall", "sub", "subn", "split", "scanner"}
REPEATED = (
    " ", "\n", " \n", "\t", "1", "a", "_", ".", ",", "/", "-", "=", "(", "[", "{", '"', "'", "\\", "#", ":", "%", "*",
    "a ", "a.", "a=", "1 ", "1.", "a_", "- ", "import ", "# ", '"a', "[rank0]: ",
)  # fmt: skip
LENGTH = 20_000
PROCESSOR_SECONDS = 0.2
"""Linear patterns take a twentieth, quadratic ones at least the double."""


def _imported() -> dict[tuple[str, int], tuple[str, str]]:
    """Patterns that modules hold, as (module, name)."""
    patterns = {}
    for found in pkgutil.walk_packages(smp_advisor.__path__, "smp_advisor."):
        if ".templates" in found.name or found.name.endswith("__main__"):
            continue
        module = importlib.import_module(found.name)
        for name, value in vars(module).items():
            for pattern in _patterns_in(value, 0):
                if isinstance(pattern.pattern, str):
                    patterns.setdefault((pattern.pattern, pattern.flags), (found.name, name))
    return patterns


def _patterns_in(value: object, depth: int):
    if isinstance(value, re.Pattern):
        yield value
    elif depth < 4 and isinstance(value, dict):
        for entry in value.values():
            yield from _patterns_in(entry, depth + 1)
    elif depth < 4 and isinstance(value, (list, tuple, set, frozenset)):
        for entry in value:
            yield from _patterns_in(entry, depth + 1)


def _uses() -> tuple[dict[tuple[str, str], set[str]], dict[tuple[str, int, str], set[str]]]:
    """Methods by module and name of a pattern; and patterns that are written where they are used, with theirs."""
    named, written = {}, {}
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS):
                continue
            receiver = ast.unparse(node.func.value)
            if receiver == "re" and node.args and isinstance(node.args[0], ast.Constant):
                flags = next((word.value for word in node.keywords if word.arg == "flags"), None)
                value = eval(ast.unparse(flags), {"re": re}) if flags is not None else 0
                written.setdefault((node.args[0].value, int(value), str(path.name)), set()).add(node.func.attr)
            else:
                name = receiver.rpartition(".")[2].partition("[")[0]
                own = ".".join(("smp_advisor", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
                    ".__init__"
                )
                named.setdefault((own if name.startswith("_") else "", name), set()).add(node.func.attr)
    return named, written


class _SlowError(Exception):
    pass


def _grows(pattern: re.Pattern[str], methods: set[str]) -> list[str]:
    """Texts for which the pattern needs more than its processor time."""

    def stop(*_: object) -> None:
        raise _SlowError

    before = signal.signal(signal.SIGPROF, stop)
    slow = []
    try:
        for unit in REPEATED:
            text = (unit * LENGTH)[:LENGTH] + "\x01"
            for method in methods:
                signal.setitimer(signal.ITIMER_PROF, PROCESSOR_SECONDS)
                try:
                    if method in ("finditer", "findall", "sub", "subn", "split", "scanner"):
                        all(True for _ in pattern.finditer(text))
                    else:
                        getattr(pattern, method)(text)
                except _SlowError:
                    slow.append(unit)
                    break
                finally:
                    signal.setitimer(signal.ITIMER_PROF, 0)
    finally:
        signal.signal(signal.SIGPROF, before)
    return slow


def test_every_pattern_grows_linearly():
    named, written = _uses()
    slow = {}
    for (pattern, flags), (module, name) in _imported().items():
        methods = named.get((module if name.startswith("_") else "", name), {"search", "fullmatch"})
        if texts := _grows(re.compile(pattern, flags), methods):
            slow[f"{module}.{name}"] = (pattern, texts)
    for (pattern, flags, place), methods in written.items():
        if texts := _grows(re.compile(pattern, flags), methods):
            slow[f"{place}: {pattern}"] = (pattern, texts)
    assert not slow, "\n".join(f"{place}: {pattern} {texts}" for place, (pattern, texts) in slow.items())
