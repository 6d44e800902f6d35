"""What the advisor's controls set, as plain values; and the plan that they make."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import PlanError
from smp_advisor.libraries.families import supports_prescaled_batch
from smp_advisor.notebook.library_settings import FORMS, plan_of_fields, setting_type, settings_of_fields

if TYPE_CHECKING:
    from smp_advisor.advice import Advice
    from smp_advisor.libraries.plan import Plan

__all__ = [
    "NAMES",
    "OPTIMIZER_STATE",
    "Setting",
    "Settings",
    "names_of",
    "plan_of",
    "prescaled",
    "require_settings",
    "settings_of",
    "shard_degree",
    "sharded",
]

Setting = int | str | bool
Settings = dict[str, Setting]
"""One value for each of the library's `names_of`."""

NAMES = (
    "tensor_parallel_degree",
    "pipeline_parallel_degree",
    "sharding",
    "activation_checkpointing",
    "offload_activations",
    "batch_size",
    "microbatches",
    "active_microbatches",
    "pipeline",
)

_SWITCHES = {"offload_activations"}
_CHOICES = {"sharding", "activation_checkpointing", "pipeline"}

OPTIMIZER_STATE = "optimizer_state"
_SHARDED = "sharded_"


def sharded(degree: int) -> str:
    """The value of ``sharding`` for a sharded data parallel degree: ``none`` for 1."""
    return "none" if degree == 1 else f"{_SHARDED}{degree}"


def settings_of(plan: Plan) -> Settings:
    """What the controls show of a plan."""
    if plan.library != "smp-v1":
        return settings_of_fields(plan)
    return {
        "tensor_parallel_degree": plan.tensor_parallel_degree,
        "pipeline_parallel_degree": plan.pipeline_parallel_degree,
        "sharding": OPTIMIZER_STATE if plan.shard_optimizer_state else sharded(plan.sharded_data_parallel_degree),
        "activation_checkpointing": plan.activation_checkpointing or "none",
        "offload_activations": plan.offload_activations,
        "batch_size": plan.batch_size,
        "microbatches": plan.microbatches,
        "active_microbatches": plan.active_in_flight,
        "pipeline": plan.pipeline,
    }


def prescaled(advice: Advice, tensor_parallel_degree: int) -> bool:
    """Whether the batch is that of a whole tensor-parallel group: as recommended, or wherever the family allows it."""
    if tensor_parallel_degree == 1:
        return False
    recommended = advice.plan
    if recommended.tensor_parallel_degree > 1:
        return bool(recommended.prescaled_batch)
    return bool(recommended.optimize == "speed") and supports_prescaled_batch(advice.model.family)


def plan_of(advice: Advice, settings: Settings) -> Plan:
    """The plan of these settings; what no control sets is as recommended.

    Raises
    ------
    PlanError
        The settings exclude each other.
    """
    recommended = advice.plan
    if settings == settings_of(recommended):
        return recommended
    if recommended.library != "smp-v1":
        return plan_of_fields(advice, settings)
    given: dict[str, Any] = {**settings}
    tensor, pipeline = given["tensor_parallel_degree"], given["pipeline_parallel_degree"]
    sharding, microbatches = given["sharding"], given["microbatches"]
    checkpointing, active = given["activation_checkpointing"], given["active_microbatches"]
    return dataclasses.replace(
        recommended,
        tensor_parallel_degree=tensor,
        pipeline_parallel_degree=pipeline,
        shard_optimizer_state=sharding == OPTIMIZER_STATE,
        sharded_data_parallel_degree=shard_degree(sharding),
        activation_checkpointing=False if checkpointing == "none" else checkpointing,
        offload_activations=given["offload_activations"],
        batch_size=given["batch_size"],
        microbatches=microbatches,
        # The library's own default needs no mention, and without a pipeline nothing reads either.
        active_microbatches=None if pipeline == 1 or active == min(pipeline + 2, microbatches) else active,
        pipeline="interleaved" if pipeline == 1 else given["pipeline"],
        prescaled_batch=prescaled(advice, tensor),
    )


def names_of(library: str) -> tuple[str, ...]:
    """Settings that have a control, in the order of the form."""
    return NAMES if library == "smp-v1" else FORMS[library]


def require_settings(value: object, library: str = "smp-v1") -> Settings:
    """The same settings, once they are known to be complete and of the right types.

    Raises
    ------
    PlanError
        One is missing, unknown, or no value of its kind.
    """
    names = names_of(library)
    if not isinstance(value, dict) or set(value) != set(names):
        raise PlanError(f"The advisor's settings must give each of {', '.join(names)} once.")
    for name, setting in value.items():
        wanted = _type_of(library, name)
        if type(setting) is not wanted:
            raise PlanError(f"The advisor's setting {name} must be of type {wanted.__name__}, not {setting!r}.")
    return value


def _type_of(library: str, name: str) -> type:
    if library != "smp-v1":
        return setting_type(library, name)
    return bool if name in _SWITCHES else str if name in _CHOICES else int


def shard_degree(sharding: object) -> int:
    """Over how many GPUs parameters are sharded: 1 where they are not.

    Raises
    ------
    PlanError
        No such value of ``sharding``.
    """
    text = str(sharding)
    degree = text.removeprefix(_SHARDED)
    if text in {"none", OPTIMIZER_STATE}:
        return 1
    if text == degree or not degree.isdecimal():
        raise PlanError(f"sharding must be none, {OPTIMIZER_STATE} or {_SHARDED}N, not {sharding!r}.")
    return int(degree)
