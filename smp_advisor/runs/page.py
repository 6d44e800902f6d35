"""A watched run next to its prediction: figures, alarms and causes of a deviation, as text and as HTML."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from smp_advisor.core.tables import Table, between, number
from smp_advisor.costs.evaluate import estimate
from smp_advisor.costs.uncertainty import TWO_SIDED
from smp_advisor.costs.wording import gib, percent, plural, rate, seconds, step_time
from smp_advisor.marks import label, linear, log_ticks, logarithmic, short
from smp_advisor.marks import number as pixels
from smp_advisor.runs.causes import is_assumed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.runs.watching import Run


_MANY_LINES = 200
"""Lines without a step after which the format is unknown."""
IN_A_ROW = 5
"""Steps outside the interval, and polls without a line, that are an alarm."""
_FULL = 0.97
_DAY = 86_400


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of the run next to its prediction."""

    label: str
    measured: str
    predicted: str = ""


def figures_of(run: Run) -> tuple[Figure, ...]:
    """Measured figures next to the predicted ones, with 95 % intervals."""
    expected, usual, rows = run.estimate, run.typical, list[tuple[str, str, str]]()
    if usual is not None or expected is not None:
        measured = "" if usual is None else f"{seconds(usual.seconds)} ({plural(usual.steps, 'regular step')})"
        predicted = "" if expected is None else step_time(expected)
        unread = run.steps.lines >= _MANY_LINES
        none = "no step in a known format" if unread else "no regular step" if run.done else "no step yet"
        rows.append(("Step time", measured or none, predicted))
    if expected is not None and run.advice is not None and usual is not None:
        tokens = run.advice.model.reads_tokens
        unit, amount = ("Tokens", expected.tokens_per_step) if tokens else ("Samples", expected.global_batch_size)
        predicted = rate(run.advice.model, expected)
        rows.append((f"{unit} per second", number(amount / usual.seconds), predicted))
    if run.peak_gib is not None and run.advice is not None and expected is not None:
        device = run.advice.cluster.instance.gpu_memory_gib
        predicted = f"{gib(expected.needed_gib)} needed, ± {gib(TWO_SIDED * expected.memory_error_gib)}"
        rows.append(("Peak memory per GPU", f"{gib(run.peak_gib)} of {gib(device)}", predicted))
    if run.steps.loss is not None:
        rows.append(("Loss", f"{run.steps.loss:.4g}", ""))
    left = run.remaining_days()
    if left is not None and not run.done and not run.failed:
        units = (("days", 1.0), ("hours", 24.0), ("minutes", 1440.0), ("seconds", 86_400.0))
        unit, scale = next((entry for entry in units if entry[1] * left[0] >= 1), units[-1])
        rows.append(("Remaining", f"{number(scale * left[0])} {unit} ({between(left[1:], scale)})", ""))
        hourly = None if run.advice is None else run.advice.cluster.usd_per_hour
        if hourly is not None:
            value, low, high = (24 * hourly * days for days in left)
            rows.append(("Remaining cost", f"{number(value)} USD ({between((low, high))})", ""))
    every, ranged = run.last.settings.get("checkpoint_every", ""), run.step_range
    if every.isdigit() and int(every) and run.step is not None and ranged is not None and not run.done:
        coming = (run.step // int(every) + 1) * int(every)
        pause = elapsed((coming - run.step) * ranged[0])
        rows.append(("Next checkpoint", f"step {coming:,}, in {pause}", ""))
    return tuple(Figure(label=label, measured=measured, predicted=predicted) for label, measured, predicted in rows)


def alarms_of(run: Run) -> tuple[str, ...]:
    """Return alarms of a run, one sentence each."""
    alarms = []
    if run.other_hardware:
        alarms.append(run.other_hardware)
    if run.failure is not None:
        alarms.append(f"The run failed. {run.failure.cause} {run.failure.change}")
    elif run.failed or run.last.failure:
        text = " ".join(run.last.failure.split())[:400]
        nothing = (
            "the service states no reason, and nothing in the lines that were read shows one: read all hosts' logs."
        )
        alarms.append(f"The run failed: {text or nothing}")
    if infinite := run.steps.infinite_loss:
        alarms.append(f"{infinite}: stop the run, and resume from a checkpoint before it with a lower learning rate.")
    alarms += _of_steps(run)
    if (share := run.memory_share) is not None and share > _FULL:
        alarms.append(
            f"Peak memory is {percent(share)} of the GPU's: a larger batch or longer sample can end the run; a smaller"
            " batch_size or activation checkpointing leaves room."
        )
    if _is_silent(run):
        alarms.append(
            f"No measured step in the last {run.silent_polls} polls, although {IN_A_ROW} steps fit in them: look"
            " at the log for a stall, an evaluation or a checkpoint."
        )
    return tuple(alarms)


def _of_steps(run: Run) -> Iterator[str]:
    """Yield alarms about the step time."""
    expected, values = run.estimate, [sample.value for sample in run.samples][1:][-IN_A_ROW:]
    if expected is not None and not is_assumed(run.advice) and len(values) == IN_A_ROW:
        low, high = expected.step_seconds_range
        side = "slower" if min(values) > high else "faster" if max(values) < low else ""
        if side:
            yield (
                f"The last {IN_A_ROW} steps took {between((min(values), max(values)))} s, {side} than the predicted"
                f" interval of {between((low, high))} s."
            )
    if expected is not None and not is_assumed(run.advice) and (usual := run.typical) is not None:
        low, high = expected.step_seconds_range
        if usual.wall_seconds > high >= usual.seconds:
            yield (
                f"With its slow steps, a step takes {seconds(usual.wall_seconds)} on average, more than the predicted"
                f" interval of {between((low, high))} s."
            )


def _is_silent(run: Run) -> bool:
    """Return whether as many polls as steps passed without a line, in which these steps fit."""
    if run.done or run.failed or run.last.status == "Stopping" or not run.log.samples or run.silent_polls < IN_A_ROW:
        return False
    if run.remaining_steps == 0:  # the script writes the model
        return False
    steps = run.log.samples[-2:]
    between_lines = max((steps[1].step or 1) - (steps[0].step or 0), 1) if len(steps) == 2 else 1
    needed = 0.0 if run.step_range is None else IN_A_ROW * between_lines * run.step_range[2]
    return not run.silent_seconds or run.silent_seconds >= needed


def conclusions_of(run: Run) -> tuple[str, ...]:
    """Return causes of a deviation, what the run taught about its plan and the recommendation, and an offer."""
    lines = [] if run.estimate is None or run.typical is None else [str(cause) for cause in run.causes()]
    learned, reason = run.learned
    if learned is None or run.advice is None:
        return (*lines, *([f"The run teaches nothing: {reason}"] if reason else []))
    plan = run.advice.plan
    after = estimate(learned.model, learned.cluster, learned.job, plan)
    text = f"Learned from {plural(run.steady_steps, 'regular step')}: {step_time(after)} per step"
    lines.append(f"{text}, before {step_time(run.advice.estimate)}.")
    offer = run.offer() if run.remaining_steps and not run.done else None
    if offer is not None:
        lines.append(f"{offer} The cell that resumes the run with it: run.offer().cell().")
    elif learned.plan == plan:
        lines.append("The recommended plan is still that of the run.")
    else:
        text = f"Recommended for the next run: {learned.plan!r}, {step_time(learned.estimate)} per step."
        unsure = "A change in the middle of this run is not better for certain, or the plan is not the cause."
        lines.append(text if run.done else f"{text} {unsure}")
    return tuple(lines)


def elapsed(value: float) -> str:
    """Return a duration: ``41 s``, ``12 min``, ``3.4 h``, ``2.1 days``."""
    for unit, size in (("days", _DAY), ("h", 3600), ("min", 60)):
        if value >= 2 * size:
            return f"{value / size:.1f} {unit}" if value < 10 * size else f"{value / size:,.0f} {unit}"
    return f"{max(value, 0):.0f} s"


_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 440.0, 150.0, 44.0, 20.0
_MOST_POINTS = 500
_ORANGE = "#d55e00"
"""Vermilion of the Okabe-Ito palette."""


def page_of(run: Run) -> tuple[str, str]:
    """Return a run as it was read last, as text and as HTML."""
    rows = [(row.label, row.measured, row.predicted) for row in run.figures()]
    figures = Table(columns=("", "Measured", "Predicted"), rows=rows)
    notes = [*run.notes]
    if run.transitions:
        notes.insert(0, f"Phases: {', '.join(run.transitions)}.")
    if run.problem:
        notes.insert(0, f"Not read: {run.problem}")
    lines = [run.headline, *(f"  ! {alarm}" for alarm in run.alarms)]
    lines += [f"  {line}" for line in figures.lines()] if rows else []
    reasons = conclusions_of(run)
    lines += [f"  {line}" for line in (*reasons, *notes)]
    alarms = "".join(
        f'<p role="alert" style="margin:4px 0;border-left:3px solid {_ORANGE};padding-left:8px">{escape(alarm)}</p>'
        for alarm in run.alarms
    )
    why = "".join(f"<div>{escape(line)}</div>" for line in reasons)
    small = "".join(f'<div style="font-size:0.9em">{escape(note)}</div>' for note in notes)
    html = (
        f'<div class="smp-run"><p role="status" style="font-weight:600;margin:0 0 4px">{escape(run.headline)}</p>'
        f"{alarms}"
        f"{_drawing(run)}{figures.html() if rows else ''}"
        f"{why}{small}</div>"
    )
    return "\n".join(lines), html


def _drawing(run: Run) -> str:
    """Step times in the order of the log, over the band of the predicted interval."""
    values = [sample.value if sample.value > 0 else math.nan for sample in run.samples]
    every = max(1, math.ceil(len(values) / _MOST_POINTS))
    shown = [value for value in values[::every] if value > 0]
    if len(shown) < 2:
        return ""
    band = None if run.estimate is None else run.estimate.step_seconds_range
    low, high = min(*shown, *(band or ())) / 1.1, max(*shown, *(band or ())) * 1.1
    x = linear(0, len(shown) - 1, _LEFT, _WIDTH - 4)
    y = logarithmic(low, high, _HEIGHT - _BOTTOM, 4)
    parts = []
    if band is not None:
        top, bottom = y(band[1]), y(band[0])
        parts.append(
            f'<rect x="{pixels(_LEFT)}" y="{pixels(top)}" width="{pixels(_WIDTH - 4 - _LEFT)}"'
            f' height="{pixels(bottom - top)}" fill="#0072b2" fill-opacity="0.18"/>'
        )
    points = " ".join(f"{pixels(x(place))},{pixels(y(value))}" for place, value in enumerate(shown))
    parts.append(f'<polyline points="{points}" fill="none" stroke="{_ORANGE}" stroke-width="1.5"/>')
    parts += [label("", _LEFT - 6, y(tick) + 4, short(tick), "end") for tick in log_ticks(low, high, 4)]
    parts.append(
        label("", _LEFT, _HEIGHT - 4, f"seconds per step, {len(values):,} values; band: predicted 95 % interval")
    )
    about = f"Seconds per step: {between((min(shown), max(shown)))}" + (f"; predicted {between(band)}" if band else "")
    return (
        f'<svg viewBox="0 0 {pixels(_WIDTH)} {pixels(_HEIGHT)}" width="{pixels(_WIDTH)}" role="img"'
        f' aria-label="{escape(about, quote=True)}" style="max-width:100%;font-size:12px;fill:currentColor">'
        f"<title>{escape(about)}</title>{''.join(parts)}</svg>"
    )
