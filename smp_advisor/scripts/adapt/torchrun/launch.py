"""Steps: create the process group, select the GPU of this process, and download once per instance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.scripts.adapt.code import statements
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.entry import entry
from smp_advisor.scripts.adapt.imports import add_import
from smp_advisor.scripts.adapt.v1.download import download_on
from smp_advisor.scripts.adapt.v1.launch import use_current_device
from smp_advisor.scripts.adapt.v2.launch import LOCAL_RANK, leave_to_torchrun

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["add_dist", "download_once", "start_processes"]

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
        draft.add_todo(
            "The entry point of the script was not found: call torch.distributed.init_process_group before all others."
        )
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


def download_once(draft: Draft) -> None:
    """Restrict ``download=True`` to local rank 0."""
    if download_on(draft, local_rank=LOCAL_RANK, barrier="dist.barrier()"):
        add_dist(draft)
        add_import(draft, "import os", local="os")
