"""Controls of the libraries beside SMP v1: which fields of a plan they set, where each can stand, what follows."""

from __future__ import annotations

import dataclasses
from math import gcd
from typing import TYPE_CHECKING, Any, cast

from smp_advisor.libraries.axes import divisors, pipeline_degrees, technique_degrees
from smp_advisor.libraries.schema import schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from smp_advisor.advice import Advice
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.notebook.settings import Setting, Settings

__all__ = ["FORMS", "field_label", "follow_fields", "plan_of_fields", "positions", "setting_type", "settings_of_fields"]

FORMS: Mapping[str, tuple[str, ...]] = {
    "smp-v2": (
        "hybrid_shard_degree",
        "tensor_parallel_degree",
        "context_parallel_degree",
        "expert_parallel_degree",
        "activation_checkpointing",
        "offload_activations",
        "batch_size",
        "gradient_accumulation_steps",
    ),
    "fsdp": ("sharding_strategy", "activation_checkpointing", "batch_size", "gradient_accumulation_steps"),
    "ddp": ("activation_checkpointing", "batch_size", "gradient_accumulation_steps"),
    "training-compiler": ("batch_size",),
    "smp-v1-tensorflow": ("partitions", "batch_size", "microbatches", "pipeline"),
}
"""Fields of a plan that have a control, by library; all named in the library's schema."""

_DEGREES = {
    "tensor_parallel_degree": "tensor_parallel",
    "context_parallel_degree": "context_parallel",
    "expert_parallel_degree": "expert_parallel",
}


def field_label(library: str, name: str) -> str:
    """The field's title in the library's schema."""
    stated = schema(library).described(name)
    return stated.title if stated else name


def setting_type(library: str, name: str) -> type:
    """What a control of the field sets."""
    stated = schema(library).described(name)
    return {"int": int, "bool": bool, "str": str}[stated.type if stated else "str"]


def settings_of_fields(plan: Plan) -> Settings:
    """What the controls show of a plan."""
    return {
        name: _shown(getattr(plan, name)) if name == _CHECKPOINTING else getattr(plan, name) for name in _form(plan)
    }


_CHECKPOINTING = "activation_checkpointing"


def _shown(strategy: Any) -> str:
    return str(strategy or "none")


def _form(plan: Plan) -> tuple[str, ...]:
    return FORMS[plan.library]


def plan_of_fields(advice: Advice, settings: Settings) -> Plan:
    """The plan of these settings; what no control sets is as recommended."""
    recommended = advice.plan
    given: dict[str, Any] = {**settings}
    if given.get(_CHECKPOINTING) == "none":
        given[_CHECKPOINTING] = False
    if recommended.library == "smp-v2":
        given["sm_activation_offloading"] = None
        if given["hybrid_shard_degree"] == 1:  # without shards there is no all-gather to speed up
            given["distributed_backend"] = "nccl"
    if recommended.library == "smp-v1-tensorflow":
        given["horovod"] = advice.cluster.gpus > given["partitions"]
    return dataclasses.replace(recommended, **given)


def positions(advice: Advice, settings: Settings) -> dict[str, Iterable[Setting]]:
    """Where each control can stand, given what the others hold."""
    return {name: _positions(advice, settings, name) for name in _form(advice.plan)}


def _positions(advice: Advice, settings: Settings, name: str) -> Iterable[Setting]:
    stated = schema(advice.plan.library).described(name)
    if name in _DEGREES:
        return technique_degrees(
            advice.plan.library, name, advice.model, advice.cluster, advice.job, advice.plan.version
        )
    match name:
        case "hybrid_shard_degree":
            return divisors(_left(advice, settings))
        case "partitions":
            return pipeline_degrees(advice.model, advice.cluster, 1, {})
        case "microbatches":
            return divisors(_int(settings, "batch_size"))
        case "batch_size":
            return _batch_sizes(advice, settings)
        case "gradient_accumulation_steps":
            return _accumulations(advice, settings)
        case "offload_activations":
            return [False, True]
    return list(stated.choices) if stated else []


def _left(advice: Advice, settings: Settings) -> int:
    """GPUs that tensor and expert parallelism leave for shards and their copies."""
    taken = _int(settings, "tensor_parallel_degree") * _int(settings, "expert_parallel_degree")
    return max(advice.cluster.gpus // taken, 1)


def _replicas(advice: Advice, settings: Settings) -> int:
    together = 1
    for name in ("tensor_parallel_degree", "context_parallel_degree", "partitions"):
        together *= _int(settings, name) if name in settings else 1
    return max(advice.cluster.gpus // together, 1)


def _steps(settings: Settings) -> int:
    name = "gradient_accumulation_steps"
    return _int(settings, name) if name in settings else 1


def _most_samples(advice: Advice, settings: Settings) -> int:
    """Samples a replica may process in a step within the job's limit of tokens."""
    length = advice.model.sequence_length(advice.job.sequence_length)
    return advice.job.max_tokens_per_step // (length * _replicas(advice, settings))


def _batch_sizes(advice: Advice, settings: Settings) -> list[int]:
    """Up to the limit of tokens; none but the current where the job fixes the global batch."""
    if advice.job.global_batch_size is not None:
        return []
    unit = _int(settings, "microbatches") if "microbatches" in settings else 1
    most = _most_samples(advice, settings) // (_steps(settings) * unit)
    sizes = {*range(1, 9)}
    power = 8
    while power <= most:
        sizes |= {power * quarter // 4 for quarter in (4, 5, 6, 7)}
        power *= 2
    return [size * unit for size in sorted(sizes) if size <= most]


def _accumulations(advice: Advice, settings: Settings) -> list[int]:
    if advice.job.global_batch_size is not None:
        share, rest = divmod(advice.job.global_batch_size, _replicas(advice, settings))
        return [] if rest or not share else divisors(share)
    most = _most_samples(advice, settings) // _int(settings, "batch_size")
    return [2**power for power in range(max(most, 1).bit_length())]


def follow_fields(advice: Advice, before: Settings, name: str, value: Setting) -> Settings:
    """The settings after `name` moved to `value`, every other held as far as that makes sense.

    Shards stay within what other degrees leave (all of it where they were), the batch follows a fixed global batch, and
    offloading goes with checkpointing.
    """
    after: Settings = {**before, name: value}
    if "hybrid_shard_degree" in after and name in _DEGREES:
        degree, most = _int(after, "hybrid_shard_degree"), _left(advice, after)
        # Over all GPUs stays over all: a slider that goes and comes back leads back.
        after["hybrid_shard_degree"] = most if 1 < degree == _left(advice, before) else gcd(degree, most) or 1
    if name == _CHECKPOINTING and value == "none" and "offload_activations" in after:
        after["offload_activations"] = False
    if name == "offload_activations" and value:
        after[_CHECKPOINTING] = "each"
    if name != "batch_size":
        _keep_global_batch(advice, after)
    if "microbatches" in after and _int(after, "batch_size") % _int(after, "microbatches"):
        after["microbatches"] = max(
            m for m in divisors(_int(after, "batch_size")) if m <= max(_int(after, "microbatches"), 1)
        )
    return after


def _keep_global_batch(advice: Advice, after: Settings) -> None:
    fixed = advice.job.global_batch_size
    replicas = _replicas(advice, after)
    # A batch that does not divide is left as it was: the estimate then says what is wrong.
    if fixed is None or fixed % replicas:
        return
    share = fixed // replicas
    if "gradient_accumulation_steps" not in after:
        after["batch_size"] = share
        return
    steps = max(k for k in divisors(share) if k <= max(_steps(after), 1))
    after["gradient_accumulation_steps"], after["batch_size"] = steps, share // steps


def _int(settings: Settings, name: str) -> int:
    return cast("int", settings[name])
