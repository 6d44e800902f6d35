"""The controls and the positions that each may take, the others held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from smp_advisor.libraries.axes import checkpointing_strategies, divisors, pipeline_degrees, tensor_degrees
from smp_advisor.libraries.schema import schema
from smp_advisor.notebook.library_settings import positions as positions_of
from smp_advisor.notebook.settings import OPTIMIZER_STATE, prescaled, sharded
from smp_advisor.notebook.words import labels_of, value_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smp_advisor.advice import Advice
    from smp_advisor.notebook.settings import Setting, Settings

__all__ = ["Control", "Kind", "controls"]

Kind = Literal["slider", "select", "checkbox"]

_KINDS: dict[str, Kind] = {
    "sharding": "select",
    "activation_checkpointing": "select",
    "offload_activations": "checkbox",
    "pipeline": "select",
    "sharding_strategy": "select",
}
_MAX_ACTIVE_STEPS = 32
"""Up to so many microbatches every number of active ones has a position, beyond that the powers of two."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Control:
    """One control and where it can stand."""

    name: str
    label: str
    kind: Kind
    values: tuple[Setting, ...]
    """Positions in the order of the slider; the current value is one of them."""
    texts: tuple[str, ...]
    help: str
    """What it does and costs, from the library's schema."""


def controls(advice: Advice, settings: Settings) -> list[Control]:
    """Every control with its positions, given what the others hold."""
    library = advice.plan.library
    if library != "smp-v1":
        places = positions_of(advice, settings).items()
        return [_control(library, name, values, settings[name]) for name, values in places]
    tensor, pipeline = _int(settings, "tensor_parallel_degree"), _int(settings, "pipeline_parallel_degree")
    batch, microbatches = _int(settings, "batch_size"), _int(settings, "microbatches")
    positions: dict[str, Iterable[Setting]] = {
        "batch_size": _batch_sizes(advice, tensor, pipeline, microbatches),
        "microbatches": divisors(batch),
        "tensor_parallel_degree": [
            degree
            for degree in tensor_degrees(advice.model, advice.cluster, {})
            if advice.cluster.gpus % (degree * pipeline) == 0
        ],
        "pipeline_parallel_degree": pipeline_degrees(advice.model, advice.cluster, tensor, {}),
        "sharding": ["none", OPTIMIZER_STATE, *map(sharded, divisors(_replicas(advice, tensor, pipeline))[1:])],
        "activation_checkpointing": [
            one or "none" for one in checkpointing_strategies(-(-advice.model.layer_count // pipeline), tensor)
        ],
        "offload_activations": [False, True],
    }
    if pipeline > 1:
        positions["active_microbatches"] = _active(microbatches)
        positions["pipeline"] = ["interleaved", "simple"]
    return [_control(library, name, values, settings[name]) for name, values in positions.items()]


def _control(library: str, name: str, values: Iterable[Setting], current: Setting) -> Control:
    listed = list(values)
    if current not in listed:
        # What is set has a position even where it is no round number.
        listed = sorted([*listed, current], key=_order) if name not in _KINDS else [*listed, current]
    stated = schema(library).described("shard_optimizer_state" if name == "sharding" else name)
    return Control(
        name=name,
        label=labels_of(library)[name],
        kind=_KINDS.get(name, "slider"),
        values=tuple(listed),
        texts=tuple(value_text(name, value) for value in listed),
        help=stated.doc if stated else "",
    )


def _order(value: Setting) -> int:
    return cast("int", value)


def _batch_sizes(advice: Advice, tensor: int, pipeline: int, microbatches: int) -> list[int]:
    """Multiples of the microbatches up to the job's limit of tokens; none but the current where the job fixes it."""
    job = advice.job
    if job.global_batch_size is not None:
        return []
    replicas = max(1, advice.cluster.gpus // (pipeline * (tensor if prescaled(advice, tensor) else 1)))
    most = job.max_tokens_per_step // (advice.model.sequence_length(job.sequence_length) * replicas * microbatches)
    return [size * microbatches for size in _steps(most)]


def _steps(limit: int) -> list[int]:
    """Each number up to 8, then quarters of each power of two: 10, 12, 14, 16, 20, ..."""
    steps = set(range(1, 9))
    power = 8
    while power <= limit:
        steps |= {power * quarter // 4 for quarter in (4, 5, 6, 7)}
        power *= 2
    return sorted(step for step in steps if step <= limit)


def _active(microbatches: int) -> list[int]:
    if microbatches <= _MAX_ACTIVE_STEPS:
        return list(range(1, microbatches + 1))
    return sorted({2**k for k in range(microbatches.bit_length())} | {microbatches})


def _replicas(advice: Advice, tensor: int, pipeline: int) -> int:
    return max(1, advice.cluster.gpus // (tensor * pipeline))


def _int(settings: Settings, name: str) -> int:
    return cast("int", settings[name])
