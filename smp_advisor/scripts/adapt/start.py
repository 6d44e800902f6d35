"""Steps: start the processes, download once, and seed the models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts import queries
from smp_advisor.scripts.adapt.code import Edits, dotted, keyword, statements, text_of
from smp_advisor.scripts.adapt.roles import calls_of, events_of, model_places, node_of, objects_of
from smp_advisor.scripts.adapt.survey import Statement, Survey, known_names

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.adaptation import Draft

_PASSIVE = known_names("passive_prefixes")
_WORKING = known_names("working_prefixes")
_SEEDS = queries.known_names("weight_seeds")


def entry(survey: Survey) -> Statement | None:
    """First statement that does work, before which the library is initialized; None if there is none."""
    calls = [event for event in calls_of(survey) if event.reached]
    for first in calls:
        # It does more than to query the machine or to set options, or it makes the model.
        if first.name and not first.name.startswith(_PASSIVE) and f"{first.name}.".startswith(_WORKING):
            break
        node = node_of(survey, first.node)
        if first.function is None and node is not None and objects_of(survey, node) & model_places(survey):
            break
    else:
        return None
    # The call in the module itself, or under its main guard, that leads there: calls are recorded before their bodies.
    top = [event for event in calls if not event.functions and event.order <= first.order][-1:] or [first]
    node = node_of(survey, top[0].node)
    above = [node, *survey.ancestors(node)] if node is not None else []
    guards = [a for a in above if isinstance(a, cst.If) and "__main__" in text_of(a.test)]
    block = survey.body_of(cst.ensure_type(guards[-1], cst.If).body.body[0]) if guards else list(survey.module.body)
    return next((inside for inside in block if inside in above), None)


def download_once(draft: Draft) -> None:
    """Restrict ``download=True`` to the first process of an instance."""
    survey, edits, smp = draft.survey, Edits(), draft.target.kind == "smp_step"
    local_rank, barrier = ("smp.local_rank()", "smp.barrier()") if smp else (LOCAL_RANK, "dist.barrier()")
    for call in survey.calls:
        option = keyword(call, "download")
        if option is None or dotted(option.value) != "True":
            continue
        if (events := events_of(survey, call)) and all(map(queries.rank_conditions, events)):
            continue
        statement = survey.statement(call)
        if not isinstance(statement, cst.SimpleStatementLine):
            draft.add_todo("downloads_everywhere", call, local_rank=local_rank, barrier=barrier)
            continue
        edits.insert_before(statement, statements(f"if {local_rank} == 0:\n    {text_of(call)}\n{barrier}\n"))
        edits.replace(option.value, cst.Name("False"))
    draft.apply(edits)


def seed_models(draft: Draft) -> None:
    """Seed PyTorch before anything is created, if the script has no seed."""
    survey, edits = draft.survey, Edits()
    if any(survey.callee(call) in _SEEDS for call in survey.calls):
        return
    first = entry(survey)
    if first is None:
        draft.add_todo("seed_models")
    else:
        edits.insert_before(first, statements("torch.manual_seed(0)\n"))
    draft.apply(edits)


LOCAL_RANK = 'int(os.environ["LOCAL_RANK"])'
_KEPT = ("backend", "timeout")
_START: dict[str, str] = {
    "smp_step": "smp.init()  # reads the plan from the job\ntorch.cuda.set_device(smp.local_rank())\n",
    "smp_fsdp": 'dist.init_process_group("nccl")\ntsm.init()  # reads the plan from the job\n'
    f"torch.cuda.set_device({LOCAL_RANK})\n",
    "": 'dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")\n'
    f"if torch.cuda.is_available():\n    torch.cuda.set_device({LOCAL_RANK})\n",
}


def start_processes(draft: Draft) -> None:
    """Initialize the library, or the process group of torchrun, at the entry point unless the script does."""
    kind = draft.target.kind
    if kind != "smp_step":
        _leave_to_torchrun(draft)
    survey, edits, text = draft.survey, Edits(), _START.get(kind, _START[""])
    group = next((c for c in survey.calls if survey.callee(c) == "torch.distributed.init_process_group"), None)
    statement, first = survey.statement(group) if group is not None else None, entry(survey)
    elsewhere = any(survey.callee(call) == "torch.distributed.is_initialized" for call in survey.calls)
    if (statement is not None or elsewhere) and kind != "smp_step":
        if kind == "smp_fsdp" and statement is not None:
            edits.insert_after(statement, statements(text.splitlines()[1]))
    elif first is None:
        draft.add_todo("no_entry", code=text.splitlines()[0])
    else:
        edits.insert_before(first, statements(text))
        for node in survey.nodes:
            if isinstance(node, cst.SimpleString) and node.raw_value == "cuda:0":  # the GPU of this process
                edits.replace(node, node.with_changes(value=node.value.replace("cuda:0", "cuda")))
    draft.apply(edits)


def _leave_to_torchrun(draft: Draft) -> None:
    """Remove the processes, addresses and ranks set by the script, because torchrun sets them."""
    survey, edits = draft.survey, Edits()
    for call in survey.calls:
        name = survey.callee(call)
        if name == "torch.distributed.init_process_group":
            kept_arguments = [a for a in call.args if a.keyword is None or a.keyword.value in _KEPT]
            if kept_arguments:
                kept_arguments[-1] = kept_arguments[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            edits.replace(call, call.with_changes(args=kept_arguments))
        elif name == "torch.multiprocessing.spawn":
            draft.add_todo("spawns", call)
    for node in survey.nodes:
        statement = survey.statement(node) if isinstance(node, cst.Assign) and "MASTER_" in text_of(node) else None
        if statement is not None and "os.environ[" in text_of(statement):
            edits.remove(statement)
    draft.apply(edits)
