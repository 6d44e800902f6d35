"""Reasons for which a script is left unchanged, each with the nearest thing that works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.code import dotted, walk
from smp_advisor.scripts.adapt.draft import sentence
from smp_advisor.scripts.adapt.driver import driven_refusal, driver_of
from smp_advisor.scripts.adapt.roles import backward_calls, optimizers
from smp_advisor.scripts.adapt.wrappers import REPLICATING, SHARDING

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.adaptation import Target
    from smp_advisor.scripts.adapt.survey import Survey


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
    if updates:
        return sentence("no_optimizer_here", call=dotted(updates[0].func) or "backward")
    if any(isinstance(node, cst.FunctionDef) and node.name.value == "training_step" for node in walk(survey.module)):
        return sentence("lightning_module")
    return sentence("no_training_loop")
