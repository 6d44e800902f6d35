"""Steps: options of the command line and calls that the library does not take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.code import Edits, dotted, expression, keyword, text_of

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft
    from smp_advisor.scripts.adapt.survey import Survey


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
        draft.add_todo("parses_dataclasses", call)
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


_CHECKPOINT = "torch.utils.checkpoint"
_BY_HAND = {
    "torch.distributed.fsdp.fully_shard": "remove_sharding",
    "torch.nn.SyncBatchNorm": "synchronized_buffers",
    "torch.nn.SyncBatchNorm.convert_sync_batchnorm": "synchronized_buffers",
}
"""Calls that the library does not take, with the sentence on what to do."""


def replace_unsupported(draft: Draft) -> None:  # noqa: C901, PLR0912 - a list of cases
    """Replace or remove unsupported calls, with a to-do for calls that need a decision."""
    survey, edits = draft.survey, Edits()
    for node in survey.nodes:
        if isinstance(node, cst.ImportFrom) and node.module is not None and dotted(node.module) == _CHECKPOINT:
            edits.replace(node.module, expression("smdistributed.modelparallel.torch.patches.checkpoint"))
    for call in survey.calls:
        name, function, statement = survey.callee(call), survey.function(call), survey.statement(call)
        if name.startswith(f"{_CHECKPOINT}."):
            if isinstance(call.func, cst.Attribute):
                draft.add_todo("own_checkpoint", call)
            elif (option := keyword(call, "use_reentrant")) is not None:
                edits.replace(call, call.with_changes(args=[arg for arg in call.args if arg is not option]))
        elif name in ("torch.compile", "torch.jit.script", "torch.jit.trace"):
            parent, model = survey.parent(call), call.args[0].value if call.args else None
            same = isinstance(parent, cst.Assign) and model is not None
            if same and text_of(parent.targets[0].target) == text_of(model) and statement is not None:
                edits.remove(statement)
            elif model is not None and not isinstance(parent, cst.Decorator):
                edits.replace(call, model)
            else:
                draft.add_todo("remove_compiler", call, name=name)
        elif name in _BY_HAND or name.split(".")[0] == "apex":
            draft.add_todo(_BY_HAND.get(name, "apex"), call)
        elif text_of(call.func) == "super().forward" and function is not None and function.name.value == "forward":
            edits.replace(call.func, expression("super()._orig_forward"))
        elif isinstance(call.func, cst.Attribute) and call.func.attr.value.startswith("gradient_checkpointing_"):
            if statement is not None and isinstance(survey.parent(call), cst.Expr):
                edits.remove(statement)
                if not draft.target.activation_checkpointing:
                    draft.add_todo("checkpointing_removed")
        elif keyword(call, "closure") is not None and dotted(call.func):
            draft.add_todo("closure_argument", call)
    draft.apply(edits)
