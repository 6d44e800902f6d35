"""Why a training job failed: its log or FailureReason, read for the root cause and the change that fixes it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from smp_advisor.costs.wording import Shown, plural
from smp_advisor.errors import CalibrationError
from smp_advisor.files import data_file
from smp_advisor.libraries.plan import Plan
from smp_advisor.runs.readers import ASCII_LOWER, Log, Pattern
from smp_advisor.words import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from smp_advisor.cluster.cluster import Cluster

_FIRST, _LAST = 2**18, 2**20
"""Characters at the start and at the end of a longer log that are read."""
_LONGEST_LINE = 2_000
_LONGEST_RAISED = 500
_LONGEST_EVIDENCE = 300
_JOINED = 160
"""Characters of two lines on both sides of a break inside a message."""
_WENT_ON = 10
"""Finished steps after a message that show that the job survived it."""
_EXCEPTION, _SYMPTOM = 2, 3
"""Depths of an exception of no kind, and of consequences of other failures."""
_COLORS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|#033\[[0-9;]*[A-Za-z]")
_STEPS = re.compile(
    r"\b(?:step|iter|iters|iteration|global_step)s?\b['\"]?\s?[:=/]?\s?(\d+(?:,\d{3})*)|\b(\d+)/\d+ \[\d+:\d\d"
)
_WARNING = re.compile(r"\bwarn(?:ing)?\b|\w+warning:|\[w[ \d]|^w\d{4} |\bw tensorflow/")
_INFORMATION = "nccl info"
"""In lines of NCCL that mention failed attempts of every start."""
_RANK = re.compile(r"\[?(?:\b|mpi)rank ?:?(\d{1,6})\]?(?!\d)|^\[\d+,(\d{1,6})\]<|\blocal_rank: (\d{1,3})\b")
_RAISED = re.compile(r"(?P<name>\b(?:[\w.]{1,100}(?:error|failure)|[\w.]{0,100}exception)): ?(?P<message>\S.*)")
_MARKS = (r"\[?rank ?\d+\]?", r"\[[a-z_]+\d+\]", r"\[\d+,(?:mpirank:)?\d+(?:,[\w-]+)?\]<\w+>")
"""Of a process: by PyTorch, by torchrun (``[default0]:``), and by MPI (``[1,mpirank:0,algo-1]<stderr>:``)."""
_BEFORE_RAISED = re.compile(rf"[\W\d]*(?:(?:{'|'.join(_MARKS)}):?\s*|e\s+)*")
_GIB = {"b": 2.0**-30, "bytes": 2.0**-30, "kib": 2.0**-20, "mib": 2.0**-10, "gib": 1.0, "tib": 2.0**10}
_SIZE = r"(?P<size>\d[\d.]*) ?(?P<unit>bytes|[kmgt]ib)\b"
_FIGURES = {
    "tried": [rf"(?:tried|trying|failed) to allocate (?:request for )?{_SIZE}", rf"requested *: {_SIZE}"],
    "total": [rf"total capac\w+ of {_SIZE}", rf"{_SIZE} total capac", rf"device limit *: {_SIZE}"],
    "free": [rf"of which {_SIZE} is free", rf"(?<=; ){_SIZE} free", rf"free \(according to cuda\) *: {_SIZE}"],
    "allocated": [rf"{_SIZE} (?:is allocated by pytorch|already allocated)", rf"currently allocated *: {_SIZE}"],
    "unallocated": [rf"{_SIZE} is reserved by pytorch but unallocated", rf"{_SIZE} cached"],
    "reserved": [rf"{_SIZE} reserved in total"],
}
"""Figures of PyTorch's out-of-memory messages since 1.0 (c10/cuda/CUDACachingAllocator.cpp)."""
_CONTEXT_GIB = 3.0
"""Most of a GPU that CUDA's context and NCCL's buffers take; more outside PyTorch is another process."""
_FRAGMENTED = 0.1
"""Share of the GPU that is reserved and not allocated from which on the allocator's fragments are the cause."""


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """A mechanism of failure, as in ``failures.toml``."""

    name: str
    title: str
    depth: int
    patterns: tuple[Pattern, ...]
    cause: str
    change: str
    source: str


_UNKNOWN = _Kind(
    name="exception",
    title="",
    depth=_EXCEPTION,
    patterns=(),
    cause="",
    change="No rule has this message: read the traceback above the line, which names the line of the script.",
    source="",
)


@dataclass(frozen=True)
class _Hit:
    """A line that a pattern of a kind matches."""

    kind: _Kind
    row: int
    depth: int
    groups: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Failure(Shown):
    """Why a job failed, as its log shows it.

    Examples
    --------
    >>> import smp_advisor as smpa
    >>> failure = smpa.read_failure("OSError: [Errno 28] No space left on device")
    >>> failure.kind, failure.line, failure.of_plan
    ('disk_full', 1, False)
    """

    kind: str
    """Name of the kind: ``gpu_memory``, ``quota``, ...; ``exception`` for one that no rule has."""
    title: str
    """The kind in words."""
    cause: str
    """The event, in one sentence."""
    change: str
    """The change that fixes it, in one sentence."""
    evidence: str
    """The line that shows it."""
    line: int
    """Number of that line, from 1."""
    rank: int | None = None
    """Rank that printed it, if the line states one."""
    consequences: tuple[str, ...] = ()
    """Further messages that follow from the cause, by kind, with their number of lines."""
    memory_gib: Mapping[str, float] = field(default_factory=dict)
    """Figures of an out-of-memory message, GiB of the GPU: ``tried``, ``total``, ``free``, ``allocated``, ``reserved``,
    ``outside`` (of PyTorch: the context, NCCL, other processes)."""
    plan: Plan | None = None
    """Plan of the failed run, if it was passed."""
    source: str = ""
    """Page about the mechanism."""

    @property
    def of_plan(self) -> bool:
        """Whether another plan avoids it: the job needed more GPU memory than there is."""
        return self.kind in ("gpu_memory", "gpu_fragments")

    @property
    def least_gib(self) -> float | None:
        """Memory of the GPU that the run needed at least; None if the message lacks a figure."""
        figures = self.memory_gib
        if not {"tried", "allocated"} <= figures.keys():
            return None
        return figures["allocated"] + figures["tried"] + min(figures.get("outside", 0.0), _CONTEXT_GIB)

    @property
    def as_log(self) -> Log:
        """The failure as a run that ran out of memory, for `Advice.calibrate`."""
        least = self.least_gib
        return Log(title=self.title, out_of_memory=self.of_plan, peak_gib={} if least is None else {"total": least})

    def __str__(self) -> str:
        where = f"Line {self.line:,}" + ("" if self.rank is None else f", rank {self.rank}")
        lines = [f"Cause: {self.cause}", f"Change: {self.change}", f"{where}: {self.evidence}"]
        if self.consequences:
            lines.append(f"Consequences in the log: {', '.join(self.consequences)}.")
        return plain("\n".join([*lines, f"Source: {self.source}"] if self.source else lines))


def read_failure(text: str, *, plan: Plan | None = None) -> Failure | None:
    """Why a training job failed; None if nothing in the text shows it.

    The root cause comes first: when one of eight ranks runs out of memory, the others report a time-out of NCCL, and
    torchrun a failed child. A message after which the job finished ten more steps is not the cause.

    Parameters
    ----------
    text
        The end of a training log, the FailureReason of a SageMaker job, or both, one after the other. Of a longer text,
        the first 256 and the last 1024 thousand characters are read.
    plan
        Plan of the run, for `Advice.after`.

    Examples
    --------
    >>> import smp_advisor as smpa
    >>> log = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    >>> failure = smpa.read_failure(log)
    >>> failure.kind, failure.rank, failure.cause
    ('gpu_memory', 3, 'A GPU ran out of memory.')
    """
    if not isinstance(text, str):
        raise CalibrationError(f"A failure is read from the text of a log, not {type(text).__name__}.")
    if plan is not None and not isinstance(plan, Plan):
        raise CalibrationError(f"plan must be a Plan, not {type(plan).__name__}.")
    rows = list(_rows(text))
    lines = [line for _, line in rows]
    # Without the hits after which the job went on for several steps, and those that torchrun lists as later ones.
    hits = _hits(lines)
    matches = ((row, _STEPS.search(line.translate(ASCII_LOWER))) for row, line in enumerate(lines))
    steps = [(row, match[1] or match[2]) for row, match in matches if match]
    of_loss = {hit.row for hit in hits if hit.kind.name == "loss"}
    settled, finite = _settled(steps), _settled([entry for entry in steps if entry[0] not in of_loss])
    start, later = -1, set[int]()
    for row, line in enumerate(lines):  # its list of failures is before the first observed one
        if line.rstrip().endswith("Failures:"):
            start = row
        elif start >= 0 and "Root Cause (first observed failure)" in line:
            later.update(range(start, row))
            start = -1
    hits = [h for h in hits if h.row >= (finite if h.kind.name == "loss" else settled) and h.row not in later]
    if not hits:
        return None
    first = min(hits, key=lambda hit: (hit.depth, hit.row))
    message = " ".join(lines[first.row : first.row + 6])
    memory = _figures(message) if first.kind.name == "gpu_memory" else {}
    kind = _kinds()[_memory_kind(memory)] if memory else first.kind
    slots = {**first.groups, **{name: f"{gib:.2f}" for name, gib in memory.items()}}
    consequences: dict[str, set[int]] = {}
    for hit in sorted(hits, key=lambda hit: hit.row):
        if hit.kind.depth >= _SYMPTOM and hit.kind.name != first.kind.name and hit.row != first.row:
            consequences.setdefault(hit.kind.title, set()).add(hit.row)
    rank = _RANK.search(lines[first.row].translate(ASCII_LOWER))
    return Failure(
        kind=kind.name,
        title=kind.title,
        cause=_filled(kind.cause, slots),
        change=kind.change,
        evidence=_evidence(lines[first.row], first),
        line=rows[first.row][0],
        rank=None if rank is None else int(next(filter(None, rank.groups()))),
        consequences=tuple(f"{title} ({plural(len(numbers), 'line')})" for title, numbers in consequences.items()),
        memory_gib=memory,
        plan=plan,
        source=kind.source,
    )


def failure_of_plan(failure: Failure | str, cluster: Cluster) -> Failure:
    """The failure, or that of a text, if another plan on the cluster avoids it; refuses others."""
    result = read_failure(failure) if isinstance(failure, str) else failure
    if not isinstance(result, Failure):
        raise CalibrationError(
            "The text shows no failure: pass the end of the log, with the lines around its first error."
        )
    if not result.of_plan:
        raise CalibrationError(f"Another plan does not avoid this failure ({result.title}). {result.change}")
    total, usable = result.memory_gib.get("total"), cluster.instance.usable_gpu_memory_gib
    if total is not None and not 0.9 < total / usable < 1.1:
        raise CalibrationError(
            f"The message is of a GPU with {total:.4g} GiB, and one of {cluster.instance.name} has {usable:.4g} GiB: "
            "use the advice for the instance of the run."
        )
    return result


def _rows(text: str) -> Iterator[tuple[int, str]]:
    """Numbers and texts of the lines that are read; a carriage return starts a new text of the same line."""
    parts = [(0, len(text))] if len(text) <= _FIRST + _LAST else [(0, _FIRST), (len(text) - _LAST, len(text))]
    for start, end in parts:
        number = 1 + text.count("\n", 0, start)
        for line in text[start:end].split("\n"):
            for piece in filter(str.strip, line.split("\r")):
                half = _LONGEST_LINE // 2
                yield number, _COLORS.sub("", piece if len(piece) <= 2 * half else piece[:half] + piece[-half:])
            number += 1


@cache
def _kinds() -> dict[str, _Kind]:
    def of(entry: dict[str, Any]) -> _Kind:
        named_first = sorted(entry["patterns"], key=lambda pattern: "(?P<" not in pattern)
        return _Kind(**{**entry, "patterns": tuple(map(Pattern.of, named_first))})

    return {entry["name"]: of(entry) for entry in data_file("runs", "failures")["kind"]}


def _hits(lines: list[str]) -> list[_Hit]:
    lowered = [line.translate(ASCII_LOWER) for line in lines]
    text = " ".join(lowered)
    patterns = [(kind, pattern) for kind in _kinds().values() for pattern in kind.patterns if pattern.literal in text]
    hits: list[_Hit] = []
    matched: set[int] = set()
    for row, line in enumerate(lowered):
        for kind, groups in _matches(patterns, line, lines[row]):
            hits.append(_Hit(kind, row, _depth(kind, line), groups))
            matched.add(row)
    for row in range(len(lines) - 1):  # a message that a line break divides
        if not {row, row + 1} & matched:
            joined = f"{lines[row][-_JOINED:].rstrip()} {lines[row + 1][:_JOINED].lstrip()}"
            low = joined.translate(ASCII_LOWER)
            matches = _matches(patterns, low, joined)
            hits += [_Hit(kind, row, _depth(kind, low), groups) for kind, groups in matches]
    for row, line in enumerate(lowered):  # an exception of no kind at the end of a traceback
        start = line[:_LONGEST_RAISED]
        any_name = any(word in start for word in ("error:", "exception:", "failure:"))
        match = _RAISED.search(start) if any_name and row not in matched else None
        if match and _BEFORE_RAISED.fullmatch(line, 0, match.start()):
            name, message = (lines[row][slice(*match.span(group))].strip() for group in ("name", "message"))
            cause = f"The script raised {name}: {message[:200]}".rstrip(".") + "."
            kind = replace(_UNKNOWN, title=f"exception {name}", cause=cause)
            hits.append(_Hit(kind, row, _EXCEPTION, {}))
    return hits


def _matches(patterns: list[tuple[_Kind, Pattern]], lowered: str, line: str) -> Iterator[tuple[_Kind, dict[str, str]]]:
    """Kinds that a line shows, with the named groups in its own case."""
    last = None
    if _INFORMATION in lowered:
        return
    for kind, pattern in patterns:
        if kind is not last and pattern.literal in lowered and (match := pattern.search.search(lowered)):
            last = kind
            spans = ((name, match.span(name)) for name, value in match.groupdict().items() if value)
            yield kind, {name: line[start:end].strip(" '\".,:;") for name, (start, end) in spans}


def _depth(kind: _Kind, lowered: str) -> int:
    """The depth of a kind in a line: a warning weighs less than an error, and one of a weak cause as a consequence."""
    warned = _WARNING.search(lowered[:200]) is not None
    return kind.depth if not warned else _SYMPTOM if kind.depth == 1 else kind.depth + 1


def _settled(steps: list[tuple[int, str]]) -> int:
    """The row from which on the log has lines of fewer than so many different steps; -1 without as many."""
    numbers = set()
    for row, number in reversed(steps):
        numbers.add(number)
        if len(numbers) == _WENT_ON:
            return row
    return -1


def _figures(message: str) -> dict[str, float]:
    """Figures of an out-of-memory message in GiB."""
    lowered, figures = message.translate(ASCII_LOWER), dict[str, float]()
    for name, patterns in _FIGURES.items():
        for pattern in patterns:
            if match := re.search(pattern, lowered):
                try:
                    figures[name] = float(match["size"].rstrip(".")) * _GIB[match["unit"]]
                except ValueError:
                    continue
                break
    if "reserved" not in figures and {"allocated", "unallocated"} <= figures.keys():
        figures["reserved"] = figures["allocated"] + figures["unallocated"]
    if {"total", "free", "reserved"} <= figures.keys():
        figures["outside"] = max(0.0, figures["total"] - figures["free"] - figures["reserved"])
    return figures


def _memory_kind(figures: Mapping[str, float]) -> str:
    """Whether the plan, another process or fragments of the allocator took the memory."""
    total, reserved = figures.get("total", 0.0), figures.get("reserved", 0.0)
    if figures.get("outside", 0.0) > max(_CONTEXT_GIB, figures.get("tried", 0.0)):
        return "gpu_taken"
    unallocated = reserved - figures.get("allocated", reserved)
    if unallocated >= max(figures.get("tried", 0.0), _FRAGMENTED * total) > 0:
        return "gpu_fragments"
    return "gpu_memory"


def _filled(template: str, slots: Mapping[str, str]) -> str:
    """The sentence with its slots; a part in brackets is left out if it lacks one."""

    def part(match: re.Match[str]) -> str:
        names = re.findall(r"{(\w+)}", match[1])
        return match[1].format(**slots) if all(slots.get(name) for name in names) else ""

    return re.sub(r"\[([^\[\]]*)\]", part, template)


def _evidence(line: str, hit: _Hit) -> str:
    """The line, or of a long one the part about the message."""
    text = " ".join(line.split())
    if len(text) <= _LONGEST_EVIDENCE:
        return text
    low = text.translate(ASCII_LOWER)
    start = min((match.start() for pattern in hit.kind.patterns if (match := pattern.search.search(low))), default=0)
    start = max(0, start - 60)
    cut = text[start : start + _LONGEST_EVIDENCE]
    return f"{'… ' if start else ''}{cut}{' …' if start + len(cut) < len(text) else ''}"
