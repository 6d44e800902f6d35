"""Steps: checkpoint activations with the library or with FSDP, after the model is wrapped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.scripts.adapt.code import Edits, dotted, statements
from smp_advisor.scripts.adapt.construction import find_construction, repeated_layers
from smp_advisor.scripts.adapt.draft import add_import
from smp_advisor.scripts.adapt.survey import Survey, targets_of

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft


def checkpoint_activations(draft: Draft) -> None:
    """Call the library on the repeated layers, with a to-do if they were not found."""
    if not draft.target.activation_checkpointing:
        return
    survey = draft.survey
    wrapper = next((c for c in survey.calls if survey.callee(c).endswith(".DistributedModel")), None)
    statement = survey.statement(wrapper) if wrapper is not None else None
    parent = survey.parent(wrapper) if wrapper is not None else None
    name = next((dotted(t) for t in targets_of(parent)), None) if parent is not None else None
    if wrapper is None or statement is None or name is None:
        return
    strategy = draft.target.activation_checkpointing
    todo: list[str] = []
    construction = find_construction(draft)
    layers = repeated_layers(survey, construction) if construction is not None else None
    if layers is None and _is_transformers(survey):
        text = _search_text(name, strategy)
    elif layers is None:
        todo.append(
            "The plan checkpoints activations, and no list of repeated layers was found in the model: call"
            f" smp.set_activation_checkpointing for each layer after `{draft.excerpt(statement)}`."
        )
        text = ""
    elif layers.sequential:
        text = f"smp.set_activation_checkpointing({name}.module.{layers.attribute}, strategy={strategy!r})\n"
        text = text.replace("'", '"')
    else:
        # Strategies apply to nn.Sequential only.
        text = f"for layer in {name}.module.{layers.attribute}:\n    smp.set_activation_checkpointing(layer)\n"
        if strategy != "each":
            todo.append(
                f"The strategy {strategy} applies to an nn.Sequential only. `{layers.attribute}` is an nn.ModuleList:"
                " its layers are checkpointed one by one."
            )
    for sentence in todo:
        draft.add_sentence(sentence)
    if text:
        edits = Edits()
        edits.insert_after(statement, statements(text))
        draft.apply(edits)


def _is_transformers(survey: Survey) -> bool:
    return any(origin.split(".")[0] == "transformers" for origin in survey.imported.values())


def _search_text(name: str, strategy: str) -> str:
    """Loop that finds the list of layers in a transformers model by its name."""
    return (
        "# Find the layers of the transformers model. Strategies apply to nn.Sequential only.\n"
        f"for path, stack in {name}.named_modules():\n"
        '    if path.split(".")[-1] not in ("seq_layers", "h", "layer", "layers", "block", "blocks"):\n'
        "        continue\n"
        "    if isinstance(stack, torch.nn.Sequential):\n"
        f'        smp.set_activation_checkpointing(stack, strategy="{strategy}")\n'
        "    elif isinstance(stack, torch.nn.ModuleList):\n"
        "        for layer in stack:\n"
        "            smp.set_activation_checkpointing(layer)\n"
    )


_WRAPPERS = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"


def checkpoint_sharded_activations(draft: Draft) -> None:
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
        draft.add_todo("no_checkpointed_class")
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
