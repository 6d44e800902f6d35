"""Strategies of training code outside SageMaker's libraries, and the library whose plans describe each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.libraries.registry import library_with

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Strategy", "fully_sharded", "replicated", "undescribed", "zero"]

_SHARDING = {
    "full_shard": "full_shard",
    "1": "full_shard",
    "shard_grad_op": "shard_grad_op",
    "2": "shard_grad_op",
    "no_shard": "",
    "3": "",
    "hybrid_shard": "hybrid_shard",
    "4": "hybrid_shard",
    "hybrid_shard_zero2": "_hybrid_shard_zero2",
    "_hybrid_shard_zero2": "_hybrid_shard_zero2",
    "5": "_hybrid_shard_zero2",
}
"""Names and numbers of FSDP's strategies in transformers and accelerate, with those of plans; empty for none."""
_ZERO = {2: "shard_grad_op", 3: "full_shard"}
"""Stages of DeepSpeed's ZeRO with the strategy of FSDP that shards the same tensors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """How a job divides its model over GPUs."""

    name: str
    """For sentences: "DeepSpeed ZeRO-3"."""
    library: str | None = None
    """Library whose plans describe it; None if there is no plan."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the plan that follow."""
    why_no_plan: str = ""
    """Reason without a library, one sentence."""
    inferred: tuple[str, ...] = ()
    """Assumptions, one sentence each."""

    def assuming(self, *sentences: str) -> Strategy:
        """The same strategy with further assumptions."""
        return replace(self, inferred=(*self.inferred, *(sentence for sentence in sentences if sentence)))


def fully_sharded(sharding: object, *, offloads: bool = False, name: str = "FSDP") -> Strategy:
    """FSDP with a sharding strategy by its name or number."""
    sharded = _SHARDING.get(str(sharding).lower().rpartition(".")[2])
    if sharded is None:
        return undescribed(name, f"the sharding strategy {str(sharding)[:40]!r} is none of PyTorch's")
    title = f"{name} ({sharded.removeprefix('_') or 'no_shard'})"
    if offloads:
        return undescribed(f"{title} with offloading to the CPU", "plans have no parameters in host memory")
    if not sharded:
        return replicated(title)
    return Strategy(
        name=title,
        library=library_with(of_sagemaker=False, divides_model=True).name,
        settings={"sharding_strategy": sharded},
    )


def zero(stage: object, *, offloads: bool = False) -> Strategy:
    """DeepSpeed's ZeRO, which has no library of its own here."""
    stage = stage if type(stage) is int and stage in range(4) else None
    title = "DeepSpeed" if stage is None else f"DeepSpeed ZeRO-{stage}"
    if stage == 0:
        return replicated(title)
    if offloads:
        return undescribed(f"{title} with offloading", "plans have no parameters or optimizer state in host memory")
    sharding = None if stage is None else _ZERO.get(stage)
    if sharding is None:
        why = "no library here shards only the optimizer state" if stage == 1 else "its stage is not known"
        return undescribed(title, why)
    plan = fully_sharded(sharding, name=title)
    return replace(plan, name=title).assuming(
        f"{title} is estimated as FSDP with {sharding}, which shards the same tensors; DeepSpeed's own buffers are not"
        " included."
    )


def replicated(name: str = "DDP") -> Strategy:
    """A replica of the model on each GPU."""
    return Strategy(name=name, library=library_with(of_sagemaker=False, divides_model=False).name)


def undescribed(name: str, why: str) -> Strategy:
    """A strategy that no plan describes, with the reason as a clause."""
    return Strategy(name=name, why_no_plan=f"{name} has no plan: {why}.")
