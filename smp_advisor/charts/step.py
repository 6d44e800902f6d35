"""Data of the charts of a step: memory and time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from smp_advisor.charts.chart import Chart
from smp_advisor.costs.estimate import CATEGORIES, Memory
from smp_advisor.libraries.library import get_library, plan_fields
from smp_advisor.libraries.schema import schema
from smp_advisor.wording import checkpointing_text, seconds, step_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smp_advisor.costs.estimate import Estimate, StageMemory
    from smp_advisor.guidance.recommended import Recommended
    from smp_advisor.libraries.plan import Plan

__all__ = [
    "CATEGORY_LABELS",
    "TIME_LABELS",
    "memory_chart",
    "memory_interval",
    "plan_text",
    "stage_groups",
    "time_chart",
    "time_labels",
]


CATEGORY_LABELS: Mapping[str, str] = {
    "parameters_gib": "Parameters",
    "gradients_gib": "Gradients",
    "optimizer_state_gib": "Optimizer state",
    "fp32_copies_gib": "fp32 copies",
    "activations_gib": "Activations",
    "recomputation_gib": "Recomputation",
    "logits_gib": "Logits and loss",
    "communication_gib": "Communication buffers",
    "optimizer_step_gib": "Optimizer step",
    "allocator_reserve_gib": "Allocator reserve",
    "context_gib": "CUDA context",
}

TIME_LABELS: Mapping[str, str] = {
    "forward_seconds": "Forward",
    "backward_seconds": "Backward",
    "recomputation_seconds": "Recomputation",
    "tensor_parallel_seconds": "Tensor parallel communication",
    "pipeline_bubble_seconds": "Pipeline bubble",
    "data_parallel_seconds": "Data parallel communication",
    "optimizer_seconds": "Optimizer",
    "offload_seconds": "Offloading",
    "allocator_seconds": "Allocator",
}


def time_labels(library: str) -> Mapping[str, str]:
    """Labels of the parts of a step, by field of the estimate."""
    if "context_parallel_degree" not in plan_fields(library):
        return TIME_LABELS
    # Context and expert parallelism also communicate inside blocks.
    return {**TIME_LABELS, "tensor_parallel_seconds": "Communication inside blocks"}


def plan_text(plan: Plan) -> str:
    """Techniques of a plan in one line: ``tensor parallel degree 2, batch size 16``."""
    parts, described = [], schema(plan.library).described
    for name in dict.fromkeys([*get_library(plan.library).alternatives, "batch_size"]):
        value, parameter = getattr(plan, name, None), described(name)
        title = parameter.title.lower() if parameter else name.replace("_", " ")
        if value in (None, False, 1, 0, "none", "") and value is not True:
            continue
        text = checkpointing_text(str(value)) if name == "activation_checkpointing" else str(value).replace("_", " ")
        parts.append(title if value is True and name != "activation_checkpointing" else f"{title} {text}")
    return ", ".join(parts)


_TWO_SIDED = 1.96
"""Standard deviations to either side of a normal error that contain 95 %."""


def memory_interval(estimate: Estimate) -> tuple[float, float, float]:
    """Memory needed per GPU with the ends of its 95 % interval: (low end, middle, high end) in GiB."""
    reach = _TWO_SIDED * estimate.memory_error_gib
    low, middle, high = (round(estimate.needed_gib + sign * reach, 3) for sign in (-1, 0, 1))
    return low, middle, high


_LONGEST = 24
"""Characters of the bar of the usable memory, and of the entire step."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def _bar(value: float, full: float) -> str:
    """A bar as text, which terminals, saved notebooks and GitHub show alike."""
    eighths = round(8 * _LONGEST * value / full)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def memory_chart(advice: Recommended, estimate: Estimate) -> Chart:
    """Memory by category, a column for each group of equal stages, with bars of the highest peak."""
    usable, groups = advice.cluster.instance.usable_gpu_memory_gib, stage_groups(estimate.memory.stages)
    best, peak = advice.recommended.estimate, next(group for group in groups if group.is_peak)
    low, needed, high = memory_interval(estimate)
    recommended = f" The recommended plan needs {best.needed_gib:.1f}." if estimate.plan != best.plan else ""
    rows = [
        (label, *(f"{group.parts[index]:.2f}" for group in groups), _bar(peak.parts[index], usable))
        for index, label in enumerate(CATEGORY_LABELS.values())
        if any(group.parts[index] for group in groups)
    ]
    filled = "█" * round(_LONGEST * peak.total / usable)  # a part of a character would leave a gap to the free memory
    total = ("Peak", *(f"{group.total:.2f}" for group in groups), f"{filled:░<{_LONGEST}}")
    return Chart(
        title="Memory per GPU",
        columns=("GiB per GPU", *(group.label for group in groups), f"of {usable:.1f} GiB usable"),
        rows=(*rows, total),
        notes=(f"{needed:.1f} GiB needed (95 %: {low:.1f} to {high:.1f}) of {usable:.1f} usable.{recommended}",),
    )


def time_chart(advice: Recommended, estimate: Estimate) -> Chart:
    """Parts of a step with bars."""
    labels = time_labels(advice.plan.library).values()
    parts, total = [getattr(estimate.time, name) for name in TIME_LABELS], estimate.step_seconds
    return Chart(
        title=f"Step time {step_time(estimate)}",
        columns=("Part", "Time", "Share", "of the step"),
        rows=tuple(
            (label, seconds(part), f"{100 * part / total:.1f} %", _bar(part, total))
            for label, part in zip(labels, parts, strict=True)
            if part > 0
        ),
    )


class StageGroup(NamedTuple):
    """Pipeline stages with equal memory."""

    label: str
    parts: Sequence[float]
    """GiB of each of `CATEGORIES`."""
    total: float
    """Sum of the parts before rounding."""
    is_peak: bool
    """Whether the stage with the highest peak is among them."""


def stage_groups(stages: Sequence[StageMemory]) -> list[StageGroup]:
    """Stages with equal memory, in the order of the first stage of each group."""
    groups: dict[tuple[float, ...], list[StageMemory]] = {}
    for stage in stages:
        # Rounded to a MiB, a difference that is not visible.
        groups.setdefault(tuple(round(getattr(stage, name), 3) for name in CATEGORIES), []).append(stage)
    peak = Memory(stages=tuple(stages)).peak.stage
    return [
        StageGroup(
            _stage_label([member.stage for member in members]) if len(stages) > 1 else "Each GPU",
            list(values),
            round(max(member.total_gib for member in members), 9),
            is_peak=any(member.stage == peak for member in members),
        )
        for values, members in groups.items()
    ]


def _stage_label(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return f"Stage{'s' * (len(numbers) > 1)} {', '.join(texts)}"
