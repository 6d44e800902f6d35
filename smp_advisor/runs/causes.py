"""Causes of the deviation of a run from its prediction, in the cost model's terms, each with its evidence."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from smp_advisor.wording import between, percent, plural, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from smp_advisor.guidance.recommended import Recommended
    from smp_advisor.runs.steps import Typical

_IDLE, _BUSY = 0.75, 0.9
"""Mean utilization of the GPUs below which they wait, and above which they always work (judgment)."""
_SCATTERED = 0.1
"""Spread of the logarithms of the step times above which something irregular, such as data, decides them (judgment)."""
_APART = 0.2
"""Distance of one host's utilization from the median of the others (judgment)."""
_LEAST_SHARE = 0.1
"""Share of a predicted step from which a part of it is named."""
_NEARLY_FULL = 0.95
NOT_OF_PLAN = ("data loading", "slow node")
"""Causes that no other plan removes."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One cause."""

    name: str
    """``warm-up``, ``restart``, ``data loading``, ``communication``, ``recomputation``, ``host``, ``slow node``,
    ``memory``, ``stalls``, ``less work`` or ``unknown cause``."""
    evidence: str
    """The figure that it is based on, as a sentence."""
    change: str
    """The change to try, or the measurement that would separate causes; empty if there is nothing to do."""

    def __str__(self) -> str:
        return " ".join(filter(None, (f"{self.name.capitalize()}: {self.evidence}", self.change)))


def causes_of(
    advice: Recommended,
    usual: Typical,
    *,
    busy: Mapping[str, float],
    restarts: int = 0,
    memory_share: float | None = None,
) -> tuple[Cause, ...]:
    """Causes of the difference between the measured and the predicted step time, and of steps that were not counted.

    `busy` is the utilization of the GPUs by host, 0 to 1, empty without metrics; `restarts` are those that SageMaker
    reports; `memory_share` is the peak over the memory of the GPU.
    """
    estimate = advice.estimate
    low, high = estimate.step_seconds_range
    causes = list(_not_counted(usual, restarts))
    if low <= usual.seconds <= high:
        return tuple(causes)
    against = f"{seconds(usual.seconds)} per step, predicted {between((low, high))} s"
    if usual.seconds < low:
        less = f"{against}: the run is faster than any published run of this kind."
        check = "Compare its batch, sequence length and GPUs with the plan: it may do less work per step."
        return (*causes, Cause(name="less work", evidence=less, change=check))
    certain = [*_of_hosts(busy), *_of_memory(memory_share)]
    return (*causes, *(certain or _of_parts(advice, usual, busy, against)))


def _not_counted(usual: Typical, restarts: int) -> Iterator[Cause]:
    """Steps that the typical step leaves out."""
    dropped = dict(usual.dropped)
    if count := dropped.get("warm-up"):
        text = f"{plural(count, 'value')} at the start left out, while kernels are chosen and memory is reserved."
        yield Cause(name="warm-up", evidence=text, change="")
    again = max(restarts, *(n for reason, n in usual.dropped if reason.startswith("restart")), 0)
    if again:
        text = f"{plural(again, 'restart')}: the step number went back, or SageMaker reports it."
        change = (
            "Each repeats the steps since the last checkpoint: save more often (checkpoint_every) if they are frequent."
        )
        yield Cause(name="restart", evidence=text, change=change)
    if stalls := next((n for reason, n in usual.dropped if reason.startswith("slow steps")), 0):
        share = stalls / (stalls + usual.steps)
        text = f"{plural(stalls, 'value')} ({percent(share)}) are far above the median of {seconds(usual.seconds)}."
        change = (
            "Checkpoints, evaluations or stalls: save less often, or asynchronously, if they recur with checkpoints."
        )
        yield Cause(name="stalls", evidence=text, change=change)


def _of_hosts(busy: Mapping[str, float]) -> Iterator[Cause]:
    """One host whose GPUs work less than those of the others, which wait for it in their collectives."""
    if len(busy) < 3:
        return
    slow = min(busy, key=lambda host: busy[host])
    usual = median(value for host, value in busy.items() if host != slow)
    if usual - busy[slow] >= _APART:
        text = f"The GPUs of {slow} are at {percent(busy[slow])}, those of the other hosts at {percent(usual)}."
        change = "All wait for it: replace the node (a new job gets others), and look at its data and processors first."
        yield Cause(name="slow node", evidence=text, change=change)


def _of_memory(share: float | None) -> Iterator[Cause]:
    if share is not None and share >= _NEARLY_FULL:
        text = (
            f"Peak memory is {percent(share)} of the GPU's, where the allocator frees and reserves memory in each step."
        )
        yield Cause(name="memory", evidence=text, change="A smaller batch_size, or activation checkpointing.")


def _of_parts(advice: Recommended, usual: Typical, busy: Mapping[str, float], against: str) -> list[Cause]:
    """The part of the step that the evidence singles out, or the measurement that would."""
    if not busy:
        change = (
            "Measure the utilization of the GPUs: advice.monitoring_cell() shows it by host. Low and irregular steps:"
            " data loading; low and regular: the host; high: communication or compute."
        )
        return [
            Cause(name="unknown cause", evidence=f"{against}, and there are no metrics of the GPUs.", change=change)
        ]
    mean = sum(busy.values()) / len(busy)
    figure = f"{against}; the GPUs are at {percent(mean)}, the steps spread by {percent(usual.spread)}"
    if mean < _IDLE and usual.spread > _SCATTERED:
        change = (
            "More or faster workers of the data loader, prefetching, data on FSx or FastFile instead of S3 downloads."
        )
        return [Cause(name="data loading", evidence=f"{figure}: they wait at irregular times.", change=change)]
    if mean < _IDLE:
        change = "Fewer, larger kernels: a larger batch_size with fewer microbatches, torch.compile, a fused optimizer."
        return [Cause(name="host", evidence=f"{figure}: they wait in every step for launches.", change=change)]
    if mean < _BUSY:
        change = (
            "Profile ten steps (torch.profiler): gaps before kernels are the host's, gaps between batches the data's."
        )
        return [Cause(name="unknown cause", evidence=f"{figure}, neither idle nor always at work.", change=change)]
    return [_of_busy_gpus(advice, figure)]


def _of_busy_gpus(advice: Recommended, figure: str) -> Cause:
    """Communication, whose kernels count as work, or compute."""
    time = advice.estimate.time
    exchange = time.tensor_parallel_seconds + time.data_parallel_seconds
    share, again = exchange / time.total_seconds, time.recomputation_seconds / time.total_seconds
    nodes = advice.cluster.nodes
    separates = (
        "NCCL_DEBUG=INFO shows the network in use; torch.profiler separates NCCL's kernels from those of compute."
    )
    if nodes > 1 and again < _LEAST_SHARE:
        text = f"{figure}: waiting in collectives counts as work, and {plural(nodes, 'node')} exchange data."
        change = (
            f"EFA must be in use (FI_PROVIDER efa in the log), and sharding within a node exchanges less. {separates}"
        )
        return Cause(name="communication", evidence=text, change=change)
    if nodes == 1 and again >= _LEAST_SHARE and share < _LEAST_SHARE:
        text = f"{figure}; {percent(again)} of the predicted step is recomputation, {percent(share)} communication."
        change = (
            "Checkpoint fewer blocks, or none, if the memory suffices: %smp_advise shows the memory of each choice."
        )
        return Cause(name="recomputation", evidence=text, change=change)
    text = f"{figure}. Predicted: {percent(share)} communication, {percent(again)} recomputation; the figures fit both."
    change = f"A probe with one node (advice.probe_cell()) has no network. {separates}"
    return Cause(name="unknown cause", evidence=text, change=change)
