"""Step: checkpoint activations, and offload them if planned, after FSDP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.scripts.adapt.code import dotted, statements
from smp_advisor.scripts.adapt.construction import find_construction
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.imports import add_import
from smp_advisor.scripts.adapt.layers import repeated_layers
from smp_advisor.scripts.adapt.survey import targets_of

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["checkpoint_activations"]

_WRAPPERS = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"


def checkpoint_activations(draft: Draft) -> None:
    """Checkpoint the repeated layers, and offload if planned."""
    target, survey = draft.target, draft.survey
    if not target.activation_checkpointing:
        return
    wrapper = next((c for c in survey.calls if survey.callee(c).endswith(".FullyShardedDataParallel")), None)
    statement = survey.statement(wrapper) if wrapper is not None else None
    parent = survey.parent(wrapper) if wrapper is not None else None
    name = next((dotted(t) for t in targets_of(parent)), None) if parent is not None else None
    if statement is None or name is None:
        return
    construction = find_construction(draft)
    layers = repeated_layers(survey, construction) if construction is not None else None
    if layers is None or not layers.layer_class:
        draft.add_todo(
            "The plan checkpoints activations, and the class of the repeated layers was not found: call"
            " apply_activation_checkpointing with a check_fn for this class, after FSDP."
        )
        return
    text = (
        "apply_activation_checkpointing(\n"
        f"    {name},\n"
        "    checkpoint_wrapper_fn=checkpoint_wrapper,\n"
        f"    check_fn=lambda module: isinstance(module, {layers.layer_class}),\n"
        ")\n"
    )
    imported = ["apply_activation_checkpointing", "checkpoint_wrapper"]
    if target.offload_activations:
        text += f"{name} = offload_wrapper({name})\n"
        imported.append("offload_wrapper")
    edits = Edits()
    edits.insert_after(statement, statements(text))
    draft.apply(edits)
    lines = "".join(f"    {name},\n" for name in imported)
    add_import(draft, f"from {_WRAPPERS} import (\n{lines})", local=imported[0])
