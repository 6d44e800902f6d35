"""Reasons for which a script is left unchanged, each with the nearest thing that works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.code import dotted, walk
from smp_advisor.scripts.adapt.plain_model import REPLICATING, SHARDING
from smp_advisor.scripts.adapt.roles import backward_calls, optimizers

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.survey import Survey
    from smp_advisor.scripts.adapt.target import Target

__all__ = ["obstacle_to_adapting"]

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
            return (
                f"The script is parallel through {library}, which runs the processes and the model its own way: set the"
                f" degrees in the configuration of {library}, or adapt a version of the loop without it."
            )
    if target.kind != "ddp" and any(survey.callee(call) == "torch.optim.LBFGS" for call in survey.calls):
        return (
            "LBFGS computes inner products over all parameters, and calls the loss several times per update: on a"
            " divided model it would use only the parameters of one process. Use library='ddp', or another optimizer."
        )
    return _driven(survey, target) or _already(survey, target) or _no_loop(survey)


def _driven(survey: Survey, target: Target) -> str:
    """Loops that another library runs, which adapts them by an argument."""
    fsdp = target.kind in ("fsdp", "fsdp2")
    names = {survey.callee(call).rpartition(".")[2]: survey.callee(call) for call in survey.calls}
    roots = {origin.split(".")[0] for origin in survey.imported.values()}
    if "Accelerator" in names and "accelerate" in roots:
        how = (
            f"Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version={1 + (target.kind == 'fsdp2')}))"
            if fsdp
            else "`accelerate launch --multi_gpu train.py`, without a change"
        )
        return f"Accelerate runs this loop: its own way to {_goal(target)} is {how}."
    strategy = f'strategy="{"fsdp" if fsdp else "ddp"}", devices=8'
    if any(name.endswith("Fabric") for name in names):
        return f"Lightning Fabric runs this loop: its own way to {_goal(target)} is Fabric({strategy})."
    if roots & {"lightning", "pytorch_lightning"} and "Trainer" in names:
        return f"The Trainer of Lightning runs this loop: its own way to {_goal(target)} is Trainer({strategy})."
    if "transformers" in roots and any(name.endswith("Trainer") for name in names) and not backward_calls(survey):
        how = 'TrainingArguments(fsdp="full_shard auto_wrap")' if fsdp else "`torchrun train.py`, without a change"
        return f"The Trainer of transformers runs this loop: its own way to {_goal(target)} is {how}."
    return ""


def _goal(target: Target) -> str:
    goals = {"ddp": "replicate the model", "fsdp": "shard the model", "fsdp2": "shard the model with FSDP2"}
    return goals.get(target.kind, "train in parallel without SMP")


def _already(survey: Survey, target: Target) -> str:
    """Scripts that have the parallelism of the target."""
    called = {survey.callee(call) for call in survey.calls}
    sharded = called & SHARDING or any(name.endswith("fsdp.fully_shard") for name in called)
    if target.kind in ("ddp", "fsdp", "fsdp2") and sharded:
        return (
            "The script already shards its model with FSDP, so it is unchanged: run check_script to find what is"
            " missing."
        )
    if target.kind == "ddp" and any(name in REPLICATING and "Distributed" in name for name in called):
        return (
            "The script already uses DistributedDataParallel, so it is unchanged: run check_script to find what is"
            " missing, or adapt it with library='fsdp' or 'fsdp2' to shard the model."
        )
    return ""


def _no_loop(survey: Survey) -> str:
    if optimizers(survey) and backward_calls(survey):
        return ""
    updates = backward_calls(survey)
    if updates:
        return (
            "No optimizer built from a model's parameters was found in this file, which calls"
            f" {dotted(updates[0].func) or 'backward'}: adapt the file that builds both the optimizer and the loop, or"
            " move them into one file."
        )
    if any(isinstance(node, cst.FunctionDef) and node.name.value == "training_step" for node in walk(survey.module)):
        return (
            "This file defines a LightningModule, and a Trainer elsewhere runs its loop: pass strategy='fsdp' or 'ddp'"
            " to that Trainer."
        )
    return (
        "No PyTorch training loop was found: this file has no optimizer built from a model's parameters, or no"
        " backward pass. Adapt the file that contains the training loop."
    )
