"""Causes of a step time that differs from its prediction, each with its evidence and the change to try."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from smp_advisor.core.files import data_file
from smp_advisor.core.tables import between
from smp_advisor.core.words import plural
from smp_advisor.costs.wording import percent, seconds
from smp_advisor.runs.measure import explained

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from smp_advisor.runs.readers import Log
    from smp_advisor.runs.steps import Typical
    from smp_advisor.session import Advice

_IDLE, _BUSY = 0.75, 0.9
"""Mean utilization of the GPUs below which they wait, and above which they always work (judgment)."""
_SCATTERED = 0.1
"""Spread of the logarithms of the step times above which something irregular, such as data, decides them (judgment)."""
_APART = 0.2
"""Distance of one host's utilization from the median of the others (judgment)."""
_WAITING = 0.2
"""Share of a step from which a printed wait for data explains it (judgment)."""
_STEADY = 0.05
"""Spread of steps below which nothing irregular decides them (judgment)."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One cause."""

    name: str
    """``warm-up``, ``restart``, ``change of the step time``, ``trend``, ``stalls``, ``data loading``, ``host or data
    loading``, ``communication or compute``, ``compute, recomputation or links``, ``slow node``, ``less work``,
    ``unknown cause``, or one of ``evidence.toml``: ``network``, ``throttling``, ``memory``, ..."""
    evidence: str
    """The figure that it is based on, as a sentence."""
    change: str
    """The change to try, or the measurement that would separate causes; empty if there is nothing to do."""

    def __str__(self) -> str:
        return " ".join(filter(None, (f"{self.name.capitalize()}: {self.evidence}", self.change)))


def _cause(key: str, **slots: str) -> Cause:
    """Return a cause of ``causes.toml`` with its slots filled."""
    texts = {"name": key, "change": "", **data_file("runs", "causes")[key]}
    return Cause(**{part: text.format(**slots) for part, text in texts.items()})


def causes_of(
    advice: Advice, usual: Typical, log: Log, *, busy: Mapping[str, float], restarts: int = 0
) -> tuple[Cause, ...]:
    """Causes of the difference between the measured and the predicted step time, and of steps that were not counted."""
    low, high = advice.estimate.step_seconds_range
    causes = list(_not_counted(usual, restarts))
    observed = [
        Cause(
            name=entry["name"],
            evidence=f"{entry['sentence'][:1].upper()}{entry['sentence'][1:]}.",
            change=entry["change"],
        )
        for entry in explained(log, advice.cluster)
        if entry["name"] != "restart" or not any(cause.name == "restart" for cause in causes)
    ]
    if low <= usual.seconds <= high:
        return (*causes, *observed)
    against = f"{seconds(usual.seconds)} per step, predicted {between((low, high))} s"
    if usual.seconds < low:
        return (*causes, *observed, _cause("less work", against=against))
    certain = [*observed, *_certain(log, usual, busy)]
    return (*causes, *(certain or [_of_parts(advice, usual, busy, against)]))


def _not_counted(usual: Typical, restarts: int) -> Iterator[Cause]:
    """Yield steps that the typical step leaves out, and changes of their time."""
    now = seconds(usual.seconds)
    if count := dict(usual.dropped).get("warm-up"):
        yield _cause("warm-up", values=plural(count, "value"))
    again = max(restarts, *(n for reason, n in usual.dropped if reason.startswith("restart")), 0)
    if again:
        yield _cause("restart", restarts=plural(again, "restart"))
    if usual.changed is not None:
        step, before = usual.changed
        since = "" if step is None else f" since step {step:,}"
        yield _cause("change of the step time", now=now, since=since, before=seconds(before))
    if usual.trend:
        grow = "grow" if usual.trend > 0 else "shrink"
        yield _cause("trend", grow=grow, share=percent(abs(math.expm1(usual.trend))))
    if stalls := next((n for reason, n in usual.dropped if reason.startswith("slow steps")), 0):
        share = percent(stalls / (stalls + usual.steps))
        yield _cause("stalls", values=plural(stalls, "value"), share=share, now=now, mean=seconds(usual.wall_seconds))


def _certain(log: Log, usual: Typical, busy: Mapping[str, float]) -> Iterator[Cause]:
    """Yield waits for data that the log prints, and one host whose GPUs work less than the others: they wait for it."""
    if log.data_seconds is not None and log.data_seconds > _WAITING * usual.seconds:
        yield _cause("data loading", wait=seconds(log.data_seconds), now=seconds(usual.seconds))
    if len(busy) < 2:
        return
    slow = min(busy, key=lambda host: busy[host])
    busy_hosts = median(value for host, value in busy.items() if host != slow)
    if busy_hosts - busy[slow] >= _APART:
        hosts = "of the other hosts" if len(busy) > 2 else "of the other host"
        yield _cause("slow node", slow=slow, busy=percent(busy[slow]), hosts=hosts, usual=percent(busy_hosts))


def _of_parts(advice: Advice, usual: Typical, busy: Mapping[str, float], against: str) -> Cause:
    """Return the part of the step that the evidence singles out, or the measurement that would."""
    nodes, time = plural(advice.cluster.nodes, "node"), advice.estimate.time
    several = advice.cluster.nodes > 1
    if not busy:
        first = (
            f"With steady steps, the network between {nodes} comes first: NCCL_DEBUG=INFO shows whether EFA is in use. "
        )
        return _cause("no metrics", against=against, network=first if several and usual.spread < _STEADY else "")
    mean = sum(busy.values()) / len(busy)
    figure = f"{against}; the GPUs are at {percent(mean)}, the steps spread by {percent(usual.spread)}"
    if mean < _IDLE:
        scattered = usual.spread > _SCATTERED and not usual.trend
        return _cause("irregular waits" if scattered else "host or data loading", figure=figure)
    if mean < _BUSY:
        return _cause("unknown cause", figure=figure)
    # The kernels of communication count as work: busy GPUs do not separate them from compute.
    exchange = (time.tensor_parallel_seconds + time.data_parallel_seconds) / time.total_seconds
    again = time.recomputation_seconds / time.total_seconds
    predicted = f"Predicted: {percent(exchange)} communication, {percent(again)} recomputation."
    key = "communication or compute" if several else "compute, recomputation or links"
    return _cause(key, figure=figure, predicted=predicted, nodes=nodes)
