"""Fields of many plans of one library as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from smp_advisor.libraries.layout import checkpoint_code, checkpoint_strategy
from smp_advisor.libraries.pipeline_schedule import SCHEDULES
from smp_advisor.libraries.plan_fields import plan_defaults

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from smp_advisor.libraries.plan import Plan

    Ints = NDArray[np.int64]

__all__ = ["BACKENDS", "SHARDING_STRATEGIES", "PlanColumns", "decoded", "encoded"]

SHARDING_STRATEGIES = ("full_shard", "shard_grad_op", "hybrid_shard", "_hybrid_shard_zero2")
"""FSDP's strategies; their positions are their codes in columns."""

BACKENDS = ("nccl", "smddp")
"""Libraries of collectives of SMP v2; their positions are their codes in columns."""


def _unless_false(value: object) -> bool:
    """Settings that are on unless they are False."""
    return value is not False


_CODES: dict[str, tuple[Callable[[Any], int], Callable[[int], Any]]] = {
    "activation_checkpointing": (checkpoint_code, checkpoint_strategy),
    "ddp_dist_backend": (lambda backend: int(backend == "nccl"), ("auto", "nccl").__getitem__),
    "distributed_backend": (BACKENDS.index, BACKENDS.__getitem__),
    "pipeline": (SCHEDULES.index, SCHEDULES.__getitem__),
    "sdp_hierarchical_allgather": (_unless_false, bool),
    "sharding_strategy": (SHARDING_STRATEGIES.index, SHARDING_STRATEGIES.__getitem__),
    "sm_activation_offloading": (_unless_false, bool),
}


def encoded(name: str, value: Any) -> Any:
    """Number for a field's value in a column: 0 for None, codes for texts."""
    return _CODES[name][0](value) if name in _CODES else 0 if value is None else value


def decoded(name: str, code: Any) -> Any:
    """Inverse of `encoded`, except for None."""
    return _CODES[name][1](code) if name in _CODES else code


@dataclass(frozen=True)
class PlanColumns:
    """Fields of n plans; `columns[name]` is an array of shape (n,) or one number for all."""

    rows: int | None
    """Number of plans; None for one plan whose fields are numbers."""
    read: Callable[[str], Any]

    def __getitem__(self, name: str) -> Any:
        return self.read(name)

    @classmethod
    def of_plan(cls, plan: Plan) -> PlanColumns:
        """Numbers of one plan, each read on first use."""
        return cls(None, lambda name: encoded(name, getattr(plan, name)))

    @classmethod
    def of_plans(cls, plans: Sequence[Plan]) -> PlanColumns:
        """Columns of some plans, each read on first use."""
        return cls(len(plans), lambda name: np.array([encoded(name, getattr(plan, name)) for plan in plans]))

    @classmethod
    def of_fields(cls, kind: type[Plan], rows: int, fields: Mapping[str, Any]) -> PlanColumns:
        """Columns of fields that are arrays of codes or values shared by all plans. Others have their default."""
        defaults = plan_defaults(kind)

        def read(name: str) -> Any:
            value = fields.get(name, defaults[name])
            return value if isinstance(value, np.ndarray) else encoded(name, value)

        return cls(rows, read)
