"""Whether a job reaches the place of a finding, by its plan and the defaults of the script's options."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.reading.values import Argument
from smp_advisor.scripts.back_ends import BACK_ENDS
from smp_advisor.scripts.conditions import Conditions, arguments_of

if TYPE_CHECKING:
    from smp_advisor.reading.module import Module
    from smp_advisor.reading.trace import Call, Guard
    from smp_advisor.scripts.context import Context, Hit

__all__ = ["Reaching"]

_SMP_V1 = ("smp_torch", "smp_tensorflow")


class Reaching:
    """Reachable places of one script."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._calls: dict[ast.AST, list[Call]] = {}
        for call in context.trace.calls:
            self._calls.setdefault(call.node, []).append(call)
        self._planned = Conditions(context.settings)
        self._default = Conditions(context.settings, defaults=True, granted=_granted(context))

    def never(self, hit: Hit) -> bool:
        """Whether the plan prevents the job from reaching the place: ``if args.tensor_parallel_degree == 1``."""
        calls = self._around(hit.module, hit.node)
        return bool(calls) and all(self._planned.off(call) for call in calls)

    def needed(self, hit: Hit) -> str:
        """Options that the job must pass to reach the place: "with --fp16"; empty if it always does."""
        calls = self._around(hit.module, hit.node)
        if not calls or not all(self._default.off(call) for call in calls):
            return ""
        return " and ".join(dict.fromkeys(_phrase(guard) for guard in self._default.off(calls[0])))

    def back_end(self, library: str, hit: Hit) -> str | None:
        """The condition for a rule of `library` to apply at the place; None if the script runs it without the library.

        Empty if the library is always there.
        """
        titles = []
        for name in _SMP_V1 if library == "smp_v1" else (library,):
            if name not in BACK_ENDS or not getattr(self._context.libraries, name):
                continue
            back_end = BACK_ENDS[name]
            calls = self._around(hit.module, hit.node)
            if calls and all(back_end.excludes(call) for call in calls):
                continue
            if name not in self._context.libraries.optional or any(back_end.runs(call) for call in calls):
                return ""
            titles.append(back_end.title)
        if library not in (*BACK_ENDS, "smp_v1"):
            return ""
        return f"where {titles[0]} is used" if titles and self._context.trains else None

    def _around(self, module: Module, node: ast.AST) -> list[Call]:
        """The recorded calls at the place: of the node itself, or of the innermost call that contains it."""
        place: ast.AST | None = node
        while place is not None and not isinstance(place, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if place in self._calls:
                return self._calls[place]
            if isinstance(place, ast.stmt):
                break
            place = module.parent(place)
        if isinstance(place, (ast.Expr, ast.Assign, ast.Return, ast.AugAssign)):
            return next((self._calls[inner] for inner in ast.walk(place) if inner in self._calls), [])
        return []


def _phrase(guard: Guard) -> str:
    names = [f"--{name}" for name in sorted(arguments_of(guard.value))]
    if not names:
        return f"{'where' if guard.holds else 'unless'} {ast.unparse(guard.test)}"
    plain = isinstance(guard.value, Argument)
    if not plain:
        return f"by the value of {', '.join(names)}"
    return f"{'with' if guard.holds else 'without'} {names[0]}"


def _granted(context: Context) -> dict[str, bool]:
    """Conditions that are true wherever the script trains: every job that trains sets their options."""
    trains = [call for call in context.trace.methods("backward") if call.reached]
    trains = trains or [call for call in context.trace.methods("train") if call.reached and call.loops == ()]
    if not trains:
        return {}
    shared: dict[str, bool] | None = None
    for call in trains:
        here = {ast.dump(guard.test): guard.holds for guard in call.guards}
        shared = here if shared is None else {test: holds for test, holds in shared.items() if here.get(test) is holds}
    return shared or {}
