"""Steps: PyTorch's own process group goes, the library starts and takes this process's GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import libcst as cst

from smp_advisor.scripts.adapt.code import children, dotted, expression, keyword, positional, spelled, statements
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.entry import entry
from smp_advisor.scripts.adapt.imports import add_import, drop_unused_imports

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft
    from smp_advisor.scripts.adapt.survey import Survey

__all__ = ["IMPORT", "remove_process_group", "start_library"]

IMPORT = "import smdistributed.modelparallel.torch as smp"

_RANKS = {
    "torch.distributed.get_rank": "smp.rank()",
    "torch.distributed.get_world_size": "smp.size()",
    "torch.distributed.barrier": "smp.barrier()",
}
_VARIABLES = {"LOCAL_RANK": "smp.local_rank()", "RANK": "smp.rank()", "WORLD_SIZE": "smp.size()"}
_REMOVED = ("torch.distributed.init_process_group", "torch.distributed.destroy_process_group", "torch.cuda.set_device")


def remove_process_group(draft: Draft) -> None:
    """Drop ``init_process_group`` and its kin; ranks come from the library."""
    survey, edits = draft.survey, Edits()
    for call in survey.calls:
        name = survey.callee(call)
        if name in _REMOVED and isinstance(survey.parent(call), cst.Expr):
            edits.remove(_line(survey, call))
        elif name in _RANKS and not call.args:
            edits.replace(call, expression(_RANKS[name]))
        elif name == "torch.distributed.barrier":
            edits.replace(call, expression("smp.barrier()"))
        elif name in ("torch.distributed.is_initialized", "torch.distributed.is_available"):
            edits.replace(call, expression("True"))
        elif name in ("torch.multiprocessing.spawn", "torch.multiprocessing.spawn.spawn"):
            _run_here(draft, edits, call)
        elif name.startswith("torch.distributed.") and name.rpartition(".")[2] in (
            "all_reduce",
            "reduce",
            "all_gather",
            "broadcast",
            "all_gather_object",
        ):
            draft.leave_to_do(
                f"`{draft.at(call)}` runs over all processes: pass group=smp.get_dp_process_group(), or let ranks of"
                " one replica take part once."
            )
    _replace_variables(draft, edits)
    if not edits:
        return
    draft.apply(edits)
    _empty_set_up(draft)
    drop_unused_imports(
        draft,
        {
            "torch.distributed",
            "torch.multiprocessing",
            "torch.distributed.init_process_group",
            "torch.distributed.destroy_process_group",
        },
    )
    add_import(draft, IMPORT, local="smp")


def _line(survey: Survey, call: cst.Call) -> cst.CSTNode:
    small = survey.parent(call)
    statement = survey.statement(call)
    alone = not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) == 1
    return cast("cst.CSTNode", statement if alone else small)


def _run_here(draft: Draft, edits: Edits, call: cst.Call) -> None:
    """``mp.spawn(worker, args=(a, b), ...)`` becomes ``worker(smp.local_rank(), a, b)``: MPI starts the processes."""
    function, given = keyword(call, "fn") or positional(call, 0), keyword(call, "args") or positional(call, 1)
    if function is None or (given is not None and not isinstance(given.value, cst.Tuple)):
        draft.leave_to_do(
            f"`{draft.at(call)}` starts processes that MPI has started already: call the function itself."
        )
        return
    arguments = ["smp.local_rank()"]
    if given is not None and isinstance(given.value, cst.Tuple):
        arguments += [spelled(element.value) for element in given.value.elements]
    edits.replace(call, expression(f"{spelled(function.value)}({', '.join(arguments)})"))


def _replace_variables(draft: Draft, edits: Edits) -> None:
    """``int(os.environ["LOCAL_RANK"])`` and ``args.local_rank``: nobody sets them under MPI."""
    survey = draft.survey
    for node in survey.nodes:
        key = _environment_key(survey, node)
        parent = survey.parent(node)
        if key in _VARIABLES and not isinstance(parent, cst.AssignTarget | cst.Del):
            whole = survey.parent(parent) if isinstance(parent, cst.Arg) else None
            outer = whole if isinstance(whole, cst.Call) and dotted(whole.func) == "int" else node
            edits.replace(outer, expression(_VARIABLES[key]))
        elif key in ("MASTER_ADDR", "MASTER_PORT", *_VARIABLES) and isinstance(parent, cst.AssignTarget):
            statement = survey.statement(node)
            if statement is not None:
                edits.remove(statement)
        elif (
            isinstance(node, cst.Attribute)
            and node.attr.value == "local_rank"
            and not isinstance(parent, cst.AssignTarget)
            and not (isinstance(parent, cst.Attribute | cst.Call) and children(parent)[0] is node)
            and _parses(survey, "local_rank")
            and dotted(node.value) not in ("smp", "self")
        ):
            edits.replace(node, expression("smp.local_rank()"))


def _parses(survey: Survey, option: str) -> bool:
    """Whether the command line has this option (torch.distributed.launch passes it)."""
    return any(
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value == "add_argument"
        and any(spelled(arg.value).strip("\"'").lstrip("-").replace("-", "_") == option for arg in call.args)
        for call in survey.calls
    )


def _environment_key(survey: Survey, node: cst.CSTNode) -> str:
    text: cst.CSTNode | None = None
    if isinstance(node, cst.Subscript) and survey.qualified(node.value) == "os.environ" and len(node.slice) == 1:
        index = node.slice[0].slice
        text = index.value if isinstance(index, cst.Index) else None
    elif isinstance(node, cst.Call) and survey.callee(node) in ("os.environ.get", "os.getenv") and node.args:
        text = node.args[0].value
    if isinstance(text, cst.SimpleString) and isinstance(text.evaluated_value, str):
        return text.evaluated_value
    return ""


def _empty_set_up(draft: Draft) -> None:
    """Functions that only set up or tore down the process group do nothing now: their calls and they go."""
    survey, edits = draft.survey, Edits()
    for function in survey.functions:
        body = [s for s in function.body.body if not _is_docstring(s)]
        if len(body) != 1 or not isinstance(body[0], cst.SimpleStatementLine) or survey.class_of(function) is not None:
            continue
        if not isinstance(body[0].body[0], cst.Pass) or function.decorators:
            continue
        calls = [call for call in survey.calls if dotted(call.func) == function.name.value]
        if calls and all(isinstance(survey.parent(call), cst.Expr) for call in calls):
            for call in calls:
                edits.remove(_line(survey, call))
            edits.remove(function)
    draft.apply(edits)


def _is_docstring(statement: cst.CSTNode) -> bool:
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and isinstance(statement.body[0], cst.Expr)
        and isinstance(statement.body[0].value, cst.SimpleString)
    )


def start_library(draft: Draft) -> None:
    """``smp.init()`` and ``torch.cuda.set_device(smp.local_rank())`` before anything works."""
    add_import(draft, IMPORT, local="smp")
    first = entry(draft.survey)
    edits = Edits()
    if first is None:
        draft.leave_to_do("No statement was found that starts the work: call smp.init() before anything else.")
        return
    text = "smp.init()  # reads the plan from the job\ntorch.cuda.set_device(smp.local_rank())\n"
    if draft.survey.imported.get("torch") != "torch":
        text = "import torch\n" + text
    edits.insert_before(first, statements(text))
    for node in draft.survey.nodes:
        if isinstance(node, cst.SimpleString) and node.raw_value == "cuda:0":
            edits.replace(node, node.with_changes(value=node.value.replace("cuda:0", "cuda")))
    draft.apply(edits)
