"""Causes of a step time that differs from its prediction, each with its evidence and the change to try."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from smp_advisor.core.tables import between
from smp_advisor.costs.wording import percent, plural, seconds
from smp_advisor.runs.measure import PROCESSOR, explained

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
_FASTER_DATA = (
    "More or faster workers of the data loader, prefetching, data on FSx or FastFile instead of S3 downloads."
)
NOT_OF_PLAN = ("data loading", "host or data loading", "slow node", "network", "throttling", "links inside the node")
"""Causes that no other plan removes."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One cause."""

    name: str
    """``warm-up``, ``restart``, ``change of the step time``, ``trend``, ``stalls``, ``data loading``, ``host or data
    loading``, ``communication or compute``, ``compute, recomputation or links``, ``slow node``, ``less work``,
    ``assumed speed``, ``unknown cause``, or one of ``evidence.toml``: ``network``, ``throttling``, ``memory``, ..."""
    evidence: str
    """The figure that it is based on, as a sentence."""
    change: str
    """The change to try, or the measurement that would separate causes; empty if there is nothing to do."""

    def __str__(self) -> str:
        return " ".join(filter(None, (f"{self.name.capitalize()}: {self.evidence}", self.change)))


def is_assumed(advice: Advice | None) -> bool:
    """Whether the predicted step time assumes the speed of this machine, whose spread its interval leaves out."""
    return advice is not None and advice.cluster.instance.gpu == PROCESSOR and advice.job.calibration is None


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
    if is_assumed(advice):
        assumed = f"{against}: the prediction assumes the speed of this machine, and machines differ by a factor of 4."
        return (*causes, Cause(name="assumed speed", evidence=assumed, change="Calibrate it: run.calibrated()."))
    if usual.seconds < low:
        less = f"{against}: the run is faster than the interval of its plan."
        check = "Compare its batch, sequence length and GPUs with the plan: it may do less work per step."
        return (*causes, *observed, Cause(name="less work", evidence=less, change=check))
    certain = [*observed, *_of_data(log, usual), *_of_hosts(busy)]
    if advice.cluster.instance.gpu == PROCESSOR:  # nothing of it is known but its step time
        return (*causes, *certain)
    return (*causes, *(certain or _of_parts(advice, usual, busy, against)))


def _not_counted(usual: Typical, restarts: int) -> Iterator[Cause]:
    """Yield steps that the typical step leaves out, and changes of their time."""
    dropped = dict(usual.dropped)
    if count := dropped.get("warm-up"):
        text = f"{plural(count, 'value')} at the start, left out of the median."
        yield Cause(name="warm-up", evidence=text, change="")
    again = max(restarts, *(n for reason, n in usual.dropped if reason.startswith("restart")), 0)
    if again:
        text = f"{plural(again, 'restart')}: the step number went back, or SageMaker reports it."
        change = (
            "Each repeats the steps since the last checkpoint: save more often (checkpoint_every) if they are frequent."
        )
        yield Cause(name="restart", evidence=text, change=change)
    if usual.changed is not None:
        step, before = usual.changed
        since = "" if step is None else f" since step {step:,}"
        text = f"The steps take {seconds(usual.seconds)}{since}, and took {seconds(before)} before: a lasting change."
        change = "Look at what began or ended then: another job on the nodes, a clock that was throttled, other data."
        yield Cause(name="change of the step time", evidence=text, change=change)
    if usual.trend:
        text = (
            f"The steps {'grow' if usual.trend > 0 else 'shrink'} by {percent(abs(math.expm1(usual.trend)))} from the"
        )
        change = "Look at what grows: memory in fragments, longer samples, a log or cache, a clock that warms up."
        yield Cause(name="trend", evidence=f"{text} first to the last: a trend, no scatter.", change=change)
    if stalls := next((n for reason, n in usual.dropped if reason.startswith("slow steps")), 0):
        share = stalls / (stalls + usual.steps)
        text = (
            f"{plural(stalls, 'value')} ({percent(share)}) are far above the median of {seconds(usual.seconds)}: the "
            f"mean is {seconds(usual.wall_seconds)}."
        )
        change = "The log around them shows what ran then. If they recur with checkpoints, save less often."
        yield Cause(name="stalls", evidence=text, change=change)


def _of_data(log: Log, usual: Typical) -> Iterator[Cause]:
    """Waits for data, if the log prints them."""
    if log.data_seconds is not None and log.data_seconds > _WAITING * usual.seconds:
        text = f"The log shows a wait for data of {seconds(log.data_seconds)} in a step of {seconds(usual.seconds)}."
        yield Cause(name="data loading", evidence=text, change=_FASTER_DATA)


def _of_hosts(busy: Mapping[str, float]) -> Iterator[Cause]:
    """Yield one host whose GPUs work less than those of the others, which wait for it in their collectives."""
    if len(busy) < 2:
        return
    slow = min(busy, key=lambda host: busy[host])
    usual = median(value for host, value in busy.items() if host != slow)
    if usual - busy[slow] >= _APART:
        hosts_text = "of the other hosts" if len(busy) > 2 else "of the other host"
        text = f"The GPUs of {slow} are at {percent(busy[slow])}, those {hosts_text} at {percent(usual)}."
        change = "All wait for it: replace the node (a new job gets others), and look at its data and processors first."
        yield Cause(name="slow node", evidence=text, change=change)


def _of_parts(advice: Advice, usual: Typical, busy: Mapping[str, float], against: str) -> list[Cause]:
    """Return the part of the step that the evidence singles out, or the measurement that would."""
    nodes = advice.cluster.nodes
    if not busy:
        first = (
            f"the network between {plural(nodes, 'node')} comes first: NCCL_DEBUG=INFO shows whether EFA is in use. "
            if nodes > 1 and usual.spread < _STEADY
            else ""
        )
        change = (
            "Measure the utilization of the GPUs: advice.monitoring_cell() shows it by host. Low and irregular steps:"
            " data loading; low and regular: the host or the loader; high: communication or compute."
        )
        evidence = f"{against}, and there are no metrics of the GPUs."
        change = f"With steady steps, {first}{change}" if first else change
        return [Cause(name="unknown cause", evidence=evidence, change=change)]
    mean = sum(busy.values()) / len(busy)
    figure = f"{against}; the GPUs are at {percent(mean)}, the steps spread by {percent(usual.spread)}"
    if mean < _IDLE and usual.spread > _SCATTERED and not usual.trend:
        return [Cause(name="data loading", evidence=f"{figure}: they wait at irregular times.", change=_FASTER_DATA)]
    if mean < _IDLE:
        change = (
            "Profile ten steps (torch.profiler): gaps before each kernel are the host's (a larger batch_size with "
            "fewer microbatches, torch.compile, a fused optimizer), one gap per batch is the loader's (more workers, "
            "data prepared before)."
        )
        return [Cause(name="host or data loading", evidence=f"{figure}: they wait in every step.", change=change)]
    if mean < _BUSY:
        change = (
            "Profile ten steps (torch.profiler): gaps before kernels are the host's, gaps between batches the data's."
        )
        return [Cause(name="unknown cause", evidence=f"{figure}, neither idle nor always at work.", change=change)]
    return [_of_busy_gpus(advice, figure)]


def _of_busy_gpus(advice: Advice, figure: str) -> Cause:
    """Communication, whose kernels count as work, or compute: busy GPUs do not separate them."""
    time = advice.estimate.time
    exchange = time.tensor_parallel_seconds + time.data_parallel_seconds
    share, again = exchange / time.total_seconds, time.recomputation_seconds / time.total_seconds
    nodes = advice.cluster.nodes
    text = f"{figure}. Predicted: {percent(share)} communication, {percent(again)} recomputation."
    if nodes > 1:
        text = f"{text} Waiting in collectives counts as work, and {plural(nodes, 'node')} exchange data."
        change = (
            "The network comes first: NCCL_DEBUG=INFO shows whether EFA is in use (Selected Provider is efa). Then "
            "torch.profiler separates NCCL's kernels from those of compute, and a probe with one node "
            "(advice.probe_cell()) has no network."
        )
        return Cause(name="communication or compute", evidence=text, change=change)
    change = (
        "Profile ten steps (torch.profiler): slow products are those of the precision, the kernel of attention or a "
        "throttled clock; NCCL's kernels are communication inside the node. Recomputation falls with fewer "
        "checkpointed blocks: %smp_advise shows the memory of each choice."
    )
    return Cause(name="compute, recomputation or links", evidence=text, change=change)
