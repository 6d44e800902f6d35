"""Follow a cell from its first line to its last."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.cells.functions import from_plain
from smp_advisor.estimators.cells.state import State, TooLongError
from smp_advisor.estimators.cells.statements import execute
from smp_advisor.scripts.module import parse

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from smp_advisor.estimators.values import Made, Value
    from smp_advisor.scripts.source import Source

__all__ = ["Followed", "follow"]

JSON_NAMES = {"true": True, "false": False, "null": None}


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
    try:
        execute(state, (names,), module.tree.body)
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
