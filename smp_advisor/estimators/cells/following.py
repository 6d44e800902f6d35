"""Follow a cell from its first line to its last."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.cells.calls import enter
from smp_advisor.estimators.cells.functions import from_plain
from smp_advisor.estimators.cells.state import State, TooLongError
from smp_advisor.estimators.cells.statements import execute
from smp_advisor.estimators.values import Function
from smp_advisor.reading.module import parse

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from smp_advisor.estimators.values import Made, Value
    from smp_advisor.reading.source import Source

__all__ = ["Followed", "follow"]

JSON_NAMES = {"true": True, "false": False, "null": None}


_TELLING = ("PyTorch", "TensorFlow", "HuggingFace", "Estimator", "ModelTrainer", "create_training_job")
"""What a cell is read for: where running it makes none, functions that someone else calls may."""


@dataclass(frozen=True, slots=True)
class Followed:
    """What a cell has made and holds at its end."""

    made: tuple[Made, ...]
    names: dict[str, Value]
    last: Value | None
    """Of the last expression that stands for itself: a pasted dictionary."""
    stopped: tuple[int, str] | None
    """Line after which nothing is read, and why."""


def follow(source: Source, variables: Mapping[str, Any] | None = None, *, json: bool = False) -> Followed:
    """Read a cell; nothing of it is run.

    Parameters
    ----------
    source
        The text.
    variables
        Plain data that names of the cell stand for where the cell itself does not assign them.
    json
        Whether the text is JSON, where truth values are written in small letters.

    Raises
    ------
    AdvisorError
        Where the text is not Python 3, or far longer than a job's configuration.
    """
    module = parse(source)
    state = State(source)
    names = {name: from_plain(value) for name, value in (variables or {}).items()}
    if json:
        names |= {name: from_plain(value) for name, value in JSON_NAMES.items()}
    last: Value | None = None
    names.setdefault("__name__", from_plain("__main__"))
    try:
        execute(state, (names,), module.tree.body)
        if not any(one.name in _TELLING for one in state.made):
            _follow_the_rest(state, names, module.tree)
        if module.tree.body and isinstance(statement := module.tree.body[-1], ast.Expr) and len(module.tree.body) == 1:
            from smp_advisor.estimators.cells.expressions import evaluate

            last = evaluate(state, (names,), statement.value)
    except TooLongError:
        raise AdvisorError(
            f"{source.path} does far more than configure a job: paste the part that makes the estimator."
        ) from None
    except RecursionError:
        raise AdvisorError(f"{source.path} cannot be read: its expressions are nested too deeply.") from None
    return Followed(tuple(state.made), names, last, state.stopped)


def _follow_the_rest(state: State, names: dict[str, Value], tree: ast.Module) -> None:
    """Functions and methods that the cell does not call, with arguments that nobody knows."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if any(isinstance(call, ast.Call) and called(call) in _TELLING for call in ast.walk(node)):
            enter(state, Function(node, (names,)), [], {}, f"it is an argument of {node.name}")


def called(call: ast.Call) -> str:
    """Last part of the name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
