"""A sheet: the page of a check, a run or a saved advice as HTML, with the strip, the tank and the words of the widget.

Its style is in the page. Where styles are removed, as on code hosts, the same words follow in the same order.
"""

from __future__ import annotations

import difflib
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Literal

from smp_advisor.core.words import escape

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

State = Literal["fits", "risk", "over", "run", "none"]
"""Good, doubtful, certain to fail, still running, and unknown."""

SIGNS: dict[State, str] = {"fits": "✓", "risk": "!", "over": "✗", "run": "▶", "none": "?"}
_SCALE = 1.5
"""The tank ends at this multiple of the limit: the wall is at two thirds."""


@cache
def _style() -> str:
    text = files("smp_advisor.core").joinpath("data/sheet.css").read_text("utf-8")
    return re.sub(r"/\*.*?\*/|\n\s*", "", text)


def sheet(label: str, *parts: str, name: str = "", script: str = "") -> str:
    """Return the parts as one page with its style.

    Parameters
    ----------
    label
        Name of the page for screen readers.
    parts
        HTML below each other.
    name, script
        Identity of the page, and the script that uses it.
    """
    identity = f' id="{name}"' if name else ""
    # A sign of its own: two in a line would be a formula.
    body = re.sub(r">[^<]*", lambda text: with_signs(text[0]).replace("$", "<span>$</span>"), "".join(parts))
    more = f'<script type="text/javascript">{script}</script>' if script else ""
    return (
        f'<section class="smp-sheet"{identity} aria-label="{escape(label)}"><style>{_style()}</style>'
        f"{body}{more}</section>"
    )


def with_signs(text: str) -> str:
    """Return a text with the sign of the currency of the page: ``$12,000`` for ``12,000 USD``."""
    signed = re.sub(r"(?<![\d,.])([\d,.]*\d) USD\b", r"$\1", text)
    return re.sub(r"\bUSD\b(?= (?:per|of))", "$", signed)


def heading(title: str, notes: Iterable[str], light: str = "") -> str:
    """Return the line above the strip: what is shown, what it is for, and how fresh it is."""
    words = "".join(f"<span>{escape(note)}</span>" for note in notes if note)
    state = f'<span class="smp-light">{escape(light)}</span>' if light else ""
    return f'<div class="smp-head"><b>{escape(title)}</b>{words}{state}</div>'


def strip(
    state: State,
    words: str,
    facts: Iterable[tuple[str, str, str]],
    *,
    filled: float = 0.0,
    over: float = 0.0,
    has_wall: bool = False,
    action: str = "",
) -> str:
    """Return the strip: verdict, figures as text before, figure and text after it, and the tank in small.

    Parameters
    ----------
    state
        Color and sign.
    words
        The verdict.
    facts
        Each figure with the words around it.
    filled, over
        Shares of the lower edge that are blue and red.
    has_wall
        Whether the edge is a tank, with the limit at two thirds.
    action
        HTML of a button.
    """
    texts = (
        f'<span class="smp-amount">{escape(before)}{" " * bool(before)}<b>{escape(figure)}</b>'
        f"{' ' * bool(after)}{escape(after)}</span>"
        for before, figure, after in facts
    )
    wall = '<u style="left:66.67%"></u>' if has_wall else ""
    gauge = f'<i style="width:{100 * filled:.2f}%"></i>' if filled else ""
    excess = f'<i class="smp-over" style="left:66.67%;width:{100 * over:.2f}%"></i>' if over else ""
    return (
        f'<div class="smp-strip" data-state="{state}"><span class="smp-mark" aria-hidden="true">'
        f'{SIGNS[state]}</span> <strong class="smp-answer">{escape(words)}</strong> {" ".join(texts)}{action}'
        f'<span class="smp-meter" aria-hidden="true">{gauge}{excess}{wall}</span></div>'
    )


def verdict_strip(
    state: State, words: str, need: float, usable: float, facts: Iterable[tuple[str, str, str]], action: str = ""
) -> str:
    """Return the strip of a plan that needs `need` of `usable` GiB per GPU."""
    return strip(
        state,
        words,
        [("", f"{need:,.1f}", f"of {usable:.1f} GiB"), *facts],
        filled=min(need / usable, 1) / _SCALE,
        over=min(max(need / usable - 1, 0), _SCALE - 1) / _SCALE,
        has_wall=True,
        action=action,
    )


def title(text: str, note: str = "") -> str:
    """Return the title of a part, and a note next to it."""
    more = f' <span class="smp-note">{escape(note)}</span>' if note else ""
    return f'<p class="smp-title"><b>{escape(text)}</b>{more}</p>'


def tank(need: float, usable: float, parts: Sequence[float] = (), edge: float | None = None) -> str:
    """Return the memory of a GPU with its limit as a wall at two thirds.

    Parameters
    ----------
    need, usable
        Needed and usable GiB.
    parts
        GiB of the tints of one blue, from the left; without any, it has one.
    edge
        GiB below which the need stays with the requested probability.
    """

    def at(gib: float) -> float:
        return 100 * min(gib / (_SCALE * usable), 1)

    within, end, bars = min(need, usable), 0.0, []
    for tint, part in enumerate(parts or (within,)):
        start, end = end, min(end + part, within)
        bars.append(f'<i class="smp-stay{tint}" style="left:{at(start):.2f}%;width:{at(end) - at(start):.2f}%"></i>')
    if edge is not None and edge > need:
        bars.append(f'<i class="smp-edge" style="left:{at(need):.2f}%;width:{at(edge) - at(need):.2f}%"></i>')
    if need > usable:
        bars.append(f'<i class="smp-over" style="left:{at(usable):.2f}%;width:{at(need) - at(usable):.2f}%"></i>')
    ratio = need / usable
    times = f"{ratio:.0f}" if ratio > 3 else f"{ratio:.1f}"
    left = f"{usable - need:.1f} GiB free" if ratio <= 1 else f"{times} × the limit"
    place = "far" if ratio > _SCALE else "in" if ratio > 0.3 else "small"
    size = f"{need:,.0f}" if need >= 1000 else f"{need:.1f}"
    return (
        f'<div class="smp-pool" data-size="{place}" data-over="{int(ratio > 1)}">'
        f'<span aria-hidden="true">{"".join(bars)}<u></u></span>'
        f"<b>{size} GiB</b> <span>{left}</span> <em>{usable:.1f} GiB usable</em></div>"
    )


_PARTS = re.compile(r"[^,(){}\[\]]+|[,(){}\[\]]")


def changed_values(before: str, after: str) -> str:
    """Return what differs between two texts, the values alone, removed and added ones on lines of their own."""
    rows: list[str] = []
    old, new = before.splitlines(), after.splitlines()
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        pieces = [_PARTS.findall("\n".join(texts)) for texts in (old[a:b], new[c:d])]
        shown: tuple[list[str], list[str]] = [], []
        for what, e, f, g, h in difflib.SequenceMatcher(None, pieces[0], pieces[1], autojunk=False).get_opcodes():
            if what != "equal":
                shown[0].append("".join(pieces[0][e:f]))
                shown[1].append("".join(pieces[1][g:h]))
        for sign, word, texts in (("−", "removed", shown[0]), ("+", "added", shown[1])):
            text = ", ".join(filter(None, (" ".join(part.split()).strip(" ,") for part in texts)))
            if text.strip("(){}[], "):
                rows.append(f'<li data-sign="{word}"><span aria-label="{word}">{sign}</span> {escape(text)}</li>')
    return f'<ul class="smp-changes">{"".join(rows)}</ul>'
