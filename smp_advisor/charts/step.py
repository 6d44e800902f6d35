"""Charts of one plan: memory and time of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from smp_advisor.charts.chart import Chart
from smp_advisor.core.files import data_file
from smp_advisor.costs.estimate import CATEGORIES, Estimate, Memory, StageMemory
from smp_advisor.costs.figures import memory
from smp_advisor.costs.wording import checkpointing_text, seconds, step_time
from smp_advisor.libraries.library import get_library, plan_fields
from smp_advisor.libraries.schema import schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smp_advisor.advice.recommendation import Recommendation
    from smp_advisor.libraries.plan import Plan


_CATEGORIES: Mapping[str, str] = data_file("charts", "labels")["memory"]
_PARTS: Mapping[str, str] = data_file("charts", "labels")["time"]


def time_labels(library: str) -> Mapping[str, str]:
    """Labels of the parts of a step, by field of the estimate."""
    if "context_parallel_degree" not in plan_fields(library):
        return _PARTS
    # Context and expert parallelism also communicate inside blocks.
    return {**_PARTS, "tensor_parallel_seconds": "Communication inside blocks"}


def plan_text(plan: Plan) -> str:
    """Techniques of a plan in one line: ``tensor parallel degree 2, batch size 16``."""
    parts, described = [], schema(plan.library).described
    for name in dict.fromkeys([*get_library(plan.library).alternatives, "batch_size"]):
        value, parameter = getattr(plan, name, None), described(name)
        if value is not True and value in (None, False, 1, 0, "none", ""):
            continue  # the plan does not use the technique
        title = parameter.title.lower() if parameter else name.replace("_", " ")
        if name == "activation_checkpointing":
            parts.append(f"{title} {checkpointing_text(str(value))}")
        else:
            parts.append(title if value is True else f"{title} {str(value).replace('_', ' ')}")
    return ", ".join(parts)


_LONGEST = 24
"""Characters of the bar of the usable memory, and of the entire step."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def _bar(value: float, full: float) -> str:
    """Return a bar as text, which terminals, saved notebooks and GitHub show alike."""
    eighths = round(8 * _LONGEST * value / full)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def memory_chart(advice: Recommendation, estimate: Estimate) -> Chart:
    """Return the memory by category, a column for each group of equal stages, with bars of the highest peak."""
    usable, groups = advice.cluster.instance.usable_gpu_memory_gib, stage_groups(estimate.memory.stages)
    peak = next(group for group in groups if group.is_peak)
    needed = memory(estimate)
    recommended = _recommended_memory(advice, estimate)
    rows = [
        (label, *(f"{group.parts[index]:.2f}" for group in groups), _bar(peak.parts[index], usable))
        for index, label in enumerate(_CATEGORIES.values())
        if any(group.parts[index] for group in groups)
    ]
    filled = "█" * round(_LONGEST * peak.total / usable)  # a part of a character would leave a gap to the free memory
    total = ("Peak", *(f"{group.total:.2f}" for group in groups), f"{filled:░<{_LONGEST}}")
    return Chart(
        title="Memory per GPU",
        columns=("GiB per GPU", *(group.label for group in groups), f"of {usable:.1f} GiB usable"),
        rows=(*rows, total),
        notes=(f"{needed.value:.1f} GiB needed (95 %: {needed.ends}) of {usable:.1f} usable.{recommended}",),
    )


def _recommended_memory(advice: Recommendation, estimate: Estimate) -> str:
    """Return the memory of the plan that the search chose, as a sentence; empty for this plan itself."""
    result = advice.result
    if estimate.plan == advice.plan or result is None:
        return ""
    best = int(result.ranked[0])
    own = result.space.plan(best) == estimate.plan
    return "" if own else f" The recommended plan needs {result.needed_gib[best]:.1f}."


def time_chart(advice: Recommendation, estimate: Estimate) -> Chart:
    """Return the parts of a step with bars."""
    labels = time_labels(advice.plan.library).values()
    parts, total = [getattr(estimate.time, name) for name in _PARTS], estimate.step_seconds
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
