"""Lines of a log with the process that printed each, the phase of the job, its exceptions, and patterns of messages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.core.files import data_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LONGEST_LINE = 2_000
_LONGEST_MESSAGE = 8
"""Lines of one exception that are read."""
_COLORS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|#033\[[0-9;]*[A-Za-z]")
_LINES = data_file("runs", "lines")
_MARKS = tuple(map(re.compile, _LINES["marks"]))
_FILE = re.compile(r"==> (\S{1,200}) <==$")
"""Marker of ``tail`` and of a folder with several logs."""
_IN_TEXT = re.compile(r"\[?(?:\b|mpi)rank ?:?(\d{1,6})\]?(?!\d)|\blocal_rank: (\d{1,3})\b", re.IGNORECASE)
_WARNING = re.compile(
    r"(?:^|[\s\[(|:-])warn(?:ing)?\b|\b\w+warning:|^\[w[ \d]|^w\d{4} |\bw tensorflow/|^w\w{0,30} external/",
    re.IGNORECASE,
)
_LOUD = re.compile(
    r"OP_REQUIRES failed|Resource exhausted: OOM|job is preempted|NVIDIA driver on your system is too old"
    r"|FailedScheduling|FailedMount|[Bb]ack-?[Oo]ff |Evicted"
)
"""Ends of a job that their programs print as warnings."""
_INFORMATION = re.compile(r"NCCL INFO|^\[?I\d{4} |\bINFO\b.{0,60}NET/", re.IGNORECASE)
_RAISED = re.compile(
    r"(?P<name>(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,80}(?:Error|Exception|Failure|Interrupt|Exit|Limit\w*Hit))"
    r"(?:: ?(?P<message>.*))?$"
)
_NAMED = re.compile(r"(?P<name>(?:[A-Za-z_]\w{0,60}\.){1,8}[A-Z]\w{0,80}): (?P<message>.*)$")
_AFTER_TRACEBACK = re.compile(r"(?P<name>(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,80})(?:: ?(?P<message>.*))?$")
_TRACEBACK = "Traceback (most recent call last)"
_CHAINS = {
    "The above exception was the direct cause": "cause",
    "During handling of the above exception": "handled",
}
_QUOTED = re.compile(r"ErrorMessage \"|Reason: (?:\w+: )?(?=\w+(?:Error|Exception)\b)|\"?FailureReason\"?: ?\"?")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log."""

    number: int
    """From 1."""
    text: str
    body: str
    """Without time stamps and the marks of its process."""
    process: str
    """Host and rank that printed it; empty if the line states neither."""
    rank: int | None
    quiet: bool
    """Whether it is a warning or an information, which is never a cause."""


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception, by its position: the unindented line after a traceback, or SageMaker's quoted message."""

    row: int
    name: str
    message: str
    """With its further lines."""
    frames: str
    """The traceback above it."""
    chain: str
    """``cause`` or ``handled`` if it follows from the exception before it; else empty."""


def lines_of(parts: Sequence[tuple[int, str]]) -> list[Line]:
    """Lines of parts of a log: (number of the first line, text). A carriage return starts a new text of a line."""
    rows, file = [], ""
    for start, text in parts:
        for number, line in enumerate(text.split("\n"), start=start):
            for piece in filter(str.strip, line.split("\r")):
                half = _LONGEST_LINE // 2
                shown = _COLORS.sub("", piece if len(piece) <= 2 * half else piece[:half] + piece[-half:])
                if match := _FILE.search(shown):
                    file = match[1]
                rows.append(_line(number, shown, file))
    return rows


def _line(number: int, text: str, file: str) -> Line:
    place, host, rank = len(text) - len(text.lstrip()) if text[:1] not in " \t" else 0, file, ""
    for _ in range(6):
        for mark in _MARKS:
            match = mark.match(text, place)
            if match is None or match.end() == place:
                continue
            groups = match.groupdict()
            host, rank, place = groups.get("host") or host, groups.get("rank") or rank, match.end()
            break
        else:
            break
    body = text[place:]
    if match := _QUOTED.search(body):
        body = body[match.end() :].removesuffix('"')
    inside = None if rank else _IN_TEXT.search(text[:200])
    shown = rank or (next(filter(None, inside.groups()), "") if inside else "")
    warned = _WARNING.search(body[:120])
    raised = _RAISED.match(body)
    quiet = bool(_INFORMATION.search(text[:200])) or (
        warned is not None
        and "NCCL WARN" not in text
        and not _LOUD.search(text)
        and (raised is None or warned.start() < raised.end("name"))
    )
    return Line(
        number=number,
        text=text,
        body=body,
        process=f"{host}/{rank}" if host or rank else "",
        rank=int(shown) if shown.isdecimal() else None,
        quiet=quiet,
    )


def raised_in(lines: Sequence[Line]) -> Iterator[Raised]:
    """Exceptions, in the order of the log."""
    frames: dict[str, list[str]] = {}
    chains: dict[str, str] = {}
    for row, line in enumerate(lines):
        inside = frames.get(line.process)
        if _TRACEBACK in line.body:
            frames[line.process] = []
            continue
        for words, chain in _CHAINS.items():
            if line.body.startswith(words):
                chains[line.process] = chain
        if inside is not None and (line.body[:1] in " \t|" or line.body.startswith(("File ", "+"))):
            inside.append(line.body)
            continue
        pattern = (_RAISED, _NAMED) if inside is None else (_RAISED, _NAMED, _AFTER_TRACEBACK)
        match = next((hit for form in pattern if (hit := form.match(line.body.strip(" |"))) is not None), None)
        if match is None or line.quiet:
            if inside is not None and line.body.strip():
                frames.pop(line.process)
            continue
        if (match["message"] or "").startswith("Caught "):
            after = next((later.body for later in lines[row + 1 : row + 40] if later.process == line.process), "")
            if "Original Traceback" in after:
                frames[line.process] = []  # of a data-loading worker, whose own exception follows
                continue
        yield Raised(
            row=row,
            name=match["name"],
            message=_message(lines, row, match["message"] or ""),
            frames="\n".join(inside or _before(lines, row)),
            chain=chains.pop(line.process, ""),
        )
        frames.pop(line.process, None)


def _message(lines: Sequence[Line], row: int, first: str) -> str:
    """Return the message of an exception, with its further lines."""
    parts = [first.strip()]
    for line in lines[row + 1 : row + 60]:
        if line.process != lines[row].process:
            continue
        body = line.body.strip()
        ends = _TRACEBACK in body or body.startswith(
            ("The above", "During handling", 'Command "', "[W", "E1", "W1", *_LINES["boilerplate"])
        )
        if ends or (_RAISED.match(body) and ":" in body) or len(parts) >= _LONGEST_MESSAGE or line.quiet:
            break
        parts.append(body)
    return " ".join(filter(None, parts))


def _before(lines: Sequence[Line], row: int) -> list[str]:
    """Frames above an exception whose traceback has no start in the log."""
    frames: list[str] = []
    for line in lines[max(row - 40, 0) : row][::-1]:
        if line.process != lines[row].process:
            continue
        if line.body[:1] not in " \t" and not line.body.startswith("File "):
            break
        frames.append(line.body)
    return frames[::-1]


_OF_STEP = re.compile(r"(?m)\bin (?:train\w*_step|forward|backward|step)$|\.backward\(|\bmodel\(")
_PHASES: dict[str, re.Pattern[str]] = {
    name: re.compile(pattern, re.IGNORECASE) for name, pattern in _LINES["phases"].items()
}
STEP = re.compile(
    r"\b(?:step|iter|iters|iteration|global_step|batch)s?\b['\"]?\]?\s?[:=/|]?\s{0,4}(\d{1,9}(?:,\d{3})*)"
    r"|^\s*\d{0,3}%?\|?[^|]{0,120}\|\s{0,4}(\d{1,9})/\d+ \[\d+:\d\d"
    r"|^Epoch \d+:.{0,140}\|\s{0,4}(\d{1,9})/\d+ \[\d+:\d\d",
    re.IGNORECASE,
)
_NO_STEP = re.compile(
    r"\b(?:eval\w*|valid\w*|test\w*|sav(?:e|ed|ing)|load\w*|map|filter|download\w*|shards?|tokeniz\w*|generat\w*|"
    r"sanity|fetch\w*|resum\w*|exception|error|warn\w*)\b.{0,160}",
    re.IGNORECASE,
)


def step_of(line: Line) -> str:
    """Return the number of the training step that a line reports; empty without one."""
    match = STEP.search(line.body[:400])
    if match is None or _NO_STEP.search(line.body, 0, match.start()) or line.quiet:
        return ""
    return next(filter(None, match.groups()), "")


def phase_at(lines: Sequence[Line], row: int, frames: str) -> str:
    """Return the phase of the job in which a line was printed: by its traceback, or by the last mark before it."""
    for name in ("local", "load", "save", "evaluation"):
        if _PHASES[name].search(frames):
            return name
    if _OF_STEP.search(frames):  # not a mark of what ended before: "Loading checkpoint shards: 100%"
        return "step"
    for line in lines[row::-1]:
        if step_of(line):
            return "step"
        for name, pattern in _PHASES.items():
            if pattern.search(line.text):
                return name
    return ""


ASCII_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


@dataclass(frozen=True)
class Pattern:
    """A regular expression for text in lower case, and a part of it without which it does not match."""

    search: re.Pattern[str]
    literal: str

    @classmethod
    def of(cls, text: str) -> Pattern:
        """Return the pattern of a text in any case."""
        lowered = re.sub(r"(\\.|\(\?P<\w+>)|[A-Z]", lambda match: match[1] or match[0].lower(), text)
        return cls(re.compile(lowered), literal_of(lowered))


def literal_of(pattern: str) -> str:
    """Return the longest text that every match contains: a run of plain characters outside groups."""
    runs, depth, place = [""], 0, 0
    while place < len(pattern):
        part: str = re.compile(r"\\.|\[\^?\]?[^]]*\]|\{[^}]*\}|.").match(pattern, place)[0]  # type: ignore[index]
        place += len(part)
        depth += (part == "(") - (part == ")")
        if part == "|" and not depth:
            return ""
        plain = part[-1] if re.fullmatch(r"\\\W|[^\\.^$|+?*()[{]", part) else ""
        if depth or not plain or re.match(r"[?*]|\{0", pattern[place:]):
            runs.append("")
        else:
            runs[-1] += plain
    return max(runs, key=len)
