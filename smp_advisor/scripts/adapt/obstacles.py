"""Reasons for which a script is left unchanged, each with the nearest thing that works."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.files import SCRIPT, read_bytes
from smp_advisor.scripts.adapt.code import dotted, walk
from smp_advisor.scripts.adapt.draft import sentence
from smp_advisor.scripts.adapt.driver import driven_refusal, driver_of
from smp_advisor.scripts.adapt.roles import backward_calls, optimizers
from smp_advisor.scripts.adapt.survey import targets_of
from smp_advisor.scripts.adapt.wrappers import REPLICATING, SHARDING

if TYPE_CHECKING:
    from pathlib import Path

    from smp_advisor.scripts.adapt.adaptation import Target
    from smp_advisor.scripts.adapt.survey import Survey


_ROOTS = (".git", "pyproject.toml", "setup.py")
_MOST_FILES = 500
_MOST_FOLDERS_UP = 4
_MOST_CALLERS = 3


def files_that_call(file: Path, name: str) -> list[str]:
    """At most three files of the project that import a class of `file` by its name and call it.

    Parameters
    ----------
    file
        Module that defines the class. The project is the nearest folder above it with ``.git``, ``pyproject.toml`` or
        ``setup.py``; without one, the folder of the file.
    name
        Name of the class.

    Returns
    -------
    list of str
        Paths relative to the project, in order.
    """
    above = file.resolve().parents[:_MOST_FOLDERS_UP]
    root = next((folder for folder in above if any((folder / mark).exists() for mark in _ROOTS)), above[0])
    pattern = re.compile(
        rf"^[ \t]*from[ \t]+[\w.]*\b{re.escape(file.stem)}[ \t]+import\b[^\n]*\b{re.escape(name)}\b", re.MULTILINE
    )
    callers = []
    for path in sorted(islice(root.rglob("*.py"), _MOST_FILES)):
        if path == file.resolve() or any(part.startswith(".") for part in path.relative_to(root).parts):
            continue
        try:
            text = read_bytes(path, SCRIPT).decode(errors="replace")
        except OSError:
            continue
        if pattern.search(text) and f"{name}(" in text:
            callers.append(path.relative_to(root).as_posix())
    return callers[:_MOST_CALLERS]


_LIBRARIES = ("smdistributed.modelparallel", "torch.sagemaker")
_PARALLEL = (
    "deepspeed", "megatron", "colossalai", "fairscale", "horovod", "torch.distributed.pipelining",
    "torch.distributed.tensor", "torch.distributed.rpc", "torchtitan", "torch_xla",
)  # fmt: skip


def obstacle_to_adapting(survey: Survey, target: Target) -> str:
    """Sentence that explains why the steps do not apply; empty if they do."""
    for library in _LIBRARIES:
        if any(origin.startswith(library) for origin in survey.imported.values()):
            return f"The script already uses {library}, so it is unchanged: run check_script to find what is missing."
    for library in _PARALLEL:
        if any(origin == library or origin.startswith(f"{library}.") for origin in survey.imported.values()):
            return sentence("other_parallelism", library=library)
    if target.kind != "ddp" and any(survey.callee(call) == "torch.optim.LBFGS" for call in survey.calls):
        return sentence("lbfgs")
    refusal = driven_refusal(survey, target)
    if refusal or driver_of(survey) is not None:
        return refusal
    return _already(survey, target) or _no_loop(survey)


def _already(survey: Survey, target: Target) -> str:
    """Scripts that have the parallelism of the target."""
    called = {survey.callee(call) for call in survey.calls}
    sharded = called & SHARDING or any(name.endswith("fsdp.fully_shard") for name in called)
    if target.kind in ("ddp", "fsdp", "fsdp2") and sharded:
        return sentence("shards_already")
    if target.kind == "ddp" and any(name in REPLICATING and "Distributed" in name for name in called):
        return sentence("replicates_already")
    return ""


def _no_loop(survey: Survey) -> str:
    if optimizers(survey) and backward_calls(survey):
        return ""
    updates = backward_calls(survey)
    if updates and (factory := _optimizer_factory(survey)):
        return _built_elsewhere(survey, factory)
    if updates:
        return sentence("no_optimizer_here", call=dotted(updates[0].func) or "backward")
    if any(isinstance(node, cst.FunctionDef) and node.name.value == "training_step" for node in walk(survey.module)):
        return sentence("lightning_module")
    return sentence("no_training_loop")


def _optimizer_factory(survey: Survey) -> str:
    """Function of another module that builds the optimizer, such as ``timm.optim.create_optimizer_v2``; or empty."""
    for call in survey.calls:
        name, parent = survey.callee(call), survey.parent(call)
        imported = name.split(".")[0] not in ("", "self", "torch") and survey.qualified(call.func) != dotted(call.func)
        if imported and "optim" in name.rpartition(".")[2].lower() and isinstance(parent, cst.Assign):
            names = [dotted(target) or "" for target in targets_of(parent)]
            if any("optim" in target.rpartition(".")[2] for target in names):
                return name
    return ""


def _built_elsewhere(survey: Survey, factory: str) -> str:
    """Reason for a script whose optimizer a function of another module builds."""
    module, _, function = factory.rpartition(".")
    starts = next(
        (name for call in survey.calls if "init_distributed" in (name := survey.callee(call)).rpartition(".")[2]), ""
    )
    reason = f"`{function}` of {module} builds the optimizer, so that its parameters cannot be followed in this file."
    if starts:
        module, _, function = starts.rpartition(".")
        return sentence("processes_elsewhere", reason=reason, function=function, module=module)
    return f"{reason} Create the optimizer in this file with a class of torch.optim, then adapt it."
