"""Controls of SMP v1, with one control for both kinds of sharding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.errors import PlanError
from smp_advisor.libraries.control_codec import ControlCodec
from smp_advisor.libraries.groups import divisors
from smp_advisor.libraries.pipeline_schedule import default_active_microbatches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from smp_advisor.libraries.control_codec import Setting, Settings
    from smp_advisor.libraries.positions import Situation

__all__ = ["CONTROLS", "SmpV1Controls"]

CONTROLS = (
    "batch_size",
    "microbatches",
    "tensor_parallel_degree",
    "pipeline_parallel_degree",
    "sharding",
    "activation_checkpointing",
    "offload_activations",
    "active_microbatches",
    "pipeline",
)

_OPTIMIZER_STATE = "optimizer_state"
_SHARDED = "sharded_"


def _sharding(fields: Mapping[str, Any]) -> str:
    if fields["shard_optimizer_state"]:
        return _OPTIMIZER_STATE
    degree = fields["sharded_data_parallel_degree"]
    return "none" if degree == 1 else f"{_SHARDED}{degree}"


def _shards(sharding: object) -> int:
    text = str(sharding)
    degree = text.removeprefix(_SHARDED)
    if text in {"none", _OPTIMIZER_STATE}:
        return 1
    if text == degree or not degree.isdecimal():
        raise PlanError(f"sharding must be none, {_OPTIMIZER_STATE} or {_SHARDED}N, not {sharding!r}.")
    return int(degree)


class SmpV1Controls(ControlCodec):
    """One choice of sharding: none, optimizer state, or everything over N GPUs."""

    def settings(self, names: tuple[str, ...], fields: Mapping[str, Any]) -> Settings:
        """Values of the controls, with the library's default of active microbatches as a number."""
        active = fields["active_microbatches"] or default_active_microbatches(
            fields["pipeline_parallel_degree"], fields["microbatches"]
        )
        return super().settings(names, {**fields, "sharding": _sharding(fields), "active_microbatches": active})

    def fields(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of a plan. Active microbatches are None for the library's default."""
        fields = super().fields(settings)
        if "sharding" in fields:
            sharding = fields.pop("sharding")
            fields["shard_optimizer_state"] = sharding == _OPTIMIZER_STATE
            fields["sharded_data_parallel_degree"] = _shards(sharding)
        if {"active_microbatches", "pipeline_parallel_degree", "microbatches"} <= fields.keys():
            default = default_active_microbatches(fields["pipeline_parallel_degree"], fields["microbatches"])
            if fields["active_microbatches"] == default:
                fields["active_microbatches"] = None
        return fields

    def positions(self, name: str, situation: Situation) -> Iterable[Setting] | None:
        """Choices of sharding: over every number of GPUs that divides the replicas."""
        if name != "sharding":
            return None
        degrees = divisors(situation.shardable_gpus)[1:]
        return ["none", _OPTIMIZER_STATE, *(f"{_SHARDED}{degree}" for degree in degrees)]

    def label(self, name: str) -> str:
        """Label of the joint control."""
        return "Sharding" if name == "sharding" else ""

    def described_by(self, name: str) -> str:
        """Field whose description in the schema applies to the control."""
        return "shard_optimizer_state" if name == "sharding" else name
