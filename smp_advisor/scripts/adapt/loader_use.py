"""Where a data loader is used: the names that refer to it, and whether its batches train the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.aliases import Place, aliases_of, callees, names_of
from smp_advisor.scripts.adapt.code import dotted, text_of, walk
from smp_advisor.scripts.adapt.roles import backward_calls
from smp_advisor.scripts.adapt.survey import targets_of

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.survey import Survey

__all__ = ["assigned_name", "is_held_out", "iterated", "places_of_loader", "reaches"]

_HELD_OUT = ("val", "eval", "test", "dev")


def assigned_name(survey: Survey, call: cst.Call) -> str | None:
    """Variable or key to which the loader is assigned."""
    parent = survey.parent(call)
    if isinstance(parent, cst.Assign | cst.AnnAssign):
        return next((dotted(target) for target in targets_of(parent)), None)
    if isinstance(parent, cst.DictElement):
        return text_of(parent.key)
    return None


def is_held_out(survey: Survey, call: cst.Call) -> bool:
    """Whether a loader only feeds evaluation: no loop over it has a backward pass, or only its name is known."""
    loops = _loops_over(survey, call)
    if loops:
        training = set(backward_calls(survey))
        return not any(reaches(survey, loop, training, 4) for loop in loops)
    return any(word in (assigned_name(survey, call) or "").lower() for word in _HELD_OUT)


def _loops_over(survey: Survey, call: cst.Call) -> list[cst.For]:
    """Loops over the batches of a loader."""
    places = places_of_loader(survey, call)
    loops = []
    for loop in survey.nodes:
        if isinstance(loop, cst.For):
            names = names_of(survey, places, survey.function(loop))
            if call in walk(loop.iter) or any(name in names for name in iterated(loop.iter)):
                loops.append(loop)
    return loops


def reaches(survey: Survey, node: cst.CSTNode, calls: set[cst.Call], depth: int) -> bool:
    """Whether a statement makes one of the calls, also through functions of the script."""
    for inner in walk(node):
        if inner in calls:
            return True
        if depth and isinstance(inner, cst.Call):
            for function, _ in callees(survey, inner):
                if function is not node and reaches(survey, function.body, calls, depth - 1):
                    return True
    return False


def places_of_loader(survey: Survey, call: cst.Call) -> set[Place]:
    """Variables that refer to the loader that a call creates, also as the result of a function of the script."""
    parent, function = survey.parent(call), survey.function(call)
    name = assigned_name(survey, call) if isinstance(parent, cst.Assign | cst.AnnAssign) else None
    places = aliases_of(survey, (function, name)) if name is not None else set()
    if isinstance(parent, cst.Return) and function is not None:
        for site in survey.calls:
            above = survey.parent(site)
            if dotted(site.func) == function.name.value and isinstance(above, cst.Assign):
                for target in targets_of(above):
                    if dotted(target) is not None:
                        places |= aliases_of(survey, (survey.function(site), str(dotted(target))))
    return places


def iterated(node: cst.CSTNode) -> list[str]:
    """Names over which a ``for`` loop may iterate, directly or through calls such as enumerate and tqdm."""
    name = dotted(node)
    if name is not None:
        return [name]
    if isinstance(node, cst.Call):
        return [name for arg in node.args for name in iterated(arg.value)]
    return []
