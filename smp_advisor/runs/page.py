"""A watched run next to its prediction: figures, alarms and causes of a deviation, as text and as HTML."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from smp_advisor.core.files import sentence
from smp_advisor.core.sheet import State, heading, sheet, strip, title
from smp_advisor.core.tables import Table, between, number
from smp_advisor.core.words import escape, plural
from smp_advisor.costs.evaluate import estimate
from smp_advisor.costs.uncertainty import TWO_SIDED
from smp_advisor.costs.wording import gib, percent, rate, seconds, step_time
from smp_advisor.libraries.schema import schema
from smp_advisor.marks import dot, label, line, linear, path, rect, short, ticks
from smp_advisor.runs.steps import STEADY_STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.runs.watching import Run


_MANY_LINES = 200
"""Lines without a step after which the format is unknown."""
IN_A_ROW = 5
"""Steps outside the interval, and polls without a line, that are an alarm."""
_FULL = 0.97
_DAY = 86_400


class Figure(NamedTuple):
    """One figure of the run next to its prediction."""

    label: str
    measured: str
    predicted: str = ""


def figures_of(run: Run) -> tuple[Figure, ...]:
    """Measured figures next to the predicted ones, with 95 % intervals."""
    expected, usual, rows = run.estimate, run.typical, list[Figure]()
    if usual is not None or expected is not None:
        measured = "" if usual is None else f"{seconds(usual.seconds)} ({plural(usual.steps, 'regular step')})"
        predicted = "" if expected is None else step_time(expected)
        unread = run.steps.lines >= _MANY_LINES
        none = "no step in a known format" if unread else "no regular step" if run.done else "no step yet"
        rows.append(Figure("Step time", measured or none, predicted))
    if expected is not None and run.advice is not None and usual is not None:
        tokens = run.advice.model.reads_tokens
        unit, amount = ("Tokens", expected.tokens_per_step) if tokens else ("Samples", expected.global_batch_size)
        predicted = rate(run.advice.model, expected)
        rows.append(Figure(f"{unit} per second", number(amount / usual.seconds), predicted))
    if run.peak_gib is not None and run.advice is not None and expected is not None:
        device = run.advice.cluster.instance.gpu_memory_gib
        predicted = f"{gib(expected.needed_gib)} needed, ± {gib(TWO_SIDED * expected.memory_error_gib)}"
        rows.append(Figure("Peak memory per GPU", f"{gib(run.peak_gib)} of {gib(device)}", predicted))
    if run.steps.loss is not None:
        rows.append(Figure("Loss", f"{run.steps.loss:.4g}"))
    left = run.remaining_days()
    if left is not None and run.remaining_steps and not run.done and not run.failed:
        units = (("days", 1.0), ("hours", 24.0), ("minutes", 1440.0), ("seconds", 86_400.0))
        unit, scale = next((entry for entry in units if entry[1] * left[0] >= 1), units[-1])
        rows.append(Figure("Remaining", f"{number(scale * left[0])} {unit} ({between(left[1:], scale)})"))
        hourly = None if run.advice is None else run.advice.cluster.usd_per_hour
        if hourly is not None:
            value, low, high = (24 * hourly * days for days in left)
            rows.append(Figure("Remaining cost", f"{number(value)} USD ({between((low, high))})"))
    every, ranged = run.last.settings.get("checkpoint_every", ""), run.step_range
    if every.isdigit() and int(every) and run.step is not None and ranged is not None and not run.done:
        coming = (run.step // int(every) + 1) * int(every)
        pause = elapsed((coming - run.step) * ranged[0])
        rows.append(Figure("Next checkpoint", f"step {coming:,}, in {pause}"))
    return tuple(rows)


def alarms_of(run: Run) -> tuple[str, ...]:
    """Return alarms of a run, one sentence each."""
    alarms = []
    if run.other_hardware:
        alarms.append(run.other_hardware)
    if run.failure is not None:
        alarms.append(f"The run failed. {run.failure.cause} {run.failure.change}")
    elif run.failed or run.last.failure:
        reason = " ".join(run.last.failure.split())[:400] or sentence("runs", "no_reason")
        alarms.append(sentence("runs", "failed", reason=reason))
    if infinite := run.steps.infinite_loss:
        alarms.append(f"{infinite}: stop the run, and resume from a checkpoint before it with a lower learning rate.")
    alarms += _of_steps(run)
    if (share := run.memory_share) is not None and share > _FULL:
        alarms.append(sentence("runs", "full", share=percent(share)))
    if _is_silent(run):
        alarms.append(sentence("runs", "silent", polls=run.silent_polls, steps=IN_A_ROW))
    return tuple(alarms)


def _of_steps(run: Run) -> Iterator[str]:
    """Yield alarms about the step time."""
    expected, values = run.estimate, [sample.value for sample in run.samples][1:][-IN_A_ROW:]
    if expected is None:
        return
    (low, high), interval = expected.step_seconds_range, between(expected.step_seconds_range)
    if len(values) == IN_A_ROW and (min(values) > high or max(values) < low):
        side, taken = "slower" if min(values) > high else "faster", between((min(values), max(values)))
        yield sentence("runs", "beyond", steps=IN_A_ROW, taken=taken, side=side, interval=interval)
    if (usual := run.typical) is not None and usual.wall_seconds > high >= usual.seconds:
        yield sentence("runs", "slow_steps", mean=seconds(usual.wall_seconds), interval=interval)


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
    """Return causes of a deviation, and what the run taught about its plan and the recommendation."""
    lines = [] if run.estimate is None or run.typical is None else [str(cause) for cause in run.causes()]
    learned, reason = run.learned
    if learned is None or run.advice is None:
        return (*lines, *([f"The run teaches nothing: {reason}"] if reason else []))
    plan = run.advice.plan
    after = estimate(learned.model, learned.cluster, learned.job, plan)
    text = f"Learned from {plural(run.steady_steps, 'regular step')}: {step_time(after)} per step"
    lines.append(f"{text}, before {step_time(run.advice.estimate)}.")
    if learned.plan == plan:
        lines.append("The recommended plan is still that of the run.")
    else:
        lines.append(f"Recommended for the next run: {learned.plan!r}, {step_time(learned.estimate)} per step.")
    return tuple(lines)


def elapsed(value: float) -> str:
    """Return a duration: ``41 s``, ``12 min``, ``3.4 h``, ``2.1 days``."""
    for unit, size in (("days", _DAY), ("h", 3600), ("min", 60)):
        if value >= 2 * size:
            return f"{value / size:.1f} {unit}" if value < 10 * size else f"{value / size:,.0f} {unit}"
    return f"{max(value, 0):.0f} s"


_MOST_POINTS = 500
_LEFT, _RIGHT, _TOP, _MARGIN = 44.0, 110.0, 22.0, 20.0
"""Room around a drawing for its labels, in pixels."""
_STATES: dict[str, tuple[State, str]] = {
    "Completed": ("fits", "Completed"),
    "Failed": ("over", "Failed"),
    "Stopped": ("risk", "Stopped"),
    "Stopping": ("run", "Stopping"),
}


def page_of(run: Run) -> tuple[str, str]:
    """Return a run as it was read last, as text and as HTML."""
    rows = run.figures()
    figures = Table(columns=("", "Measured", "Predicted (95 %)"), rows=rows)
    notes = [*run.notes]
    if run.transitions:
        notes.insert(0, f"Phases: {', '.join(run.transitions)}.")
    if run.problem:
        notes.insert(0, f"Not read: {run.problem}")
    reasons = conclusions_of(run)
    lines = [run.headline, *(f"  ! {alarm}" for alarm in run.alarms)]
    lines += [f"  {line}" for line in figures.lines()] if rows else []
    lines += [f"  {line}" for line in (*reasons, *notes)]
    alarms = "".join(f'<p role="alert" class="smp-alarm">{escape(alarm)}</p>' for alarm in run.alarms)
    table = f"<div>{title('Measured and predicted')}{figures.html()}</div>" if rows else ""
    about: list[str] = []
    if (advice := run.advice) is not None:
        place = f"{advice.cluster.nodes} × {advice.cluster.instance.name}"
        about = [advice.model.name, place, schema(advice.plan.library).name]
    freshness = "Ended" if run.done else "Watching" if run.polls else "Not read yet"
    html = sheet(
        f"Run {run.name}",
        heading(run.name, about, freshness),
        _strip(run),
        _sentence(run),
        alarms,
        _step_times(run),
        f'<div class="smp-columns">{table}{_losses(run)}</div>' if table else _losses(run),
        "".join(f"<p>{escape(line)}</p>" for line in reasons),
        "".join(f'<p class="smp-note">{escape(note)}</p>' for note in notes),
    )
    return "\n".join(lines), html


def _strip(run: Run) -> str:
    """Return the state, the step, the time left and the step time; its lower edge is the progress."""
    state, words = _STATES.get(run.last.status, ("run", run.last.transitions[-1][0] if run.last.transitions else ""))
    if run.failed:
        state, words = "over", "Failed"
    words = words or ("Training" if run.step is not None and not run.done else "Log ended" if run.done else "Starting")
    total, facts = run.total_steps, list[tuple[str, str, str]]()
    if run.step is not None:
        facts.append(("step", f"{run.step:,}", f"of {total:,}" if total else ""))
    left = run.remaining_days()
    if left is not None and run.typical is not None and not run.done and not run.failed:
        facts.append(("", elapsed(_DAY * left[0]), "left") if run.remaining_steps else ("", "", "writes its results"))
    if run.typical is not None:
        expected = "" if run.estimate is None else f", predicted {between(run.estimate.step_seconds_range)}"
        facts.append(("", number(run.typical.seconds), f"s per step{expected}"))
    share = 1.0 if run.last.status == "Completed" else min((run.step or 0) / total, 1.0) if total else 0.0
    return strip(state, words, facts, filled=share)


def _sentence(run: Run) -> str:
    """Return how the step time compares with the prediction, what the run can teach, and the calls for both."""
    expected, usual, texts = run.estimate, run.typical, list[str]()
    if expected is not None and usual is not None:
        low, high = expected.step_seconds_range
        ratio = usual.seconds / expected.step_seconds
        word = "slower" if ratio > 1 else "faster"
        factor = f"{max(ratio, 1 / ratio):.1f} times {word} than predicted"
        verdict = f"{factor}." if not low <= usual.seconds <= high else "As predicted, within the 95 % interval."
        texts.append(f"<b>{verdict}</b>")
        if usual.steps < STEADY_STEPS and not run.done:
            texts.append(
                f"{plural(usual.steps, 'regular step')} so far; with {STEADY_STEPS}, it can correct the next advice."
            )
        elif usual.steps >= STEADY_STEPS:
            texts.append("The next advice can use it: <code>advice = run.calibrated()</code>")
    if run.can_stop and not run.done:
        texts.append("To end it: <code>run.stop()</code>")
    return f'<p class="smp-sentence">{" ".join(texts)}</p>' if texts else ""


def _step_times(run: Run) -> str:
    """Seconds per step on a linear scale from 0: values, band and line of the prediction, and their median."""
    samples = [sample for sample in run.samples if math.isfinite(sample.value) and sample.value > 0]
    if len(samples) < 2:
        return ""
    usual, expected, total = run.typical, run.estimate, run.total_steps
    places = [sample.step if sample.step is not None else index + 1 for index, sample in enumerate(samples)]
    used = set() if usual is None else set(usual.usual)
    # A browser draws a few hundred points as well as all of them.
    every = math.ceil(len(samples) / _MOST_POINTS)
    shown = list(zip(places, samples, strict=True))[::every]
    last = max(places[-1], total or 0)
    band = None if expected is None else expected.step_seconds_range
    # A first step of compilation would press all others against the axis.
    most = 1.1 * max(
        *(band or (0.0,)),
        *(s.value for _, s in shown if s in used),
        min(max(s.value for _, s in shown), 3 * median([s.value for _, s in shown])),
    )
    width, height = 1080.0, 260.0
    x, y = linear(min(places[0], 1), last, _LEFT, width - _RIGHT), linear(0, most, height - _MARGIN, _TOP)
    # From the back to the front: grid, band of the prediction, series, points, median.
    end, parts, labels = width - _RIGHT, list[str](), list[tuple[float, str, str]]()
    for tick in ticks(0, most, 5):
        parts.append(line("smp-grid", _LEFT, y(tick), end, y(tick)))
        parts.append(label("smp-quiet", _LEFT - 8, y(tick) + 4, short(tick), "end"))
    if band is not None and expected is not None:
        parts.append(rect("smp-band", _LEFT, y(band[1]), end - _LEFT, y(band[0]) - y(band[1])))
        parts.append(line("smp-expected", _LEFT, y(expected.step_seconds), end, y(expected.step_seconds)))
        labels.append((y(expected.step_seconds), "smp-quiet", f"predicted {number(expected.step_seconds)} s"))
    parts.append(path("smp-series", [(x(place), y(min(s.value, most))) for place, s in shown]))
    left_out = [place for place, s in shown if s not in used]
    if len(shown) <= 120:
        parts += [
            dot(
                "smp-kept" if s in used else "smp-left-out",
                x(place),
                y(min(s.value, most)),
                3.5,
                f"step {place}: {number(s.value)} s",
            )
            for place, s in shown
        ]
    if usual is not None:
        first = next((place for place, s in shown if s in used), places[0])
        parts.append(line("smp-median", x(first), y(usual.seconds), end, y(usual.seconds)))
        labels.append((y(usual.seconds), "smp-strong", f"median {number(usual.seconds)} s"))
    if total and not run.done:
        parts.append(line("smp-nowline", x(places[-1]), _TOP - 14, x(places[-1]), height - _MARGIN))
        parts.append(label("smp-quiet", x(places[-1]) + 6, _TOP - 6, "now"))
    # Texts at the right edge move apart where their lines meet.
    labels.sort()
    for index, (at, style, text) in enumerate(labels):
        crowded = index > 0 and at - labels[index - 1][0] < 16
        parts.append(label(style, end + 8, labels[index - 1][0] + 20 if crowded else at + 4, text))
    marks = sorted(
        {int(min(places[0], 1)), *(int(tick) for tick in ticks(1, last, 5) if 1 < tick < 0.95 * last), int(last)}
    )
    parts += [
        label("smp-quiet", x(mark), height - 4, f"step {mark:,}" if mark == marks[0] else f"{mark:,}", "middle")
        for mark in marks
    ]
    about = f"Seconds per step from {short(min(s.value for _, s in shown))} to {short(max(s.value for _, s in shown))}"
    about += f"; predicted {between(band)}" if band else ""
    hollow = (
        f"; hollow: {plural(len(left_out), 'value')} left out of the median" if left_out and len(shown) <= 120 else ""
    )
    over = "; values above the scale are drawn at its end" if any(s.value > most for _, s in shown) else ""
    note = f"{len(samples):,} values, linear scale from 0{hollow}{over}"
    return f"<div>{title('Seconds per step', note)}{_svg(width, height, about, parts)}</div>"


def _losses(run: Run) -> str:
    """Return the loss of the run by its steps, and whether it falls."""
    values = [(step, loss) for step, loss in run.steps.losses if math.isfinite(loss)]
    if len(values) < 2:
        return ""
    every = math.ceil(len(values) / _MOST_POINTS)
    shown, (last, now) = values[::every], values[-1]
    low, high = min(loss for _, loss in shown), max(loss for _, loss in shown)
    left, width, height = 56.0, 480.0, 130.0
    x, y = linear(shown[0][0], last, left, width - 8), linear(low, high, height - _MARGIN, 8)
    parts = [path("smp-series", [(x(step), y(loss)) for step, loss in shown])]
    for tick in ticks(low, high, 3):
        parts.append(line("smp-grid", left, y(tick), width - 8, y(tick)))
        parts.append(label("smp-quiet", left - 6, y(tick) + 4, f"{tick:g}", "end"))
    parts.append(label("smp-quiet", left, height - 4, f"step {shown[0][0]:,}"))
    parts.append(label("smp-quiet", width - 8, height - 4, f"{last:,}", "end"))
    third = max(len(values) // 3, 1)
    early, late = (median([loss for _, loss in part]) for part in (values[:third], values[-third:]))
    scatter = median([abs(after - before) for (_, before), (_, after) in pairwise(values)])
    trend = "no trend yet" if abs(late - early) <= 2 * scatter else "falls" if late < early else "rises"
    about = f"Loss from step {shown[0][0]:,} to {last:,}: {now:.4g}, {trend}"
    return f"<div>{title('Loss', f'{now:.4g} at step {last:,}, {trend}')}{_svg(width, height, about, parts)}</div>"


def _svg(width: float, height: float, about: str, parts: list[str]) -> str:
    return (
        f'<div class="smp-drawing" tabindex="0"><svg width="{width:g}" height="{height:g}" role="img"'
        f' viewBox="0 0 {width:g} {height:g}" aria-label="{escape(about)}">{"".join(parts)}</svg></div>'
    )
