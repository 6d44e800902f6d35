"""Step: gather the shards on every rank, and save from rank 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.code import call_text, dotted, statements, text_of, walk
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.imports import add_import, add_names
from smp_advisor.scripts.adapt.saved import Saved, saved_states
from smp_advisor.scripts.adapt.v1.saving import guards

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["name_states", "save_full_state"]


def save_full_state(draft: Draft) -> None:
    """Gather the state before ``torch.save``, and save it on rank 0."""
    for number in range(12):
        states = [saved for saved in saved_states(draft.survey) if not _is_gathered(draft, saved)]
        if not states or not _replace(draft, states[0], "" if number == 0 else f"_{number + 1}"):
            return


def _is_gathered(draft: Draft, saved: Saved) -> bool:
    return any(
        isinstance(above, cst.With) and "state_dict_type" in text_of(above.items[0])
        for above in draft.survey.ancestors(saved.value)
    )


def _replace(draft: Draft, saved: Saved, suffix: str) -> bool:
    survey, edits = draft.survey, Edits()
    above = guards(survey, saved.statement)
    if not saved.plain or saved.pretrained or above is None or not isinstance(saved.statement, cst.SimpleStatementLine):
        draft.add_todo(
            f"`{draft.excerpt(saved.call)}`: gather the state on every rank with FSDP.state_dict_type, and save it on"
            " one rank."
        )
        return False
    configs = ["FullStateDictConfig(offload_to_cpu=True, rank0_only=True)"]
    gather = f"    model_state{suffix} = {saved.model}.state_dict()\n"
    imported = ["FullStateDictConfig", "StateDictType"]
    if saved.optimizer is not None:
        configs.append("FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)")
        imported.append("FullOptimStateDictConfig")
        gather += f"    optimizer_state{suffix} = FSDP.optim_state_dict({saved.model}, {saved.optimizer})\n"
    head = call_text("with FSDP.state_dict_type", [saved.model, "StateDictType.FULL_STATE_DICT", *configs])
    name_states(edits, saved, suffix)
    # All ranks must take part in gathering: insert it before conditions on the rank, and before the saved object.
    places: list[cst.CSTNode] = [above[-1] if above else saved.statement]
    origin = survey.statement(saved.value)
    if origin is not None and survey.follows(origin, places[0]) and origin is not saved.statement:
        places.insert(0, origin)
    edits.insert_before(places[0], statements(f"{head}:\n{gather}"))
    if not above:
        edits.change(saved.statement, _on_first_rank)
    draft.apply(edits)
    add_names(draft, "torch.distributed.fsdp", imported)
    add_import(draft, "import torch.distributed as dist", local="dist")
    return True


def name_states(edits: Edits, saved: Saved, suffix: str) -> None:
    """Replace the ``state_dict()`` calls of the model and the optimizer by the gathered states."""
    names = {
        f"{saved.model}.state_dict()": f"model_state{suffix}",
        f"{saved.model}.module.state_dict()": f"model_state{suffix}",
        f"{saved.optimizer}.state_dict()": f"optimizer_state{suffix}",
    }
    for node in walk(saved.value):
        if isinstance(node, cst.Call) and text_of(node) in names:
            edits.replace(node, cst.Name(names[text_of(node)]))
    if dotted(saved.value) in (saved.model, f"{saved.model}.module"):
        edits.replace(saved.value, cst.Name(f"model_state{suffix}"))


def _on_first_rank(old: cst.SimpleStatementLine) -> cst.If:
    guard = cst.ensure_type(statements("if dist.get_rank() == 0:\n    pass\n")[0], cst.If)
    body = guard.body.with_changes(body=[old.with_changes(leading_lines=[])])
    return guard.with_changes(leading_lines=old.leading_lines, body=body)
