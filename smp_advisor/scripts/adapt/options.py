"""Step: the command line of the script accepts unknown options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.code import dotted, expression, keyword
from smp_advisor.scripts.adapt.edits import Edits

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft
    from smp_advisor.scripts.adapt.survey import Survey

__all__ = ["accept_unknown_options"]


def accept_unknown_options(draft: Draft) -> None:
    """Replace ``parse_args()`` by ``parse_known_args()``."""
    survey, edits = draft.survey, Edits()
    for call in survey.calls:
        if not isinstance(call.func, cst.Attribute):
            continue
        if call.func.attr.value == "parse_args" and _is_parser(survey, call.func.value):
            _known_args(survey, edits, call)
        elif (
            call.func.attr.value == "parse_args_into_dataclasses" and keyword(call, "return_remaining_strings") is None
        ):
            _known_dataclasses(draft, edits, call)
    draft.apply(edits)


def _is_parser(survey: Survey, node: cst.CSTNode) -> bool:
    """Whether a node is or may be an argparse parser; parsers of other libraries have no ``parse_known_args``."""
    if isinstance(node, cst.Call):
        return survey.callee(node).endswith("ArgumentParser")
    name = dotted(node)
    sources = [a for a in survey.assignments(survey.function(node), name or "") if isinstance(a.value, cst.Call)]
    if sources:
        return all(isinstance(a.value, cst.Call) and _makes_parser(survey, a.value) for a in sources)
    return any(origin.split(".")[0] == "argparse" for origin in survey.imported.values())


def _makes_parser(survey: Survey, call: cst.Call) -> bool:
    return survey.callee(call).endswith("ArgumentParser") or (dotted(call.func) or "") in {
        function.name.value for function in survey.functions
    }


def _known_args(survey: Survey, edits: Edits, call: cst.Call) -> None:
    renamed = call.func.with_changes(attr=cst.Name("parse_known_args"))
    parent = survey.parent(call)
    edits.replace(call.func, renamed)
    if isinstance(parent, cst.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0].target, cst.Name):
        name = parent.targets[0].target.value
        edits.replace(parent.targets[0].target, expression(f"{name}, _"))
    else:
        edits.change(
            call,
            lambda new: cst.Subscript(
                value=cst.ensure_type(new, cst.Call),
                slice=[cst.SubscriptElement(slice=cst.Index(value=cst.Integer("0")))],
            ),
        )


def _known_dataclasses(draft: Draft, edits: Edits, call: cst.Call) -> None:
    parent = draft.survey.parent(call)
    target = parent.targets[0].target if isinstance(parent, cst.Assign) else None
    if not isinstance(target, cst.Tuple):
        draft.add_todo(
            f"`{draft.excerpt(call)}` fails on the option --mp_parameters: pass return_remaining_strings=True and"
            " discard the last result."
        )
        return
    # The remaining strings are one more element of the result.
    remaining = cst.Element(value=cst.Name("_"))
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    elements = [element.with_changes(comma=comma) for element in target.elements]
    edits.replace(target, target.with_changes(elements=[*elements, remaining]))
    argument = cst.Arg(
        keyword=cst.Name("return_remaining_strings"),
        value=cst.Name("True"),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    edits.change(
        call, lambda new: new.with_changes(args=[*(arg.with_changes(comma=comma) for arg in new.args), argument])
    )
