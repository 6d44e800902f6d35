"""The schedule of one step: simulation of the pipeline pass by pass, and every stage's work part by part."""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose
from typing import TYPE_CHECKING, Literal

from smp_advisor.costs.compute import stage_passes
from smp_advisor.costs.evaluate import estimate, trained
from smp_advisor.costs.step_time import handover_seconds
from smp_advisor.costs.world import World, local_parameters, stage_kinds, stages
from smp_advisor.libraries.layout import layout_of_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.compute import Passes
    from smp_advisor.costs.estimate import Estimate, StepTime
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


Kind = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class Slot:
    """One forward or backward pass of one microbatch on one stage. Times are in the caller's unit."""

    stage: int
    kind: Kind
    microbatch: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """A simulated step."""

    slots: tuple[Slot, ...]
    """Slots in order of their start."""
    makespan: float
    in_flight: int
    """Maximum number of microbatches on a stage between their forward and backward pass."""


class _Stage:
    """Progress and possible next passes of one stage."""

    def __init__(self, allowance: int, microbatches: int, *, simple: bool, alternating: bool) -> None:
        self.allowance = allowance
        self.simple = simple
        self.alternating = alternating
        self.microbatches = microbatches
        self.forwards = self.backwards = 0
        self.free = 0.0
        self.last: Kind = "forward"
        self.forward_ready: list[float | None] = [None] * microbatches
        self.backward_ready: list[float | None] = [None] * microbatches

    def next_pass(self) -> tuple[float, Kind, int] | None:
        """Start, kind and microbatch of the next pass of this stage."""
        backward = forward = None
        may_start = self.forwards < self.microbatches and self.forwards - self.backwards < self.allowance
        if may_start:
            forward = self._start(self.forward_ready[self.forwards])
        if self.backwards < self.microbatches and not (
            (self.simple and self.forwards < self.microbatches) or (self.alternating and may_start)
        ):
            backward = self._start(self.backward_ready[self.backwards])
        if backward is not None:
            tie = forward is not None and isclose(backward, forward)
            if forward is None or (self.last == "forward" if tie else backward < forward):
                return backward, "backward", self.backwards
        return None if forward is None else (forward, "forward", self.forwards)

    def _start(self, ready: float | None) -> float | None:
        return None if ready is None else max(ready, self.free)


def simulate(
    stages: int,
    microbatches: int,
    active: int,
    *,
    forward: float | Sequence[float] = 1.0,
    backward: float | Sequence[float] = 2.0,
    transfer: float = 0.0,
    simple: bool = False,
) -> Schedule:
    """Simulate one step with the durations of one pass (for all stages, or one per stage) and of a transfer.

    With `simple`, all forward passes precede all backward passes. Otherwise (``"interleaved"``) a stage starts
    microbatches up to `active` and the remaining depth of the pipeline (an assumption: with equal stages, more would
    not start any pass earlier), and then alternates backward and forward passes (1F1B). If `active` is less than the
    depth, what is ready first runs first.
    """
    durations: dict[Kind, list[float]] = {
        "forward": _per_stage(forward, stages),
        "backward": _per_stage(backward, stages),
    }
    alternating = not simple and active >= min(stages, microbatches)
    line = [
        _Stage(
            microbatches if simple else min(active, microbatches, stages - i),
            microbatches,
            simple=simple,
            alternating=alternating,
        )
        for i in range(stages)
    ]
    line[0].forward_ready = [0.0] * microbatches
    slots: list[Slot] = []
    most_in_flight = 0
    for _ in range(2 * stages * microbatches):
        ready = [(candidate[0], i, candidate) for i, stage in enumerate(line) if (candidate := stage.next_pass())]
        start, i, (_, kind, j) = min(ready)
        stage = line[i]
        stage.free = end = start + durations[kind][i]
        stage.last = kind
        if kind == "forward":
            stage.forwards += 1
            if i == stages - 1:
                stage.backward_ready[j] = end
            else:
                line[i + 1].forward_ready[j] = end + transfer
        else:
            stage.backwards += 1
            if i:
                line[i - 1].backward_ready[j] = end + transfer
        most_in_flight = max(most_in_flight, stage.forwards - stage.backwards)
        slots.append(Slot(i, kind, j, start, end))
    return Schedule(tuple(slots), max(stage.free for stage in line), most_in_flight)


def _per_stage(durations: float | Sequence[float], stages: int) -> list[float]:
    if isinstance(durations, (int, float)):
        return [float(durations)] * stages
    if len(durations) != stages:
        raise ValueError(f"{len(durations)} durations for {stages} stages")
    return [float(duration) for duration in durations]


_MOST_PASSES = 2048
"""Passes of one simulation, which takes a tenth of a second."""
_AFTER = ("data_parallel_seconds", "offload_seconds", "optimizer_seconds", "allocator_seconds")
"""Parts of a step that start after the passes, as far as these do not hide them."""


@dataclass(frozen=True, slots=True)
class Span:
    """Work of one stage on one part of the step."""

    stage: int
    part: str
    """A field of `StepTime`."""
    microbatch: int
    """-1 for parts of the entire step."""
    start: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSchedule:
    """A simulated step. Its passes and the remaining parts add up to the parts of the estimate."""

    stages: int
    microbatches: int
    """Microbatches of the step."""
    shown: int
    """Microbatches of the simulation: the first ones, if the step has very many."""
    spans: tuple[Span, ...]
    passes_seconds: float
    """End of the last pass."""
    step_seconds: float
    """Step time of the estimate. The simulation of unequal stages may differ from its closed form."""

    @property
    def end(self) -> float:
        """End of the last span, or of the estimated step, whichever is later."""
        last = max(span.start + span.seconds for span in self.spans)
        return max(last, self.step_seconds) if self.shown == self.microbatches else last


def step_schedule(
    model: Model, cluster: Cluster, job: Job, plan: Plan, estimated: Estimate | None = None
) -> StepSchedule:
    """The schedule of a plan, from the simulation of its pipeline with the seconds of its estimate."""
    value = estimated or estimate(model, cluster, job, plan)
    layout = layout_of_plan(plan, job, cluster)
    model = trained(model, job)
    world = World.of(model, cluster, job, layout)
    degree, microbatches = plan.pipeline_parallel_degree, int(layout.microbatches)
    kinds = stage_kinds(model, degree)
    locals_ = [local_parameters(model, layout, stage) for stage in kinds]
    passes = stage_passes(model, cluster, job, layout, world, degree, locals_)
    scale = _scale(value.time, max(passes, key=lambda stage: float(stage.total)), microbatches)
    every = {stage.kind: _segments(own, scale) for stage, own in zip(kinds, passes, strict=True)}
    line = [every[stage.kind] for stage in stages(model, degree)]
    shown = min(microbatches, max(_MOST_PASSES // (2 * degree), 1))
    hop = float(handover_seconds(model, cluster, layout, world)) if degree > 1 else 0.0
    simulated = simulate(
        degree,
        shown,
        max(min(int(layout.active_microbatches), shown), 1) if degree > 1 else 1,
        forward=[sum(seconds for _, seconds in forward) for forward, _ in line],
        backward=[sum(seconds for _, seconds in backward) for _, backward in line],
        transfer=hop * scale["forward_seconds"],
        simple=bool(layout.simple_pipeline),
    )
    spans = _passes(simulated, line)
    if shown == microbatches:
        spans += _remainder(value.time, simulated.makespan, degree)
    return StepSchedule(
        stages=degree,
        microbatches=microbatches,
        shown=shown,
        spans=tuple(spans),
        passes_seconds=simulated.makespan,
        step_seconds=value.step_seconds,
    )


def _scale(time: StepTime, slowest: Passes, microbatches: int) -> dict[str, float]:
    """Factors by which stragglers and measured runs lengthen the passes in the estimate."""
    sums = {
        "forward_seconds": slowest.forward,
        "backward_seconds": slowest.backward + slowest.accumulation,
        "recomputation_seconds": slowest.recomputation,
        "tensor_parallel_seconds": slowest.exchange_forward + slowest.exchange_backward,
    }
    return {
        part: getattr(time, part) / (microbatches * float(seconds)) if float(seconds) > 0 else 1.0
        for part, seconds in sums.items()
    }


_Segments = list[tuple[str, float]]


def _segments(passes: Passes, scale: dict[str, float]) -> tuple[_Segments, _Segments]:
    """Parts of a forward and of a backward pass of one microbatch, in their order."""
    inside = "tensor_parallel_seconds"
    forward = [("forward_seconds", passes.forward), (inside, passes.exchange_forward)]
    backward = [
        ("recomputation_seconds", passes.recomputation),
        (inside, passes.exchange_backward),
        ("backward_seconds", passes.backward + passes.accumulation),
    ]
    scaled = ([(part, float(seconds) * scale[part]) for part, seconds in half] for half in (forward, backward))
    first, second = ([(part, seconds) for part, seconds in half if seconds > 0] for half in scaled)
    return first, second


def _passes(simulated: Schedule, line: list[tuple[_Segments, _Segments]]) -> list[Span]:
    spans = []
    for slot in simulated.slots:
        start = slot.start
        for part, seconds in line[slot.stage][slot.kind == "backward"]:
            spans.append(Span(slot.stage, part, slot.microbatch, start, seconds))
            start += seconds
    return spans


def _remainder(time: StepTime, passes_end: float, degree: int) -> list[Span]:
    """Parts after the passes. They end with the step; stages wait before them, if the passes end earlier."""
    after = [(part, seconds) for part in _AFTER if (seconds := getattr(time, part)) > 0]
    start = max(time.total_seconds - sum(seconds for _, seconds in after), passes_end)
    spans = []
    for part, seconds in after:
        spans += [Span(stage, part, -1, start, seconds) for stage in range(degree)]
        start += seconds
    return spans
