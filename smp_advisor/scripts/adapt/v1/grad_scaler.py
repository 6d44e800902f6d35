"""Step: use the gradient scaler of the library in fp32 plans, where automatic mixed precision stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.scripts.adapt.code import expression
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.imports import add_import, drop_unused_imports
from smp_advisor.scripts.adapt.precision import SCALER, scalers
from smp_advisor.scripts.adapt.v1.launch import IMPORT

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["use_library_scaler"]


def use_library_scaler(draft: Draft) -> None:
    """Replace PyTorch's ``GradScaler`` by ``smp.amp.GradScaler``."""
    edits = Edits()
    for call in scalers(draft.survey):
        options = [arg for arg in call.args if arg.keyword is not None]
        # smp.amp.GradScaler has no device, the first argument of torch.amp.GradScaler("cuda").
        new = expression("smp.amp.GradScaler()")
        edits.replace(call, new.with_changes(args=[arg for arg in options if arg.keyword.value != "device"]))  # type: ignore[union-attr]
    if edits:
        draft.apply(edits)
        drop_unused_imports(draft, set(SCALER))
        add_import(draft, IMPORT, local="smp")
