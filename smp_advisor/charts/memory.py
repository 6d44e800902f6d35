"""Memory per GPU of each pipeline stage, and the parts of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from smp_advisor.charts.labels import CATEGORY_LABELS, TIME_LABELS, time_labels
from smp_advisor.costs.estimate import CATEGORIES, Memory
from smp_advisor.drawing.bars import amount
from smp_advisor.drawing.chart import Chart
from smp_advisor.wording import step_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.advice import Advice
    from smp_advisor.costs.estimate import Estimate, StageMemory
    from smp_advisor.drawing.bars import BarRow

__all__ = ["StageGroup", "memory_chart", "memory_interval", "stage_groups", "time_chart"]

_TWO_SIDED = 1.96
"""Standard deviations to either side of a normal error that contain 95 %."""


class StageGroup(NamedTuple):
    """Pipeline stages that need the same memory."""

    label: str
    gib: list[float]
    """GiB of each of `CATEGORIES`."""
    total_gib: float
    """Their sum before rounding."""
    is_peak: bool
    """Whether the stage with the highest peak is among them."""


def memory_interval(estimate: Estimate) -> tuple[float, float, float]:
    """Memory needed per GPU with the ends of its 95 % interval: (low end, middle, high end) in GiB."""
    reach = _TWO_SIDED * estimate.memory_error_gib
    low, middle, high = (round(estimate.needed_gib + sign * reach, 3) for sign in (-1, 0, 1))
    return low, middle, high


def memory_chart(advice: Advice, estimate: Estimate) -> Chart:
    """Stacked bars of memory, one per group of equal stages, next to the usable memory.

    The outline is the memory of the recommended plan, if another one is shown.
    """
    instance, groups = advice.cluster.instance, stage_groups(estimate.memory.stages)
    best = advice.recommended.estimate
    ghost = None if estimate.plan == best.plan else best.memory.peak.total_gib
    rows: list[BarRow] = [
        {
            "label": group.label,
            "parts": group.gib,
            "total": group.total_gib,
            "ghost": ghost if group.is_peak else None,
            "interval": memory_interval(estimate) if group.is_peak else None,
        }
        for group in groups
    ]
    labels = [CATEGORY_LABELS[name] for name in CATEGORIES]
    low, needed, high = memory_interval(estimate)
    return Chart(
        kind="bars",
        title="Memory per GPU",
        data={
            "unit": "GiB",
            "names": labels,
            "rows": rows,
            "limit": instance.usable_gpu_memory_gib,
            "nominal": instance.gpu_memory_gib,
        },
        columns=("GiB per GPU", *(group.label for group in groups)),
        rows=(
            *(
                (label, *(f"{group.gib[index]:.2f}" for group in groups))
                for index, label in enumerate(labels)
                if any(group.gib[index] for group in groups)
            ),
            ("Peak", *(f"{group.total_gib:.2f}" for group in groups)),
        ),
        notes=(
            f"{needed:.1f} GiB needed (95 %: {low:.1f} to {high:.1f}) of {instance.usable_gpu_memory_gib:.1f} usable.",
        ),
        key=tuple(label if any(group.gib[index] for group in groups) else "" for index, label in enumerate(labels)),
    )


def time_chart(advice: Advice, estimate: Estimate) -> Chart:
    """One stacked bar with the parts of a step."""
    labels = time_labels(advice.plan.library)
    parts = [getattr(estimate.time, name) for name in TIME_LABELS]
    total = estimate.step_seconds
    return Chart(
        kind="bars",
        title=f"Step time {step_time(estimate)}",
        data={
            "unit": "s",
            "names": list(labels.values()),
            "rows": [{"label": "Each step", "parts": parts, "total": total, "ghost": None, "interval": None}],
            "limit": None,
            "nominal": None,
        },
        columns=("Part", "Time", "Share"),
        rows=tuple(
            (label, amount(part, "s", total), f"{100 * part / total:.1f} %")
            for label, part in zip(labels.values(), parts, strict=True)
            if part > 0
        ),
        key=tuple(label if part > 0 else "" for label, part in zip(labels.values(), parts, strict=True)),
    )


def stage_groups(stages: Sequence[StageMemory]) -> list[StageGroup]:
    """Stages with equal memory in groups, in the order of the first stage of each."""
    groups: dict[tuple[float, ...], list[StageMemory]] = {}
    for stage in stages:
        # Rounded to a MiB, a difference that is not visible.
        groups.setdefault(tuple(round(getattr(stage, name), 3) for name in CATEGORIES), []).append(stage)
    peak = Memory(stages=tuple(stages)).peak.stage
    return [
        StageGroup(
            _stage_label(members, len(stages)),
            list(values),
            round(max(member.total_gib for member in members), 9),
            any(member.stage == peak for member in members),
        )
        for values, members in groups.items()
    ]


def _stage_label(members: Sequence[StageMemory], count: int) -> str:
    if count == 1:
        return "Each GPU"
    numbers = [member.stage for member in members]
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return f"Stage {texts[0]}" if len(numbers) == 1 else f"Stages {', '.join(texts)}"
