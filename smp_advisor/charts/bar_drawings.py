"""Drawings of rows: bars, schedule, ladder and ranks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypedDict

from smp_advisor.charts.marks import (
    dot,
    escape,
    fixed,
    frame,
    grouped,
    label,
    line,
    linear,
    number,
    rect,
    short,
    text_width,
    ticks,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.charts.marks import Scale

__all__ = [
    "BarRow",
    "Bars",
    "Gantt",
    "GanttRow",
    "LadderBars",
    "LadderRow",
    "RankColumn",
    "Ranks",
    "amount",
    "bars",
    "gantt",
    "ladder",
    "ladder_table",
    "ranks",
]


class BarRow(TypedDict):
    """One bar."""

    label: str
    parts: list[float]
    total: float
    """Sum of the parts before rounding."""
    ghost: float | None
    """Total of the previous state."""
    interval: tuple[float, float, float] | None
    """Low end, middle and high end of the 95 % interval of the memory needed."""


class Bars(TypedDict):
    """Bars with a common axis."""

    unit: str
    """``GiB`` or ``s``."""
    names: list[str]
    """Names of the parts."""
    rows: list[BarRow]
    limit: float | None
    """Usable memory."""
    nominal: float | None
    """Nominal memory."""


_BAR = 22
_AXIS = 20


def bars(data: Bars, width: float) -> str:
    """Bars as SVG, `width` pixels wide."""
    unit, rows, limit, nominal = data["unit"], data["rows"], data["limit"], data["nominal"]
    left = min(max(text_width(row["label"]) for row in rows) + 8, 0.3 * width) if len(rows) > 1 else 0
    right = width - 62
    most = [limit or 0, nominal or 0, *(max(row["total"], row["ghost"] or 0) for row in rows)]
    high = [row["interval"][2] for row in rows if row["interval"]]
    full = 1.02 * max(*most, *high) if high or limit else max(most)
    x = linear(0, full, left, right)
    top = 18 if limit else 2
    parts: list[str] = []
    y = top + 4.0
    for row in rows:
        if left:
            room = int((left - 8) / 6.2)
            text = row["label"] if len(row["label"]) <= room else f"{row['label'][: room - 1]}…"
            parts.append(label("smp-text", 0, y + 15, text))
        parts += _bar(data, row, x, y)
        over = limit is not None and beyond(row["total"], limit) > 0
        total = amount(row["total"], unit)
        parts.append(label("smp-total smp-over" if over else "smp-total", width, y + 15, total, "end"))
        y += _BAR + 8
        if row["interval"]:
            parts += _whisker(row["interval"], unit, x, y)
            y += 10
    if limit is not None:
        if nominal and nominal > limit:
            parts.append(line("smp-nominal", x(nominal), top, x(nominal), y))
        usable = f"{fixed(limit, 1)} {unit} usable"
        side = "end" if x(limit) + text_width(usable) / 2 > width else "middle"
        parts.append(line("smp-limit-mark", x(limit), top - 4, x(limit), y))
        parts.append(label("smp-text", min(x(limit), width), 11, usable, side))
    parts += _axis(full, unit, x, y, right)
    return frame(width, y + _AXIS, _description(data), parts)


def _bar(data: Bars, row: BarRow, x: Scale, y: float) -> list[str]:
    """Its parts, the ghost of the previous state, and the part beyond the limit."""
    unit, limit = data["unit"], data["limit"]
    parts: list[str] = []
    start = 0.0
    for index, value in enumerate(row["parts"]):
        if value > 0:
            title = f"{data['names'][index]}: {amount(value, unit, row['total'])}"
            parts.append(rect(f"smp-part smp-c{index}", x(start), y, x(start + value) - x(start), _BAR, title))
            start += value
    if limit is not None and (excess := beyond(row["total"], limit)):
        title = f"{amount(excess, unit)} over the usable memory"
        parts.append(rect("smp-excess", x(limit), y + _BAR, x(row["total"]) - x(limit), 3, title))
    if row["ghost"] is not None:
        title = f"before: {amount(row['ghost'], unit)}"
        parts.append(rect("smp-ghost", x(0), y - 3, x(row["ghost"]) - x(0), _BAR + 6, title))
    return parts


def _whisker(interval: tuple[float, float, float], unit: str, x: Scale, y: float) -> list[str]:
    low, middle, high = (max(end, 0.0) for end in interval)
    title = f"{amount(middle, unit)} needed, 95 %: {fixed(low, 1)} to {fixed(high, 1)} {unit}"
    return [
        line("smp-whisker", x(low), y, x(high), y, title),
        line("smp-whisker", x(low), y - 4, x(low), y + 4),
        line("smp-whisker", x(high), y - 4, x(high), y + 4),
        dot("smp-middle", x(middle), y, 3, title),
    ]


def _axis(full: float, unit: str, x: Scale, y: float, right: float) -> list[str]:
    parts = [line("smp-axis", x(0), y, right, y)]
    for value in ticks(0, full, (right - x(0)) / 70):
        parts.append(line("smp-axis", x(value), y, x(value), y + 4))
        parts.append(label("smp-tick", x(value), y + 15, short(value), "middle" if value else "start"))
    parts.append(label("smp-tick", right + 62, y + 15, unit, "end"))
    return parts


def _description(data: Bars) -> str:
    unit, limit = data["unit"], data["limit"]
    texts = []
    for row in data["rows"]:
        of = f" of {fixed(limit, 1)} {unit} usable" if limit is not None else ""
        total = fixed(row["total"], 1) if limit is not None else amount(row["total"], unit)
        texts.append(f"{row['label']}: {total}{of}: {listed(data['names'], row['parts'], unit)}")
    return "; ".join(texts)


def listed(names: Sequence[str], values: Sequence[float], unit: str) -> str:
    """The parts as text. Those too small to see are omitted."""
    total = sum(values)
    return ", ".join(
        f"{name} {amount(value, unit, total)}"
        for name, value in zip(names, values, strict=False)
        if value > 0 and value >= (0.0005 * total if unit == "s" else 0.005)
    )


def beyond(total: float, limit: float) -> float:
    """Excess of a total over its limit. The allocator's reserve fills a GPU exactly, and rounding does not count."""
    return total - limit if total - limit > 0.006 else 0.0


def amount(value: float, unit: str, total: float | None = None) -> str:
    """A size or a time. Parts of one time are all in seconds or all in milliseconds.

    Parameters
    ----------
    total
        Sum of which the value is a part.
    """
    if unit != "s":
        return f"{fixed(value, 2 if value < 0.1 else 1)} {unit}"
    milliseconds = 1000 * value
    if (value if total is None else total) < 0.9995:
        return f"{milliseconds:.2g} ms" if milliseconds < 9.95 else f"{fixed(milliseconds, 0)} ms"
    return f"{fixed(value, 3 if value < 0.1 else 2)} s" if value < 100 else f"{grouped(value)} s"


class GanttRow(TypedDict):
    """One pipeline stage."""

    label: str
    spans: list[tuple[int, float, float, int]]
    """Part of the step (a position in `Gantt.names`), start and length in seconds, and microbatch (-1 for none)."""


class Gantt(TypedDict):
    """A step."""

    names: list[str]
    """Names of the parts, in the order of their colors."""
    rows: list[GanttRow]
    seconds: float
    """Length of the axis."""
    description: str


_LANE = 22


def gantt(data: Gantt, width: float) -> str:
    """Rows over a time axis as SVG, `width` pixels wide."""
    left = max(text_width(row["label"]) for row in data["rows"]) + 8
    x = linear(0, data["seconds"], left, width - 8)
    parts: list[str] = []
    for position, row in enumerate(data["rows"]):
        y = 4.0 + _LANE * position
        busy = sum(span[2] for span in row["spans"])
        idle = max(1 - busy / data["seconds"], 0)
        parts.append(label("smp-text", 0, y + 13, row["label"]))
        title = f"{row['label']}: idle {fixed(100 * idle, 1)} % of the step"
        parts.append(rect("smp-idle", left, y, width - 8 - left, _LANE - 4, title))
        for part, start, length, microbatch in row["spans"]:
            of = f"microbatch {microbatch + 1}, " if microbatch >= 0 else ""
            title = f"{row['label']}, {of}{data['names'][part]}: {amount(length, 's')}, from {amount(start, 's')}"
            parts.append(rect(f"smp-pass smp-c{part}", x(start), y, x(start + length) - x(start), _LANE - 4, title))
    bottom = 4.0 + _LANE * len(data["rows"])
    scale, unit = (1, "s") if data["seconds"] >= 1 else (1000, "ms")
    parts.append(line("smp-axis", left, bottom, width - 8, bottom))
    for value in ticks(0, scale * data["seconds"], (width - left) / 80):
        at = x(value / scale)
        text = f"{short(value)} {unit}"
        parts.append(line("smp-axis", at, bottom, at, bottom + 4))
        parts.append(
            label("smp-tick", at, bottom + 15, text, "end" if at > width - 30 else "middle" if value else "start")
        )
    return frame(width, bottom + 20, data["description"], parts)


class LadderRow(TypedDict):
    """One rung."""

    title: str
    memory: float | None
    """GiB needed per GPU; None if there is no such plan."""
    memory_before: float | None
    """Of the plan with which it is compared; None for the first."""
    step: float | None
    """Seconds per step; None if the plan does not fit."""
    step_before: float | None
    fits: bool
    decision: str
    used: bool
    """Whether the plan on screen uses the technique."""
    because: str


class LadderBars(TypedDict):
    """Rungs with the usable memory."""

    limit: float
    rows: list[LadderRow]


_ROW = 30
_NARROW = 700
_CLIP = 2.5
"""Longest bar of memory, in multiples of the limit. Longer ones end with an arrow."""


def ladder(data: LadderBars, width: float) -> str:
    """Rows with two bars each as SVG, `width` pixels wide."""
    narrow = width < _NARROW
    start = 0 if narrow else 0.36 * width
    wide = width - start
    x = linear(0, _CLIP * data["limit"], start, start + 0.32 * wide)
    slowest = max([row["step"] or 0 for row in data["rows"]] + [row["step_before"] or 0 for row in data["rows"]])
    t = linear(0, slowest or 1, start + 0.48 * wide, start + 0.62 * wide)
    parts = [
        label("smp-tick", start, 11, "GiB needed per GPU"),
        label("smp-tick", t(0), 11, "step time"),
    ]
    y = 18.0
    grouped = False
    for row in data["rows"]:
        if not row["used"] and not grouped:
            grouped = True
            parts.append(line("smp-grid", 0, y + 4, width, y + 4))
            parts.append(label("smp-tick", 0, y + 18, "with one change"))
            y += 24
        if narrow:
            parts.append(label("smp-text", 0, y + 13, _cut(row["title"], width)))
            y += 18
        else:
            parts.append(label("smp-text", 0, y + 18, _cut(row["title"], start - 12)))
        parts += _memory(row, data["limit"], x, y)
        if row["step"] is not None:
            if row["step_before"] is not None:
                title = f"before: {amount(row['step_before'], 's')}"
                parts.append(rect("smp-ghost", t(0), y + 4, t(row["step_before"]) - t(0), 18, title))
            title = f"{row['title']}: {amount(row['step'], 's')} per step"
            parts.append(rect("smp-step-bar", t(0), y + 7, t(row["step"]) - t(0), 12, title))
            parts.append(label("smp-tick", t(slowest) + 6, y + 17, amount(row["step"], "s")))
        style = "smp-text smp-is-fit" if row["fits"] else "smp-text smp-is-over"
        parts.append(label(style, width, y + 17, _cut(row["decision"], 0.26 * wide), "end"))
        y += _ROW
    parts.append(line("smp-limit-mark", x(data["limit"]), 16, x(data["limit"]), y))
    usable = f"{amount(data['limit'], 'GiB')} usable"
    parts.append(label("smp-tick", x(data["limit"]), y + 13, usable, "middle"))
    return frame(width, y + 20, f"Memory and step time of {len(data['rows'])} techniques", parts)


def _memory(row: LadderRow, limit: float, x: Scale, y: float) -> list[str]:
    if row["memory"] is None:
        return [label("smp-tick", x(0), y + 17, "no such plan")]
    most = _CLIP * limit
    parts = []
    if row["memory_before"] is not None:
        before, title = min(row["memory_before"], most), f"before: {amount(row['memory_before'], 'GiB')}"
        parts.append(rect("smp-ghost", x(0), y + 4, x(before) - x(0), 18, title))
    title = f"{row['title']}: {amount(row['memory'], 'GiB')}. {row['because']}".rstrip(". ")
    style = "smp-memory-bar smp-is-fit" if row["fits"] else "smp-memory-bar smp-is-over"
    parts.append(rect(style, x(0), y + 7, x(min(row["memory"], most)) - x(0), 12, title))
    arrow = " »" if row["memory"] > most else ""
    parts.append(label("smp-tick", x(most) + 6, y + 17, f"{amount(row['memory'], 'GiB')}{arrow}"))
    return parts


def ladder_table(data: LadderBars) -> str:
    """The rungs with their decisions and reasons as an HTML table."""
    limit = data["limit"]
    groups: dict[bool, list[str]] = {True: [], False: []}
    for row in data["rows"]:
        memory, style = row["memory"], "fit" if row["fits"] else "over"
        bar, size = "", "no such plan"
        if memory is not None:
            wide, size = 100 * min(memory, _CLIP * limit) / (_CLIP * limit), amount(memory, "GiB")
            bar = f'<span class="smp-rung-bar" aria-hidden="true"><i style="width:{number(wide)}%"></i></span>'
        # The decision has this already.
        stated = "" if row["used"] else r"^The plan would (not )?fit(, either,?)?( with it)?"
        reason = re.sub(r"^\((.*)\)$", r"\1", re.sub(stated, "", row["because"]).strip(" ."))
        note = f'<span class="smp-note">{escape(f"{reason[:1].upper()}{reason[1:]}.")}</span>' if reason else ""
        text = row["title"].removeprefix("+ ")
        title = f'<span class="smp-rung-title">{escape(text[:1].upper() + text[1:])}</span>'
        decision = f'<span class="smp-rung-decision">{escape(row["decision"])}</span>'
        step = "" if row["step"] is None else amount(row["step"], "s")
        groups[row["used"]].append(
            f'<tr class="smp-rung-{style}"><th scope="row">{title} {decision} {note}</th>'
            f'<td class="smp-rung-memory">{bar}{size}</td><td>{step}</td></tr>'
        )
    divider = '<tr class="smp-rung-other"><th colspan="3" scope="colgroup">With one change</th></tr>'
    titles = ("Technique, decision and reason", "Memory per GPU", "Step time")
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    return (
        '<table class="smp-ladder"><caption>Techniques in AWS\'s order, each added to those above'
        f' <span class="smp-note">(line: {fixed(limit, 1)} GiB)</span></caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(groups[True])}</tbody>"
        + (f"<tbody>{divider}{''.join(groups[False])}</tbody>" if groups[False] else "")
        + "</table>"
    )


def _cut(text: str, room: float) -> str:
    """The text, cut to the letters that have room."""
    most = int(room / 6.2)
    return text if len(text) <= most else f"{text[: max(most - 1, 1)]}…"


class RankColumn(TypedDict):
    """One number per GPU."""

    name: str
    """``stage``, ``tensor slice``, ``shard``, ``replica``."""
    letter: str
    values: list[int]
    degree: int
    """Number of different values."""


class Ranks(TypedDict):
    """GPUs of the shown nodes, node by node."""

    gpus_per_node: int
    nodes: list[int]
    """Numbers of the shown nodes."""
    columns: list[RankColumn]
    by: int
    """Column of the colors."""
    description: str


_COLORS = 8
_GAP = 3


def ranks(data: Ranks, width: float) -> str:
    """Nodes with their GPUs as SVG, `width` pixels wide."""
    per_node = data["gpus_per_node"]
    detailed = len(data["nodes"]) <= 4
    lanes = 1 if detailed else max(int(width // 300), 1)
    box = width / lanes
    left = 58
    across = min(per_node, 8)
    cell = (box - left - 12) / across
    high = 32 if detailed else 18
    tall = -(-per_node // across) * (high + _GAP) + 8
    parts: list[str] = []
    for position, node in enumerate(data["nodes"]):
        x, y = box * (position % lanes), 4 + tall * (position // lanes)
        parts.append(label("smp-text", x, y + 13, f"Node {node}"))
        for gpu in range(per_node):
            index = position * per_node + gpu
            values = [column["values"][index] for column in data["columns"]]
            texts = [f"{column['name']} {value}" for column, value in zip(data["columns"], values, strict=True)]
            title = f"Node {node}, GPU {gpu}, rank {node * per_node + gpu}: {', '.join(texts) or 'the entire model'}"
            color = values[data["by"]] % _COLORS if values else 0
            cx, cy = x + left + cell * (gpu % across), y + (high + _GAP) * (gpu // across)
            parts.append(rect(f"smp-gpu smp-r{color}", cx, cy, cell - _GAP, high, title))
            if detailed:
                codes = [f"{column['letter']}{value}" for column, value in zip(data["columns"], values, strict=True)]
                middle = cx + (cell - _GAP) / 2
                parts.append(label(f"smp-code smp-o{color}", middle, cy + 13, " ".join(codes[:2]), "middle"))
                parts.append(label(f"smp-code smp-o{color}", middle, cy + 26, " ".join(codes[2:4]), "middle"))
            elif values and cell > 24:
                parts.append(
                    label(f"smp-code smp-o{color}", cx + (cell - _GAP) / 2, cy + 13, str(values[data["by"]]), "middle")
                )
    rows = -(-len(data["nodes"]) // lanes)
    return frame(width, 4 + tall * rows, data["description"], parts)
