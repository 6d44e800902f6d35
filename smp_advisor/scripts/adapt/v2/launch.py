"""Step: the process group, then the library, then this process's GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.code import dotted, expression, keyword, positional, spelled, statements
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.entry import entry
from smp_advisor.scripts.adapt.imports import add_import, drop_unused_imports

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["start_library"]

_INIT = "tsm.init()  # reads the plan from the job\n"
_LOCAL_RANK = 'int(os.environ["LOCAL_RANK"])'
_KEPT = ("backend", "timeout")


def start_library(draft: Draft) -> None:
    """Call ``tsm.init()`` behind the process group, which is made if the script has none."""
    add_import(draft, "import torch.sagemaker as tsm", local="tsm")
    _leave_to_torchrun(draft)
    survey, edits = draft.survey, Edits()
    group = next((c for c in survey.calls if survey.callee(c) == "torch.distributed.init_process_group"), None)
    statement = survey.statement(group) if group is not None else None
    if statement is not None:
        edits.insert_after(statement, statements(_INIT))
        draft.apply(edits)
        return
    first = entry(survey)
    if first is None:
        draft.leave_to_do("No statement was found that starts the work: call tsm.init() before anything else.")
        return
    text = f'dist.init_process_group("nccl")\n{_INIT}torch.cuda.set_device({_LOCAL_RANK})\n'
    if survey.imported.get("torch") != "torch":
        text = "import torch\n" + text
    edits.insert_before(first, statements(text))
    for node in survey.nodes:
        if isinstance(node, cst.SimpleString) and node.raw_value == "cuda:0":
            edits.replace(node, node.with_changes(value=node.value.replace("cuda:0", "cuda")))
    draft.apply(edits)
    add_import(draft, "import torch.distributed as dist", local="dist")
    add_import(draft, "import os", local="os")


def _leave_to_torchrun(draft: Draft) -> None:  # noqa: C901 - a list of cases
    """Processes, addresses and ranks are torchrun's: what a script set itself goes."""
    survey, edits = draft.survey, Edits()
    spawned = False
    for call in survey.calls:
        name = survey.callee(call)
        if name == "torch.distributed.init_process_group":
            kept = [a for a in call.args if a.keyword is None or a.keyword.value in _KEPT]
            if kept:
                kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            edits.replace(call, call.with_changes(args=kept))
        elif name == "torch.multiprocessing.spawn":
            function, given = keyword(call, "fn") or positional(call, 0), keyword(call, "args") or positional(call, 1)
            if function is None or (given is not None and not isinstance(given.value, cst.Tuple)):
                draft.leave_to_do(
                    f"`{draft.at(call)}` starts processes that torchrun has started: call the function itself."
                )
                continue
            arguments = [_LOCAL_RANK]
            if given is not None and isinstance(given.value, cst.Tuple):
                arguments += [spelled(element.value) for element in given.value.elements]
            edits.replace(call, expression(f"{spelled(function.value)}({', '.join(arguments)})"))
            spawned = True
    for node in survey.nodes:
        if (
            isinstance(node, cst.AssignTarget)
            and spelled(node.target).startswith("os.environ[")
            and "MASTER_" in spelled(node)
        ):
            statement = survey.statement(node)
            if statement is not None:
                edits.remove(statement)
    draft.apply(edits)
    if spawned:
        add_import(draft, "import os", local="os")
        drop_unused_imports(draft, {"torch.multiprocessing"})
    if any(dotted(call.func) == "torch.distributed.launch" for call in draft.survey.calls):
        draft.leave_to_do("torch.distributed.launch is torchrun's work in the job: start the script directly.")
