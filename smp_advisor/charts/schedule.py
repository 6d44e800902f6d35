"""The schedule of a step, from the simulation of its pipeline."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from smp_advisor.charts.labels import TIME_LABELS, time_labels
from smp_advisor.costs.schedule import step_schedule
from smp_advisor.drawing.bars import amount
from smp_advisor.drawing.chart import Chart
from smp_advisor.wording import plural

if TYPE_CHECKING:
    from smp_advisor.advice import Advice
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.costs.schedule import Span, StepSchedule
    from smp_advisor.drawing.gantt import GanttRow

__all__ = ["schedule_chart"]

_MOST_ROWS = 16
_VISIBLE = 0.01
"""Share of the step from which a wait is stated."""


def schedule_chart(advice: Advice, estimate: Estimate) -> Chart:
    """Passes of every stage over the time of a step."""
    schedule = step_schedule(advice.model, advice.cluster, advice.job, estimate.plan, estimate)
    labels = time_labels(estimate.plan.library)
    parts = list(TIME_LABELS)
    of_stage: dict[int, list[Span]] = defaultdict(list)
    for span in schedule.spans:
        of_stage[span.stage].append(span)
    rows: list[GanttRow] = [
        {
            "label": f"Stage {stage}" if schedule.stages > 1 else "Each GPU",
            "spans": [
                (parts.index(span.part), float(f"{span.start:.5g}"), float(f"{span.seconds:.4g}"), span.microbatch)
                for span in of_stage[stage]
            ],
        }
        for stage in _shown(schedule.stages)
    ]
    used = {span.part for span in schedule.spans}
    notes = tuple(_notes(schedule))
    return Chart(
        kind="gantt",
        title=f"Schedule of one step: {plural(schedule.stages, 'stage')}, {_batches(schedule)}",
        data={
            "names": list(labels.values()),
            "rows": rows,
            "seconds": schedule.end,
            "description": f"Schedule of one step. {' '.join(notes)}",
        },
        columns=("Stage", *(labels[part] for part in parts if part in used), "Idle"),
        rows=tuple(
            _row(schedule, stage, of_stage[stage], [part for part in parts if part in used]) for stage in of_stage
        ),
        notes=notes,
        key=tuple(labels[part] if part in used else "" for part in parts),
    )


def _batches(schedule: StepSchedule) -> str:
    noun, nouns = ("microbatch", "microbatches") if schedule.stages > 1 else ("batch", "accumulated batches")
    return plural(schedule.microbatches, noun, nouns)


def _shown(stages: int) -> list[int]:
    """Stages with a row: all of a few, else the first ones and the last."""
    return list(range(stages)) if stages <= _MOST_ROWS else [*range(_MOST_ROWS - 1), stages - 1]


def _row(schedule: StepSchedule, stage: int, spans: list[Span], parts: list[str]) -> tuple[str, ...]:
    sums = {part: sum(span.seconds for span in spans if span.part == part) for part in parts}
    idle = max(schedule.end - sum(sums.values()), 0.0)
    return (
        str(stage),
        *(amount(seconds, "s", schedule.end) for seconds in sums.values()),
        f"{100 * idle / schedule.end:.1f} %",
    )


def _notes(schedule: StepSchedule) -> list[str]:
    """Limits of the drawing, and its differences from the estimate."""
    notes = []
    total = schedule.step_seconds
    if schedule.shown < schedule.microbatches:
        first = plural(schedule.shown, "microbatch", "microbatches")
        notes.append(f"The first {first} of {schedule.microbatches:,}; the step takes {amount(total, 's')}.")
        return notes
    busy = max(sum(span.seconds for span in schedule.spans if span.stage == stage) for stage in range(schedule.stages))
    notes.append(f"The busiest stage works {100 * busy / schedule.end:.0f} % of the step.")
    after = sum(span.seconds for span in schedule.spans if span.stage == 0 and span.microbatch < 0)
    waiting = total - after - schedule.passes_seconds
    if waiting > _VISIBLE * total:
        notes.append(
            f"{amount(waiting, 's')} of waiting (hosts, transfers under load) are drawn after the passes:"
            " their place in the step is unknown."
        )
    elif waiting < -_VISIBLE * total:
        notes.append(
            f"The simulated stages take {amount(-waiting, 's')} longer than the estimate's closed form of"
            f" {amount(total, 's')}."
        )
    if schedule.stages > _MOST_ROWS:
        notes.append(f"Rows of {_MOST_ROWS} of {schedule.stages} stages.")
    return notes
