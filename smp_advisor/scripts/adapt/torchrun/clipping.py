"""Step: clip gradients by their norm over the shards of all processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.scripts.adapt.v2.clipping import replace_clipping

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["clip_over_shards"]


def clip_over_shards(draft: Draft) -> None:
    """Replace ``torch.nn.utils.clip_grad_norm_`` by the method of FSDP."""
    replace_clipping(draft, "{model}.clip_grad_norm_({limit})", "clip_grad_norm_ of the FSDP model")
