"""A search of a changed request in place, which keeps the pinned settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.live.labels import value_text
from smp_advisor.live.request_changes import changed, lost_pins
from smp_advisor.live.settings import label_of
from smp_advisor.wording import listed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.advice import Advice
    from smp_advisor.libraries.library import Settings

__all__ = ["SearchAgain"]


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
        """The new recommendation. ``on_progress`` is that of `advise`.

        Raises
        ------
        AdvisorError
            A change is wrong, no plan fits, or the advice was not made by `advise`.
        """
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
        change = 100 * (rate / earlier - 1)
        if abs(change) < 0.05:
            return f"{memory}, no change in throughput"
        size = f"{abs(change):.0f}" if abs(change) >= 9.95 else f"{abs(change):.1f}"
        return f"{memory}, throughput {'+' if change > 0 else chr(0x2212)}{size} %"


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
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(getattr(value, "name", value))
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"
