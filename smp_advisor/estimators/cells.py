"""Cells that start a training job: the objects that they create, and the final values of their names."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.errors import AdvisorError
from smp_advisor.reading.branches import settled
from smp_advisor.reading.following import follow
from smp_advisor.reading.run import Frame, TooLongError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from smp_advisor.reading.run import Run
    from smp_advisor.reading.source import Source, Unresolved
    from smp_advisor.reading.trace import Call
    from smp_advisor.reading.values import Function, Value

__all__ = ["Cell", "read_cell"]

_JSON_NAMES = {"true": True, "false": False, "null": None}
_MAKERS = ("PyTorch", "TensorFlow", "HuggingFace", "Estimator", "ModelTrainer", "create_training_job")
"""Calls that configure a job. If the cell runs none, its uncalled functions are read too."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell after it was read."""

    calls: tuple[Call, ...]
    names: dict[str, Value]
    """Values at the end of the cell."""
    only: Value | None
    """Value of its only expression, such as a pasted dictionary."""
    stopped: tuple[int, str] | None
    """The last line that was read, and the reason."""
    unresolved: tuple[Unresolved, ...]


def read_cell(source: Source, variables: Mapping[str, Any] | None = None, *, json: bool = False) -> Cell:
    """Read a cell without running it.

    Parameters
    ----------
    source
        The text.
    variables
        Plain data of names that the cell itself does not assign.
    json
        Whether the text is JSON, which writes truth values in small letters.

    Raises
    ------
    AdvisorError
        If the text is not Python 3, or far longer than a job's configuration.
    """
    names = {**(variables or {}), **(_JSON_NAMES if json else {})}
    try:
        run = follow(source, computes=True, variables=names, concerns=_makes)
        module = run.trace.modules[0]
        body = module.tree.body
        alone = body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None
        only = run.evaluate(Frame(module, module.scope), alone) if alone is not None else None
    except TooLongError:
        raise AdvisorError(f"{source.path} has too much code to read: paste the part with the estimator.") from None
    copies: dict[int, Value] = {}
    values = {name: settled(value, copies) for name, value in module.scope.names.items()}
    return Cell(tuple(run.trace.calls), values, only, run.stopped, tuple(run.unresolved))


def _makes(run: Run, function: Function) -> bool:
    """Whether a function that the cell does not call makes an estimator, and the cell itself makes none."""
    if not any(isinstance(node, ast.Call) and _called(node) in _MAKERS for node in ast.walk(function.node)):
        return False
    return not any(call.reached and call.called in _MAKERS for call in run.trace.calls)


def _called(call: ast.Call) -> str:
    """Last part of the name of the called object."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
