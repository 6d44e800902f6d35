"""Step: scale the loss over the shards of all processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.imports import add_import, drop_unused_imports
from smp_advisor.scripts.adapt.precision import SCALER, scalers

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["use_sharded_scaler"]


def use_sharded_scaler(draft: Draft) -> None:
    """Replace ``GradScaler``, which would look for overflows in the shards of one process only."""
    edits = Edits()
    for call in scalers(draft.survey):
        options = [arg for arg in call.args if arg.keyword is not None and arg.keyword.value != "device"]
        edits.replace(call, cst.Call(func=cst.Name("ShardedGradScaler"), args=options))
    if edits:
        draft.apply(edits)
        drop_unused_imports(draft, set(SCALER))
        module = "torch.distributed.fsdp.sharded_grad_scaler"
        add_import(draft, f"from {module} import ShardedGradScaler", local="ShardedGradScaler")
