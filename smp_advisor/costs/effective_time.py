"""Share of a run's time that is spent in training steps: checkpoints, restarts, start-up and other overheads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from smp_advisor.core import GIB
from smp_advisor.core.files import data_file
from smp_advisor.costs.world import stack_of

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

_DAY_SECONDS = 86_400


def _figure(name: str) -> dict[str, Any]:
    """Return a figure of ``data/effective_time.toml`` by its dotted name; empty if there is none."""
    group, _, key = name.partition(".")
    entry: dict[str, Any] = data_file("costs", "effective_time")[group]
    return entry.get(key, {}) if key else entry


@cache
def _value(name: str) -> float:
    return float(_figure(name)["value"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Overhead:
    """One part of a run besides its training steps."""

    name: str
    title: str
    share: float
    """Share of the elapsed time. 0 for parts that occur once per job if `Job.tokens` is not set."""
    detail: str
    """How the share comes about, in one sentence."""
    source: str
    assumed: bool
    """Whether a figure behind the share is not confirmed by any measurement."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EffectiveTime:
    """Share of the elapsed time that is spent in training steps, and the remaining parts."""

    share: float
    """Above 0, at most 1; 1 without any counted part. It and the shares of the parts add up to 1."""
    shares: tuple[tuple[str, float], ...]
    """Name and share of each counted part (`Job.overheads`)."""
    checkpoint_gib: float
    checkpoint_seconds: float
    """Time for which a checkpoint stops training."""
    checkpoint_interval_seconds: float
    startup_seconds: float
    """From the pull of the container to the first step, without the wait for instances."""
    restart_seconds: float
    """From a failure to the first repeated step."""
    hours_between_failures: float
    """Mean time between failures of the cluster."""
    checkpoint_figures: tuple[str, ...]
    """Names of the figures in ``data/effective_time.toml`` that determine `checkpoint_seconds`."""

    @property
    def parts(self) -> tuple[Overhead, ...]:
        values = {
            "gib": self.checkpoint_gib,
            "save": _duration(self.checkpoint_seconds),
            "interval": _duration(self.checkpoint_interval_seconds),
            "between": _duration(3600 * self.hours_between_failures),
            "restart": _duration(self.restart_seconds),
            "startup": _duration(self.startup_seconds),
        }
        entries = data_file("costs", "effective_time")["part"]
        parts = []
        for name, share in self.shares:
            behind = [_figure(of) for of in entries[name].get("figures", self.checkpoint_figures)]
            parts.append(
                Overhead(
                    name=name,
                    title=entries[name]["title"],
                    share=share,
                    detail=entries[name]["detail"].format(**values),
                    source="; ".join(figure["source"] for figure in behind),
                    assumed=any(figure["assumed"] for figure in behind),
                )
            )
        return tuple(parts)


def seconds_between_failures(gpus: int) -> float:
    """Mean time between failures of a job: that of one GPU with its part of the node, divided by their number."""
    return _DAY_SECONDS / (_value("failures_per_gpu_day") * gpus)


def best_interval_seconds(save_seconds: float, between_failures: float) -> float:
    """Interval between checkpoints that loses the least time (Daly 2006, eq. 37, after Young 1974)."""
    if save_seconds >= 2 * between_failures:
        return between_failures
    ratio = save_seconds / (2 * between_failures)
    return math.sqrt(2 * save_seconds * between_failures) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_seconds


def elapsed_per_work(
    interval: float, save_seconds: float, between_failures: float = math.inf, restart_seconds: float = 0.0
) -> float:
    """Expected elapsed time per second of work, with failures at random times (Daly 2006, eq. 13)."""
    segment = interval + save_seconds
    if math.isinf(between_failures):
        return segment / interval
    exponent = min(segment / between_failures, _LARGEST_EXPONENT)
    repeated = math.exp(min(restart_seconds / between_failures, _LARGEST_EXPONENT))
    return between_failures * repeated * math.expm1(exponent) / interval


_LARGEST_EXPONENT = 300.0
"""The share of such a run is zero for every purpose, and its exponential is still a number."""
_LEAST_SHARE = 1e-12
"""Share of a run that makes no progress, so that its days are a number."""


def checkpoint_bytes(model: Model, layout: Layout) -> float:
    """Bytes of one checkpoint over all processes; frozen weights of an adapter only where the script saves them."""
    state = layout.state_bytes
    moments = state.moment_bytes + state.paged_moment_bytes
    # Of SMP v1's fp32 copies, those of the gradients are not saved.
    per_trained = state.parameter_bytes + moments + min(state.copy_bytes, 4.0)
    if state.frozen_bytes is None:
        return per_trained * model.parameter_count
    adapters = sum(group.count * group.block.adapter_parameters for group in model.groups)
    frozen = state.frozen_bytes * model.parameter_count if layout.saves_frozen else 0.0
    return frozen + per_trained * adapters


def writing_nodes(cluster: Cluster, layout: Layout) -> int:
    """Return the nodes with a part of the state of their own. Replicas are saved once."""
    degree = int(layout.tensor_parallel_degree) * int(layout.pipeline_parallel_degree)
    if int(layout.shard_level):
        degree *= int(layout.shard_degree) or cluster.gpus
    return max(1, min(degree, cluster.gpus) // cluster.gpus_per_node)


def effective_time(
    model: Model, cluster: Cluster, job: Job, layout: Layout, *, step_seconds: float, steps: float | None
) -> EffectiveTime:
    overheads = job.overheads
    counted = frozenset(overheads.parts)
    bytes_ = checkpoint_bytes(model, layout)
    families = data_file("costs", "effective_time")["ebs_instances"]["names"]
    on_ebs = cluster.instance.name.startswith(tuple(f"{name}." for name in families))
    storage = overheads.storage if overheads.storage != "local" else "ebs" if on_ebs else "nvme"
    rate = f"storage_gb_per_s.{storage}"
    nodes = writing_nodes(cluster, layout)
    written = bytes_ / (nodes * _value(rate) * 1e9)
    save = written * (_value("asynchronous_share") if overheads.asynchronous else 1.0)
    failing = seconds_between_failures(cluster.gpus)
    if overheads.checkpoint_minutes is not None:
        interval = 60 * overheads.checkpoint_minutes
    else:
        # The next checkpoint starts when the last one is written.
        least = max(written, step_seconds)
        interval = max(min(best_interval_seconds(save, failing), _value("longest_interval_seconds")), least)
    compilation = float(_figure(f"compilation_seconds.{stack_of(job, layout).name}").get("value", 0.0))
    startup = _value("container_seconds") + _value("initialization_seconds") + compilation
    restart = _value("detection_seconds") + startup + written

    waiting = _value("data_loading_share") if "data_loading" in counted else 0.0
    paid = save if "checkpoints" in counted else 0.0
    failures = failing if "restarts" in counted else math.inf
    smooth = elapsed_per_work(interval, paid)
    rate_of_elapsed = elapsed_per_work(interval, paid, failures, restart)
    # Seconds per second of training steps.
    seconds = {
        "checkpoints": (1 + waiting) * (smooth - 1),
        "restarts": (1 + waiting) * max(rate_of_elapsed - smooth, 0.0),
        "startup": 0.0,
        "data_loading": waiting,
        "evaluation": 0.0,
    }
    if steps is not None:
        work = steps * step_seconds
        # A batch's forward pass is a third of a step without recomputation.
        evaluation = _value("evaluation_batches") * step_seconds / 3
        seconds["startup"] = startup / work if "startup" in counted else 0.0
        seconds["evaluation"] = evaluation / work if "evaluation" in counted else 0.0
    elapsed = 1 + sum(seconds.values())
    return EffectiveTime(
        share=max(1 / elapsed, _LEAST_SHARE),
        shares=tuple((name, seconds[name] / elapsed) for name in overheads.parts),
        checkpoint_gib=bytes_ / GIB,
        checkpoint_seconds=save,
        checkpoint_interval_seconds=interval,
        startup_seconds=startup,
        restart_seconds=restart,
        hours_between_failures=failing / 3600,
        checkpoint_figures=(rate, "asynchronous_share") if overheads.asynchronous else (rate,),
    )


def _duration(seconds: float) -> str:
    """Return a duration in its natural unit with at most three digits."""
    for unit, size in (("days", _DAY_SECONDS), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            value = seconds / size
            return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
