"""Step: transform the model if the plan divides layers, and shard it with FSDP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.scripts.adapt.code import statements
from smp_advisor.scripts.adapt.construction import find_construction
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.imports import add_import, add_names
from smp_advisor.scripts.adapt.layers import repeated_layers
from smp_advisor.scripts.adapt.plain_model import REPLICATING, SHARDING, take_out_wrappers
from smp_advisor.scripts.adapt.wrapping import wrap_construction

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["shard_model"]


def shard_model(draft: Draft) -> None:
    """Transform the model if planned, then shard it."""
    take_out_wrappers(draft, REPLICATING)
    construction = find_construction(draft)
    if construction is None:
        return
    target, name = draft.target, construction.name
    layers = repeated_layers(draft.survey, construction)
    lines = []
    if target.tensor_parallel or target.context_parallel or target.expert_parallel:
        lines.append(f"{name} = tsm.transform({name})")
        if target.expert_parallel:
            draft.add_todo(
                f"`{lines[0]}` requires config=MoEConfig(...) for expert parallelism: pass the settings of the model."
            )
    sharded = next((call for call in draft.survey.calls if draft.survey.callee(call) in SHARDING), None)
    if sharded is not None:
        # The script already uses FSDP: insert the parallel layers before it.
        statement = draft.survey.statement(sharded)
        if lines and statement is not None:
            edits = Edits()
            edits.insert_before(statement, statements(lines[0]))
            draft.apply(edits)
        return
    policy = ""
    if layers is not None and layers.layer_class:
        policy = f"    auto_wrap_policy=ModuleWrapPolicy({{{layers.layer_class}}}),\n"
    else:
        draft.add_todo(
            "Without a wrapping policy, FSDP gathers the entire model at once: pass"
            " auto_wrap_policy=ModuleWrapPolicy({...}) with the class of the repeated layers."
        )
    mixed = f"MixedPrecision(param_dtype={target.dtype}, reduce_dtype={target.dtype})"
    lines.append(
        f"{name} = FSDP(\n    {name},\n{policy}    mixed_precision={mixed},\n"
        "    device_id=torch.cuda.current_device(),\n    use_orig_params=True,\n)"
    )
    wrap_construction(draft, construction, context="", wrap="\n".join(lines) + "\n")
    add_import(draft, "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP", local="FSDP")
    add_names(draft, "torch.distributed.fsdp", ["MixedPrecision"])
    if policy:
        add_names(draft, "torch.distributed.fsdp.wrap", ["ModuleWrapPolicy"])
