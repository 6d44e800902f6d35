"""Step: initialize the process group and the library, and select the GPU of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.code import dotted, statements, text_of
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.entry import entry
from smp_advisor.scripts.adapt.imports import add_import, drop_unused_imports
from smp_advisor.scripts.adapt.v1.launch import replace_spawn, use_current_device

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["LOCAL_RANK", "leave_to_torchrun", "start_library"]

_INIT = "tsm.init()  # reads the plan from the job\n"
LOCAL_RANK = 'int(os.environ["LOCAL_RANK"])'
_KEPT = ("backend", "timeout")


def start_library(draft: Draft) -> None:
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
        draft.add_todo("The entry point of the script was not found: call tsm.init() before all other calls.")
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
        draft.add_todo("Remove torch.distributed.launch, because the job starts the script with torchrun.")
