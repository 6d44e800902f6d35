"""A watched run next to its prediction: figures and alarms, as text and HTML with its step times over the band."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from smp_advisor.costs.evaluate import estimate
from smp_advisor.marks import label, linear, log_ticks, logarithmic, short
from smp_advisor.marks import number as pixels
from smp_advisor.wording import between, gib, number, percent, plural, seconds, step_time, table_html, table_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.runs.watching import Run

IN_A_ROW = 5
"""Steps outside the interval, and polls without a line, that are an alarm."""
_FULL = 0.97
_TWO_SIDED = 1.96
_DAY = 86_400


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of the run next to its prediction."""

    label: str
    measured: str
    predicted: str = ""


def figures_of(run: Run) -> tuple[Figure, ...]:
    """Measured figures next to the predicted ones, with 95 % intervals."""
    expected, usual, rows = run.estimate, run.typical, []
    if usual is not None or expected is not None:
        measured = "" if usual is None else f"{seconds(usual.seconds)} ({plural(usual.steps, 'regular step')})"
        predicted = "" if expected is None else step_time(expected)
        rows.append(Figure(label="Step time", measured=measured or "no step yet", predicted=predicted))
    if expected is not None and run.advice is not None and usual is not None:
        tokens = run.advice.model.reads_tokens
        unit, amount = ("Tokens", expected.tokens_per_step) if tokens else ("Samples", expected.global_batch_size)
        value = expected.tokens_per_second if tokens else expected.samples_per_second
        ends = expected.tokens_per_second_range if tokens else expected.samples_per_second_range
        rows.append(
            Figure(
                label=f"{unit} per second",
                measured=number(amount / usual.seconds),
                predicted=f"{number(value)} ({between(ends)})",
            )
        )
    if run.peak_gib is not None and run.advice is not None and expected is not None:
        device = run.advice.cluster.instance.gpu_memory_gib
        rows.append(
            Figure(
                label="Peak memory per GPU",
                measured=f"{gib(run.peak_gib)} of {gib(device)}",
                predicted=f"{gib(expected.needed_gib)} needed, ± {gib(_TWO_SIDED * expected.memory_error_gib)}",
            )
        )
    if run.steps.loss is not None:
        rows.append(Figure(label="Loss", measured=f"{run.steps.loss:.4g}"))
    return (*rows, *_rest(run))


def _rest(run: Run) -> Iterator[Figure]:
    """Time and money to the end, and the next checkpoint."""
    left = run.remaining_days()
    if left is not None and not run.done:
        units = (("days", 1.0), ("hours", 24.0), ("minutes", 1440.0), ("seconds", 86_400.0))
        unit, scale = next((entry for entry in units if entry[1] * left[0] >= 1), units[-1])
        yield Figure(label="Remaining", measured=f"{number(scale * left[0])} {unit} ({between(left[1:], scale)})")
        hourly = None if run.advice is None else run.advice.cluster.usd_per_hour
        if hourly is not None:
            value, low, high = (24 * hourly * days for days in left)
            yield Figure(label="Remaining cost", measured=f"{number(value)} USD ({between((low, high))})")
    every, ranged = run.last.settings.get("checkpoint_every", ""), run.step_range
    if every.isdigit() and int(every) and run.step is not None and ranged is not None and not run.done:
        coming = (run.step // int(every) + 1) * int(every)
        pause = elapsed((coming - run.step) * ranged[0])
        yield Figure(label="Next checkpoint", measured=f"step {coming:,}, in {pause}")


def alarms_of(run: Run) -> tuple[str, ...]:
    """Alarms of a run, one sentence each."""
    alarms = []
    if run.last.failure or run.log.out_of_memory:
        alarms.append(_failure(run))
    if infinite := run.steps.infinite_loss:
        alarms.append(f"{infinite}: stop the run, and resume from a checkpoint before it with a lower learning rate.")
    expected, values = run.estimate, [sample.value for sample in run.samples][1:][-IN_A_ROW:]
    if expected is not None and len(values) == IN_A_ROW:
        low, high = expected.step_seconds_range
        side = "slower" if min(values) > high else "faster" if max(values) < low else ""
        if side:
            alarms.append(
                f"The last {IN_A_ROW} steps took {between((min(values), max(values)))} s, {side} than the predicted"
                f" interval of {between((low, high))} s."
            )
    if (share := run.memory_share) is not None and share > _FULL:
        alarms.append(
            f"Peak memory is {percent(share)} of the GPU's: one more allocation can end the run; a smaller"
            " batch_size or activation checkpointing leaves room."
        )
    if _is_silent(run):
        alarms.append(
            f"No measured step in the last {run.silent_polls} polls, although {IN_A_ROW} steps fit in them: look"
            " at the log for a stall, an evaluation or a checkpoint."
        )
    return tuple(alarms)


def _failure(run: Run) -> str:
    """The failure as a sentence."""
    if run.failure is not None:
        return f"The run failed. {run.failure.cause} {run.failure.change}"
    text = " ".join(run.last.failure.split())[:400]
    return f"The run failed: {text}" if text else "The run ran out of GPU memory."


def _is_silent(run: Run) -> bool:
    """Whether as many polls as steps passed without a line, in which these steps fit."""
    if run.done or run.last.status == "Stopping" or not run.log.samples or run.silent_polls < IN_A_ROW:
        return False
    if run.remaining_steps == 0:  # the script writes the model
        return False
    steps = run.log.samples[-2:]
    between_lines = max((steps[1].step or 1) - (steps[0].step or 0), 1) if len(steps) == 2 else 1
    needed = 0.0 if run.step_range is None else IN_A_ROW * between_lines * run.step_range[2]
    return not run.silent_seconds or run.silent_seconds >= needed


def conclusions_of(run: Run) -> tuple[str, ...]:
    """Causes of a deviation, what the run taught about its plan and the recommendation, and an offer."""
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
    """A duration: ``41 s``, ``12 min``, ``3.4 h``, ``2.1 days``."""
    for unit, size in (("days", _DAY), ("h", 3600), ("min", 60)):
        if value >= 2 * size:
            return f"{value / size:.1f} {unit}" if value < 10 * size else f"{value / size:,.0f} {unit}"
    return f"{max(value, 0):.0f} s"


_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 440.0, 150.0, 44.0, 20.0
_MOST_POINTS = 500
_ORANGE = "#d55e00"
"""Vermilion of the Okabe-Ito palette."""


def page_of(run: Run) -> tuple[str, str]:
    """A run as it was read last, as text and as HTML."""
    figures = [("", "Measured", "Predicted"), *((row.label, row.measured, row.predicted) for row in run.figures())]
    notes = [*run.notes]
    if run.transitions:
        notes.insert(0, f"Phases: {', '.join(run.transitions)}.")
    if run.problem:
        notes.insert(0, f"Not read: {run.problem}")
    lines = [run.headline, *(f"  ! {alarm}" for alarm in run.alarms)]
    lines += [f"  {line}" for line in table_lines(figures)] if len(figures) > 1 else []
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
        f"{_drawing(run)}{table_html(figures) if len(figures) > 1 else ''}"
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
