"""Settings of the user as phrases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.libraries.schema import schema
from smp_advisor.wording import probability
from smp_advisor.workload.counts import format_count
from smp_advisor.workload.optimizer import OPTIMIZERS
from smp_advisor.workload.stack import stack
from smp_advisor.workload.training_settings import training_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.workload.adapter import Adapter
    from smp_advisor.workload.job import Job

__all__ = ["requested"]

_ELSEWHERE = frozenset({"calibration", "overheads"})
"""Settings of a job that the report shows in other places."""


def requested(
    library: str,
    job: Job,
    names: frozenset[str],
    pins: Mapping[str, Any],
    shape: Mapping[str, Any],
    *,
    objective: str = "throughput",
    min_fit_probability: float = 0.95,
) -> tuple[str, ...]:
    """Settings that the user gave, as phrases: ``sequence length 512``, ``tensor parallel degree 4``.

    Parameters
    ----------
    names
        Names of the job's settings that the user set.
    pins, shape
        Fixed fields of the plan, and fixed values of an inferred shape.
    """
    phrases = [_job_phrase(name, getattr(job, name)) for name in _order(names)]
    for name, value in shape.items():
        title = "vocabulary" if name == "vocab" else name
        phrases.append(f"{title} {value:,}" if isinstance(value, int) else f"{title} {value}")
    for name, value in pins.items():
        parameter = schema(library).described(name)
        title = parameter.title.lower() if parameter else name.replace("_", " ")
        phrases.append(_switch(title, value))
    if objective != "throughput":
        phrases.append(f"objective {objective}")
    if min_fit_probability != 0.95:
        phrases.append(f"fit probability of at least {probability(min_fit_probability)}")
    return tuple(phrases)


def _order(names: frozenset[str]) -> list[str]:
    first = ("sequence_length", "global_batch_size", "tokens")
    return [*(name for name in first if name in names), *sorted(names - _ELSEWHERE - set(first))]


def _switch(title: str, value: object) -> str:
    return f"{title} {'on' if value else 'off'}" if isinstance(value, bool) else f"{title} {value}"


def _job_phrase(name: str, value: Any) -> str:
    settings = training_settings()
    match name:
        case "sequence_length":
            return f"sequence length {value:,}"
        case "global_batch_size":
            return "any global batch" if value is None else f"global batch of {value:,} samples"
        case "tokens":
            return "no number of tokens" if value is None else f"{format_count(value)} tokens"
        case "max_tokens_per_step":
            return f"at most {value:,} tokens per step"
        case "optimizer":
            return OPTIMIZERS[value].label
        case "adapter":
            return "no adapter" if value is None else _adapter(value)
        case "stack":
            return "code of the exported script" if value == "auto" else f"code: {stack(value).title}"
    title = settings[name].title.lower() if name in settings else name.replace("_", " ")
    return _switch(title, value)


def _adapter(adapter: Adapter) -> str:
    return f"{'QLoRA' if adapter.base_bits < 16 else 'LoRA'} of rank {adapter.rank}"
