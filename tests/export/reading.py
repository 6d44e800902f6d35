"""Reading, changing and formatting of emitted cells, which are not run."""

import ast
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def estimator_arguments(cell):
    """Keyword arguments of the one estimator of a cell that are written as plain data."""
    (call,) = [
        node
        for node in ast.walk(ast.parse(cell))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("HuggingFace", "PyTorch", "TensorFlow")
    ]
    arguments = {}
    for keyword in call.keywords:
        with suppress(ValueError):
            arguments[keyword.arg] = ast.literal_eval(keyword.value)
    return arguments


def typed(value):
    """A value with its type: 4 equals 4.0 and True equals 1 in Python, and not for the library."""
    if isinstance(value, dict):
        return {key: typed(entry) for key, entry in value.items()}
    return type(value).__name__, value


class _Anonymous(ast.NodeTransformer):
    def visit_Constant(self, node):
        return ast.Constant(value=type(node.value).__name__)


def shape(cell):
    """What a cell does, with the values of its constants left out."""
    return ast.dump(_Anonymous().visit(ast.parse(cell)))


def names_of(source, *names, **known):
    """Some functions and constants of a script or cell, run apart from the rest, with what they use."""
    for node in ast.parse(source).body:
        if getattr(node, "name", ast.unparse(node).split(" ")[0]) in names:
            exec(ast.unparse(node), known)
    return known


def replaced(old, new):
    """A change of a cell, which must be possible in one place."""

    def change(cell):
        assert cell.count(old) == 1, f"{old!r} must be in the cell once"
        return cell.replace(old, new)

    return change


# The formatter of ruff writes the same as black, a hundred times faster.
_OPTIONS = ["--isolated", "--target-version=py311", "--line-length=120"]
_FORMAT = [Path(sys.executable).with_name("ruff"), "format", *_OPTIONS]


def formatted(source: str) -> str:
    """The source as the formatter writes it, without the options of this project."""
    return subprocess.run([*_FORMAT, "-"], input=source.encode(), capture_output=True, check=True).stdout.decode()


def unformatted(folder: Path) -> str:
    """What the formatter would change in the Python files of a folder."""
    return subprocess.run([*_FORMAT, "--diff", folder], capture_output=True, text=True, check=False).stdout
