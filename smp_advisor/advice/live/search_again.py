"""A search of a changed request in place, which keeps the pinned settings."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.advice.live.settings import job_labels, label_of, names_of, settings_of, throughput_change, value_text
from smp_advisor.arguments import amount_of
from smp_advisor.cluster.cluster import Cluster
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.library import get_library, plan_fields
from smp_advisor.wording import adapter_text, listed
from smp_advisor.workload.adapter import Adapter
from smp_advisor.workload.job import Job

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from smp_advisor.advice import Advice
    from smp_advisor.libraries.library import Settings

_JOB = frozenset(field.name for field in fields(Job))
_SHAPE = frozenset({"family", "layers", "hidden", "heads", "vocab", "activation"})
_FREE = ("precision", "attention", "stack")
"""Fields of a `Job` that count as not set while all of them have their defaults and the library is chosen."""


def changed(advice: Advice, changes: Mapping[str, Any], pins: Settings | None = None, **progress: Any) -> Advice:
    """The advice for a changed request. Everything else of the request stays, and the pinned settings of the plan."""
    if advice.call is None:
        raise AdvisorError("Only advice made by advise() can be searched again.")
    keywords = dict(advice.call.keywords)
    if pins is not None:
        target = str(changes.get("library", keywords.get("library")) or "auto")
        # Keywords with the values of pinned controls, as far as a library has them, instead of the fixed settings.
        library = advice.plan.library
        own = set(fields_of_pins(library, settings_of(advice.plan, advice.job))) - _JOB
        free = {name: value for name, value in keywords.items() if name not in own}
        possible = _JOB | plan_fields(advice.plan.library if target == "auto" else target)
        fixed = {name: value for name, value in fields_of_pins(library, pins).items() if name in possible}
        keywords = changed_call(free, fixed)
    result: Advice = advice.call.func(**changed_call(keywords, changes), **progress)
    return result


def changed_call(keywords: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of `advise` with changes; None removes a setting."""
    result = dict(keywords)
    remaining = dict(changes)
    if "model" in remaining:
        result = {name: value for name, value in result.items() if name not in _SHAPE}
    cluster = result.get("cluster")
    if isinstance(cluster, Cluster) and {"cluster", "instance_count"} & remaining.keys():
        result |= {"cluster": cluster.instance, "instance_count": cluster.nodes}
    job = result.get("job")
    if isinstance(job, Job) and (of_job := {name: remaining.pop(name) for name in list(remaining) if name in _JOB}):
        result |= _changed_job(job, of_job, library=str(remaining.get("library", result.get("library", "auto"))))
    for name, value in remaining.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = value
    return result


def _changed_job(job: Job, changes: Mapping[str, Any], library: str) -> dict[str, Any]:
    """Keywords with a changed job. The fields that are not its defaults become keywords where a default is a choice."""
    defaults = Job()
    values = {name: getattr(defaults, name) if value is None else value for name, value in changes.items()}
    if isinstance(values.get("tokens"), str):
        values["tokens"] = amount_of("tokens", values["tokens"])
    if "stack" in values and "attention" not in values:
        values["attention"] = "auto"  # that of the kind of code
    if library == "auto" and set(_FREE) & values.keys() and set(_FREE) <= set(job.defaulted()):
        own = {name: getattr(job, name) for name in _JOB - set(job.defaulted())}
        return {"job": None, **own, **{name: value for name, value in changes.items() if value is not None}}
    return {"job": replace(job, **values)}


def pins_of(advice: Advice) -> tuple[str, ...]:
    """Controls of the plan whose values the request fixes. Settings of its job are part of the request."""
    if advice.call is None:
        return ()
    library, keywords = advice.plan.library, advice.call.keywords
    codec, controls = get_library(library).control_codec, get_library(library).controls
    keys = {name for name, value in keywords.items() if value is not None}
    values = settings_of(advice.plan, advice.job)
    return tuple(name for name in controls if set(codec.fields({name: values[name]})) & keys)


def fields_of_pins(library: str, pins: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of `advise` that fix the values of controls: fields of the plan and of the job."""
    codec, controls = get_library(library).control_codec, get_library(library).controls
    of_plan = codec.fields({name: value for name, value in pins.items() if name in controls})
    return {**of_plan, **{name: value for name, value in pins.items() if name in job_labels(library)}}


def lost_pins(library: str, pins: Iterable[str]) -> tuple[str, ...]:
    """Pinned controls that another library does not have."""
    return tuple(name for name in pins if name not in names_of(library))


@dataclass(frozen=True, kw_only=True)
class SearchAgain:
    """A changed request: prepared at once, searched in any thread."""

    advice: Advice
    """The present recommendation."""
    changes: Mapping[str, Any]
    """Keywords of `advise` with their new values; None removes a setting."""
    pins: Settings
    """Values of the pinned settings."""

    def run(self, **progress: Any) -> Advice:
        """The new recommendation. ``on_progress`` is that of `advise`."""
        return changed(self.advice, self.changes, self.pins, **progress)

    def summary(self, after: Advice) -> str:
        """The change with its effect: "Instance count 16 → 8: 26.1 of 39.4 GiB per GPU, throughput −48 %"."""
        texts = [f"{_title(name)} {_text(self._before(name))} → {_text(value)}" for name, value in self.changes.items()]
        lost = lost_pins(after.plan.library, self.pins)
        pinned = [
            f"{label_of(after.plan.library, name).lower()} {value_text(name, value)}"
            for name, value in self.pins.items()
            if name not in lost
        ]
        texts += [f"searched with {listed(pinned)} pinned"] if pinned else ([] if texts else ["Searched again"])
        labels = [label_of(self.advice.plan.library, name).lower() for name in lost]
        texts += [f"no longer pinned: {listed(labels)}, which {after.plan.library} does not have"] if lost else []
        text = ", ".join(texts)
        return f"{text[:1].upper()}{text[1:]}: {self._effect(after)}."

    def _before(self, name: str) -> Any:
        call = self.advice.call
        value = None if call is None else call.keywords.get(name)
        if name == "instance_count":
            return self.advice.cluster.nodes
        if name == "cluster":
            return self.advice.cluster.instance.name
        return getattr(self.advice.job, name, None) if value is None else value

    def _effect(self, after: Advice) -> str:
        estimate, before = after.estimate, self.advice.estimate
        memory = f"{estimate.needed_gib:.1f} of {estimate.usable_gpu_memory_gib:.1f} GiB per GPU"
        if after.model.reads_tokens and self.advice.model.reads_tokens:
            rate, earlier = estimate.tokens_per_second, before.tokens_per_second
        else:
            rate, earlier = estimate.samples_per_second, before.samples_per_second
        return f"{memory}, {throughput_change(earlier, rate)}"


_TITLES = {
    "cluster": "instance",
    "min_fit_probability": "certainty of the fit",
    "max_days": "deadline",
    "max_usd": "budget",
    "global_batch_size": "global batch",
}


def _title(name: str) -> str:
    return _TITLES.get(name, name.replace("_", " "))


def _text(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, Adapter):
        return adapter_text(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(getattr(value, "name", value))
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"
