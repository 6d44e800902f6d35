"""Where a script starts to work, its options, downloads and seeds, and calls that the library does not take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.adaptation import is_docstring
from smp_advisor.scripts.adapt.aliases import names_of
from smp_advisor.scripts.adapt.code import Edits, dotted, expression, keyword, statements, text_of, walk
from smp_advisor.scripts.adapt.roles import model_places
from smp_advisor.scripts.adapt.survey import Statement, Survey, known_names, targets_of

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.adaptation import Draft
    from smp_advisor.scripts.adapt.survey import Survey


_PASSIVE = known_names("passive_prefixes")
_WORKING = known_names("working_prefixes")


def is_main_guard(statement: cst.CSTNode) -> bool:
    """Whether a statement is ``if __name__ == "__main__":``."""
    return (
        isinstance(statement, cst.If)
        and "__name__" in text_of(statement.test)
        and "__main__" in text_of(statement.test)
    )


def entry(survey: Survey) -> Statement | None:
    """First statement that does work, before which the library is initialized; None if there is none."""
    block = list(survey.module.body)
    while True:
        first = next((statement for statement in block if _works(survey, statement)), None)
        if first is None:
            return None
        if is_main_guard(first):
            block = survey.body_of(cst.ensure_type(first, cst.If).body.body[0])
            if not any(_works(survey, statement) for statement in block):
                return block[0]
            continue
        called = _only_call(survey, first)
        if called is None or not called.body.body:
            return first
        block = _after_docstring(called)
        if not any(_works(survey, statement) for statement in block):
            return block[0] if block else first
        return block[0]


def _after_docstring(function: cst.FunctionDef) -> list[Statement]:
    body = [statement for statement in function.body.body if isinstance(statement, Statement)]
    return body[1:] if is_docstring(body[0]) and len(body) > 1 else body


def _works(survey: Survey, statement: Statement) -> bool:
    if isinstance(statement, cst.FunctionDef | cst.ClassDef):
        return False
    if is_main_guard(statement):
        return True
    return any(
        (isinstance(node, cst.Call) and _is_work(survey, node)) or _creates_model(survey, node)
        for node in walk(statement)
    )


def _creates_model(survey: Survey, node: cst.CSTNode) -> bool:
    """Whether a node assigns the result of a call to a trained model, for example of a function of another module."""
    if not isinstance(node, cst.Assign) or not isinstance(node.value, cst.Call):
        return False
    names = names_of(survey, model_places(survey), survey.function(node))
    return any(dotted(target) in names for target in targets_of(node))


def _is_work(survey: Survey, call: cst.Call) -> bool:
    name = survey.callee(call)
    if not name or name.startswith(_PASSIVE):
        return False
    if survey.named(name) or survey.classes_named(name):
        return not _reads_options(survey, name)
    return f"{name}.".startswith(_WORKING)


def _reads_options(survey: Survey, name: str) -> bool:
    """Whether a function of the script only parses the command line."""
    return any(
        isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "add_argument"
        for function in survey.named(name)
        for node in walk(function)
    ) and not any(
        isinstance(node, cst.Call)
        and survey.callee(node).split(".")[0] == "torch"
        and "cuda" not in survey.callee(node)
        for function in survey.named(name)
        for node in walk(function)
    )


def _only_call(survey: Survey, statement: Statement) -> cst.FunctionDef | None:
    """The function called by a statement such as ``main()``, if it is called nowhere else."""
    if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(statement.body[0], cst.Expr):
        return None
    call = statement.body[0].value
    if not isinstance(call, cst.Call) or any("smp." in text_of(arg) for arg in call.args):
        return None
    functions = survey.named(dotted(call.func) or "")
    # A function that runs more than once must not initialize the library.
    calls = [site for site in survey.calls if dotted(site.func) == dotted(call.func)]
    return functions[0] if len(functions) == 1 and len(calls) == 1 else None


def download_once(draft: Draft) -> None:
    """Restrict ``download=True`` to local rank 0."""
    download_on(draft, local_rank="smp.local_rank()", barrier="smp.barrier()")


def download_on(draft: Draft, *, local_rank: str, barrier: str) -> bool:
    """Restrict ``download=True`` to the first process of an instance; whether there was such a call."""
    survey, edits = draft.survey, Edits()
    for call in survey.calls:
        option = keyword(call, "download")
        if option is None or dotted(option.value) != "True":
            continue
        if any(isinstance(above, cst.If) and "local_rank" in text_of(above.test) for above in survey.ancestors(call)):
            continue
        statement = survey.statement(call)
        if not isinstance(statement, cst.SimpleStatementLine):
            draft.add_todo("downloads_everywhere", call, local_rank=local_rank, barrier=barrier)
            continue
        edits.insert_before(statement, statements(f"if {local_rank} == 0:\n    {text_of(call)}\n{barrier}\n"))
        edits.replace(option.value, cst.Name("False"))
    changed = bool(edits)
    draft.apply(edits)
    return changed


_MODEL_SEEDS = frozenset(known_names("model_seeds"))
_DATA_SEEDS = frozenset(known_names("data_seeds"))


def seed_by_rank(draft: Draft) -> None:
    """Add the rank to every seed, and give data splits their own generator."""
    survey, edits = draft.survey, Edits()
    seeded = False
    for call in survey.calls:
        name = survey.callee(call)
        if name not in _MODEL_SEEDS | _DATA_SEEDS or len(call.args) != 1 or call.args[0].star:
            continue
        seeded |= name in _MODEL_SEEDS
        argument = call.args[0]
        if "smp." in text_of(argument.value):
            continue
        rank = "smp.dp_rank()" if name in _MODEL_SEEDS else draft.target.data_rank
        text = text_of(argument.value)
        if not isinstance(argument.value, cst.Name | cst.Attribute | cst.Integer | cst.Call | cst.Subscript):
            text = f"({text})"
        edits.replace(argument.value, expression(f"{text} + {rank}"))
    if seeded:
        for call in survey.calls:
            if survey.callee(call).endswith("random_split") and keyword(call, "generator") is None:
                # The split must be the same on every rank.
                added = expression(
                    f"f({', '.join(text_of(arg).rstrip(', ') for arg in call.args)},"
                    " generator=torch.Generator().manual_seed(0))"
                )
                edits.replace(call, cst.ensure_type(added, cst.Call).with_changes(func=call.func))
    elif draft.target.tensor_parallel:
        start = next(
            (c for c in survey.calls if survey.callee(c) == "torch.cuda.set_device" and "smp." in text_of(c)), None
        )
        statement = survey.statement(start) if start is not None else None
        if statement is not None:
            edits.insert_after(statement, statements("torch.manual_seed(smp.dp_rank())\n"))
    draft.apply(edits)


def seed_models(draft: Draft) -> None:
    """Seed PyTorch after the process group if the script has no seed."""
    survey, edits = draft.survey, Edits()
    if any(survey.callee(call) in _MODEL_SEEDS for call in survey.calls):
        return
    group = next((c for c in survey.calls if survey.callee(c) == "torch.distributed.init_process_group"), None)
    statement = survey.statement(group) if group is not None else None
    if statement is None or survey.imported.get("torch") != "torch":
        draft.add_todo("seed_models")
        return
    edits.insert_after(statement, statements("torch.manual_seed(0)\n"))
    draft.apply(edits)


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
            draft.add_todo("parses_dataclasses", call)
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
            assigned = parent.targets[0].target if isinstance(parent, cst.Assign) else None
            same = assigned is not None and model is not None and text_of(assigned) == text_of(model)
            if same and statement is not None:
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
