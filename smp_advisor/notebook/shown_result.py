"""Display of a magic's result that a cell assigns: IPython displays only the value of a cell's last expression."""

# mypy: allow-untyped-calls
# IPython does not annotate the functions called here.

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from IPython.display import display

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["show_result"]


def show_result(shell: InteractiveShell, magic: str, result: object) -> None:
    """Display the result of a line magic, unless IPython displays it as the value of its cell."""
    inputs = getattr(shell.history_manager, "input_hist_raw", [""])
    if not _is_value(shell.transform_cell(inputs[-1]), magic):
        display(result)


def _is_value(cell: str, magic: str) -> bool:
    """Whether the last expression of a cell is the magic."""
    try:
        body = ast.parse(cell).body
    except SyntaxError:
        return False
    if not body or not isinstance(body[-1], ast.Expr) or not isinstance(body[-1].value, ast.Call):
        return False
    call = body[-1].value
    name = call.args[0] if call.args else None
    return ast.unparse(call.func).endswith("run_line_magic") and isinstance(name, ast.Constant) and name.value == magic
