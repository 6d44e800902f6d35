"""Steps: start the processes of the library or of torchrun, and select the GPU of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import libcst as cst

from smp_advisor.scripts.adapt.adaptation import add_import, drop_unused_imports
from smp_advisor.scripts.adapt.code import Edits, children, dotted, expression, keyword, positional, statements, text_of
from smp_advisor.scripts.adapt.entry import download_on, entry

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.adaptation import Draft
    from smp_advisor.scripts.adapt.survey import Survey


IMPORT = "import smdistributed.modelparallel.torch as smp"

_RANKS = {
    "torch.distributed.get_rank": "smp.rank()",
    "torch.distributed.get_world_size": "smp.size()",
    "torch.distributed.barrier": "smp.barrier()",
}
_VARIABLES = {"LOCAL_RANK": "smp.local_rank()", "RANK": "smp.rank()", "WORLD_SIZE": "smp.size()"}
_REMOVED = ("torch.distributed.init_process_group", "torch.distributed.destroy_process_group", "torch.cuda.set_device")


def remove_process_group(draft: Draft) -> None:
    """Remove the set-up of the process group, and take ranks from the library."""
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
            replace_spawn(draft, edits, call, local_rank="smp.local_rank()", launcher="MPI")
        elif name.startswith("torch.distributed.") and name.rpartition(".")[2] in (
            "all_reduce",
            "reduce",
            "all_gather",
            "broadcast",
            "all_gather_object",
        ):
            draft.add_todo("collective_over_all", call)
    _replace_variables(draft, edits)
    if not edits:
        return
    draft.apply(edits)
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


def replace_spawn(draft: Draft, edits: Edits, call: cst.Call, *, local_rank: str, launcher: str) -> bool:
    """Replace ``mp.spawn(worker, args=(a, b), ...)`` by ``worker(<local rank>, a, b)``; return whether it was replaced.

    The launcher of the job starts one process per GPU.
    """
    function, options = keyword(call, "fn") or positional(call, 0), keyword(call, "args") or positional(call, 1)
    if function is None or (options is not None and not isinstance(options.value, cst.Tuple)):
        draft.add_todo("spawns", call, launcher=launcher)
        return False
    arguments = [local_rank]
    if options is not None and isinstance(options.value, cst.Tuple):
        arguments += [text_of(element.value) for element in options.value.elements]
    edits.replace(call, expression(f"{text_of(function.value)}({', '.join(arguments)})"))
    return True


def _replace_variables(draft: Draft, edits: Edits) -> None:
    """Replace ``int(os.environ["LOCAL_RANK"])`` and ``args.local_rank``, which are not set under MPI."""
    survey = draft.survey
    for node in survey.nodes:
        key = _environment_key(survey, node)
        parent = survey.parent(node)
        if key in _VARIABLES and not isinstance(parent, cst.AssignTarget | cst.Del):
            outer_call = survey.parent(parent) if isinstance(parent, cst.Arg) else None
            outer = outer_call if isinstance(outer_call, cst.Call) and dotted(outer_call.func) == "int" else node
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
    """Whether the script defines this command-line option."""
    return any(
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value == "add_argument"
        and any(text_of(arg.value).strip("\"'").lstrip("-").replace("-", "_") == option for arg in call.args)
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


def start_library(draft: Draft) -> None:
    """Insert ``smp.init()`` and ``torch.cuda.set_device(smp.local_rank())`` at the entry point."""
    add_import(draft, IMPORT, local="smp")
    first = entry(draft.survey)
    edits = Edits()
    if first is None:
        draft.add_todo("no_entry_v1")
        return
    text = "smp.init()  # reads the plan from the job\ntorch.cuda.set_device(smp.local_rank())\n"
    if draft.survey.imported.get("torch") != "torch":
        text = "import torch\n" + text
    edits.insert_before(first, statements(text))
    use_current_device(draft.survey, edits)
    draft.apply(edits)


def use_current_device(survey: Survey, edits: Edits) -> None:
    """Replace the device ``"cuda:0"`` by ``"cuda"``, the GPU of this process."""
    for node in survey.nodes:
        if isinstance(node, cst.SimpleString) and node.raw_value == "cuda:0":
            edits.replace(node, node.with_changes(value=node.value.replace("cuda:0", "cuda")))


_INIT = "tsm.init()  # reads the plan from the job\n"
LOCAL_RANK = 'int(os.environ["LOCAL_RANK"])'
_KEPT = ("backend", "timeout")


def start_library_with_torchrun(draft: Draft) -> None:
    """Call ``tsm.init()`` after the process group, which is created if the script has none."""
    add_import(draft, "import torch.sagemaker as tsm", local="tsm")
    leave_to_torchrun(draft)
    survey, edits = draft.survey, Edits()
    group = next((c for c in survey.calls if survey.callee(c) == "torch.distributed.init_process_group"), None)
    statement = survey.statement(group) if group is not None else None
    if statement is not None:
        edits.insert_after(statement, statements(_INIT))
        draft.apply(edits)
        return
    first = entry(survey)
    if first is None:
        draft.add_todo("no_entry_v2")
        return
    text = f'dist.init_process_group("nccl")\n{_INIT}torch.cuda.set_device({LOCAL_RANK})\n'
    if survey.imported.get("torch") != "torch":
        text = "import torch\n" + text
    edits.insert_before(first, statements(text))
    use_current_device(survey, edits)
    draft.apply(edits)
    add_import(draft, "import torch.distributed as dist", local="dist")
    add_import(draft, "import os", local="os")


def leave_to_torchrun(draft: Draft) -> None:
    """Remove the processes, addresses and ranks set by the script, because torchrun sets them."""
    survey, edits = draft.survey, Edits()
    spawned = False
    for call in survey.calls:
        name = survey.callee(call)
        if name == "torch.distributed.init_process_group":
            kept_arguments = [a for a in call.args if a.keyword is None or a.keyword.value in _KEPT]
            if kept_arguments:
                kept_arguments[-1] = kept_arguments[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            edits.replace(call, call.with_changes(args=kept_arguments))
        elif name == "torch.multiprocessing.spawn":
            spawned |= replace_spawn(draft, edits, call, local_rank=LOCAL_RANK, launcher="torchrun")
    for node in survey.nodes:
        if (
            isinstance(node, cst.AssignTarget)
            and text_of(node.target).startswith("os.environ[")
            and "MASTER_" in text_of(node)
        ):
            statement = survey.statement(node)
            if statement is not None:
                edits.remove(statement)
    draft.apply(edits)
    if spawned:
        add_import(draft, "import os", local="os")
        drop_unused_imports(draft, {"torch.multiprocessing"})
    if any(dotted(call.func) == "torch.distributed.launch" for call in draft.survey.calls):
        draft.add_todo("remove_launcher")


_START = (
    'dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")\n'
    f"if torch.cuda.is_available():\n    torch.cuda.set_device({LOCAL_RANK})\n"
)


def start_processes(draft: Draft) -> None:
    """Create the process group of torchrun at the entry point, unless the script creates it."""
    leave_to_torchrun(draft)
    survey, edits = draft.survey, Edits()
    if any(survey.callee(call) == "torch.distributed.init_process_group" for call in survey.calls):
        return
    first = entry(survey)
    if first is None:
        draft.add_todo("no_entry_torchrun")
        return
    text = _START if survey.imported.get("torch") == "torch" else "import torch\n" + _START
    edits.insert_before(first, statements(text))
    use_current_device(survey, edits)
    draft.apply(edits)
    add_dist(draft)
    add_import(draft, "import os", local="os")


def add_dist(draft: Draft) -> None:
    """Import ``torch.distributed as dist`` if the script uses the name."""
    if "dist." in draft.module.code:
        add_import(draft, "import torch.distributed as dist", local="dist")


def download_once_with_torchrun(draft: Draft) -> None:
    """Restrict ``download=True`` to local rank 0."""
    if download_on(draft, local_rank=LOCAL_RANK, barrier="dist.barrier()"):
        add_dist(draft)
        add_import(draft, "import os", local="os")
