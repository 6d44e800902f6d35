"""Why a training job failed: its log or FailureReason, read for the root cause and the change that fixes it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from smp_advisor.arguments.signatures import checked, checked_class
from smp_advisor.core.files import data_file, rows, sentence
from smp_advisor.core.tables import Shown
from smp_advisor.core.words import plain, plural
from smp_advisor.errors import CalibrationError
from smp_advisor.libraries.plan import Plan
from smp_advisor.runs.processes import ASCII_LOWER, Line, Pattern, Raised, lines_of, phase_at, raised_in, step_of
from smp_advisor.runs.readers import Log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from smp_advisor.cluster.cluster import Cluster

_FIRST, _LAST = 2**18, 2**20
"""Characters at the start and at the end of a longer log that are read."""
_LONGEST_QUOTE = 200
_LONGEST_EVIDENCE = 300
_JOINED = 160
"""Characters of two lines on both sides of a break inside a message."""
_NEAR = 400
"""Lines before a message in which a fact looks for what else it needs."""
_WENT_ON = 10
"""Finished steps after a message that show that the job survived it."""
_LOOSE, _WEAK, _SYMPTOM = 1, 2, 3
"""Depths of a root cause outside of an exception and of an exception of no kind; of a weak cause outside of an
exception; of consequences of other failures."""
_GIB = {"b": 2.0**-30, "bytes": 2.0**-30, "kib": 2.0**-20, "mib": 2.0**-10, "gib": 1.0, "tib": 2.0**10}
_SIZE = r"(?P<size>\d[\d.]*) ?(?P<unit>bytes|[kmgt]ib)\b"
_CONTEXT_GIB = 3.0
"""Most of a GPU that CUDA's context and NCCL's buffers take; more outside PyTorch is another process."""
_FRAGMENTED = 0.1
"""Share of the GPU that is reserved and not allocated from which on the allocator's fragments are the cause."""


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """A mechanism of failure: a kind of ``failures.toml``, or a fact of ``mechanisms.csv``."""

    name: str
    title: str
    patterns: tuple[Pattern, ...]
    cause: str
    change: str
    source: str
    depth: int = 0
    is_fact: bool = False
    applies: str = ""
    """Library and versions."""
    phases: tuple[str, ...] = ()
    """Phases of the job in which it applies; empty for all."""
    near: re.Pattern[str] | None = None
    """Pattern for the traceback or the lines before, in lower case."""

    @classmethod
    def of(cls, entry: Mapping[str, Any], patterns: Iterable[str], *, is_fact: bool) -> _Kind:
        """Return the mechanism of an entry of the data files."""
        named_first = sorted(patterns, key=lambda pattern: "(?P<" not in pattern)
        return cls(
            name=entry["name"],
            title=entry["title"],
            patterns=tuple(map(Pattern.of, named_first)),
            cause=entry["cause"],
            change=entry["change"],
            source=entry["source"],
            depth=int(entry.get("depth") or 0),
            is_fact=is_fact,
            applies=f"{entry['library']} {entry['versions']}" if entry.get("versions") else "",
            phases=tuple(entry.get("phases", "").split()),
            near=Pattern.of(entry["near"]).search if entry.get("near") else None,
        )


_UNKNOWN = _Kind(name="exception", title="", patterns=(), cause="", change="", source="", depth=_LOOSE)


_NONE: tuple[_Kind, dict[str, str]] = (_UNKNOWN, {})


@dataclass(frozen=True)
class _Hit:
    """A line or an exception of a kind."""

    kind: _Kind
    row: int
    depth: int
    groups: Mapping[str, str]
    raised: Raised | None = None


@checked_class
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
    phase: str = ""
    """Phase of the job: ``image``, ``download``, ``start``, ``load``, ``step``, ``evaluation``, ``save``, ``upload``,
    ``end`` or ``local``; empty if the log does not show it."""
    ended: bool = True
    """Whether the text shows an end of a process: an exception, a launcher's report, or a message that is a fact."""
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
        return self.kind in ("gpu_memory", "gpu_fragments")  # not outside of steps, which no plan changes

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


@checked
def read_failure(text: str, *, plan: Plan | None = None) -> Failure | None:
    """Return why a training job failed; None if nothing in the text shows it.

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
    parts = [(1, text)]
    if len(text) > _FIRST + _LAST:
        start = len(text) - _LAST
        parts = [(1, text[:_FIRST]), (1 + text.count("\n", 0, start), text[start:])]
    lines = lines_of(parts)
    hits = list(_survivors(_hits(lines), lines))
    if not hits:
        return None
    # The deepest cause, and of equally deep ones the first: later ones are its echoes on other ranks.
    first = min(hits, key=lambda hit: (hit.depth, hit.row))
    # Whether the plan, another process or fragments took the memory shows in the figures of the message alone.
    memory = _figures(" ".join(line.text for line in lines[first.row : first.row + 6]))
    kind, memory = (first.kind, {}) if first.kind.name != "gpu_memory" or first.kind.is_fact else (first.kind, memory)
    if memory:
        kind = _kinds()[_memory_kind(memory)]
    phase = phase_at(lines, first.row, first.raised.frames if first.raised else "")
    slots = {**first.groups, **{name: f"{gib:.2f}" for name, gib in memory.items()}}
    consequences: dict[str, set[int]] = {}
    for hit in sorted(hits, key=lambda hit: hit.row):
        if hit.kind.depth >= _SYMPTOM and hit.kind.name != first.kind.name and hit.row != first.row:
            consequences.setdefault(hit.kind.title, set()).add(hit.row)
    cause, change = _sentences(kind, first, slots, lines)
    return Failure(
        kind=kind.name,
        title=kind.title or f"exception {first.raised.name if first.raised else ''}".strip(),
        cause=cause,
        change=change,
        evidence=_evidence(lines[first.row], first),
        line=lines[first.row].number,
        rank=lines[first.row].rank,
        phase=phase,
        ended=any(hit.raised or hit.kind.is_fact or hit.kind.depth >= _SYMPTOM for hit in hits),
        consequences=tuple(f"{title} ({plural(len(numbers), 'line')})" for title, numbers in consequences.items()),
        memory_gib=memory,
        plan=plan,
        source=kind.source,
    )


def failure_of_plan(failure: Failure | str, cluster: Cluster) -> Failure:
    """Return the failure, or that of a text, if another plan on the cluster avoids it; refuses others."""
    result = read_failure(failure) if isinstance(failure, str) else failure
    if not isinstance(result, Failure):
        raise CalibrationError(
            "The text shows no failure: pass the end of the log, with the lines around its first error."
        )
    if not result.of_plan:
        raise CalibrationError(f"Another plan does not avoid this failure ({result.title}). {result.change}")
    total, usable = result.memory_gib.get("total"), cluster.instance.usable_gpu_memory_gib
    if total is not None and not 0.9 < total / usable < 1.1:
        raise CalibrationError(sentence("runs", "other_gpu", total=total, cluster=cluster, usable=usable))
    return result


@cache
def _kinds() -> dict[str, _Kind]:
    entries = data_file("runs", "failures")["kind"]
    return {entry["name"]: _Kind.of(entry, entry["patterns"], is_fact=False) for entry in entries}


@cache
def _facts() -> tuple[_Kind, ...]:
    entries = rows("smp_advisor.runs", "data/mechanisms.csv")
    return tuple(_Kind.of(entry, entry["patterns"].split(" || "), is_fact=True) for entry in entries)


@cache
def _benign() -> tuple[Pattern, ...]:
    return tuple(map(Pattern.of, data_file("runs", "failures")["benign"]))


def _hits(lines: Sequence[Line]) -> Iterator[_Hit]:
    """Signs of a failure: exceptions by their position, and lines that a pattern matches."""
    log_text = " ".join(line.text for line in lines).translate(ASCII_LOWER)
    patterns = [
        (kind, pattern)
        for kind in (*_facts(), *_kinds().values())
        for pattern in kind.patterns
        if pattern.literal in log_text
    ]
    benign = [pattern for pattern in _benign() if pattern.literal in log_text]
    read: set[int] = set()
    for raised in raised_in(lines):
        read.add(raised.row)
        text = f"{raised.name}: {raised.message}"
        # The fact of an exception, or else its kind of the least depth; full memory in whatever called for it.
        matches = list(_matches(patterns, text, lines, raised.row, raised))
        full = [match for match in matches if match[0].name.startswith("gpu_memory")]
        kind, groups = min(full or matches, key=lambda match: (not match[0].is_fact, match[0].depth), default=_NONE)
        depth = kind.depth if kind.is_fact or kind.depth >= _SYMPTOM else kind.depth and _LOOSE
        yield _Hit(kind, raised.row, depth, groups, raised)
    matched: set[int] = set()
    for row, line in enumerate(lines):
        if row in read or line.quiet or any(p.search.search(line.text.translate(ASCII_LOWER)) for p in benign):
            continue
        for kind, groups in _matches(patterns, line.text, lines, row):
            matched.add(row)
            yield _Hit(kind, row, _depth_outside(kind), groups)
    for row in range(len(lines) - 1):  # a message that a line break divides
        if {row, row + 1} & (matched | read) or lines[row].quiet or lines[row + 1].quiet:
            continue
        joined = f"{lines[row].text[-_JOINED:].rstrip()} {lines[row + 1].body[:_JOINED].lstrip()}"
        if any(pattern.search.search(joined.translate(ASCII_LOWER)) for pattern in benign):
            continue
        for kind, groups in _matches(patterns, joined, lines, row):
            yield _Hit(kind, row, _depth_outside(kind), groups)


def _depth_outside(kind: _Kind) -> int:
    """Depth of a kind in a line that is no exception: less certain, except for facts."""
    if kind.is_fact or kind.depth >= _SYMPTOM:
        return kind.depth
    return _WEAK if kind.depth else _LOOSE


def _matches(
    patterns: list[tuple[_Kind, Pattern]], text: str, lines: Sequence[Line], row: int, raised: Raised | None = None
) -> Iterator[tuple[_Kind, dict[str, str]]]:
    """Yield the facts and kinds that a text shows, with the named groups in its own case."""
    lowered, last = text.translate(ASCII_LOWER), None
    for kind, pattern in patterns:
        # One match of a kind is enough. The literal is a quick test: few patterns are searched in a line.
        if kind is last or pattern.literal not in lowered or not (match := pattern.search.search(lowered)):
            continue
        frames = "" if raised is None else raised.frames
        if kind.phases and phase_at(lines, row, frames) not in kind.phases:
            continue
        if kind.near is not None:
            before = (line.text for line in lines[max(row - _NEAR, 0) : row + 1])
            if not kind.near.search("\n".join((frames, text, *before)).translate(ASCII_LOWER)):
                continue
        last = kind
        # Searched in lower case, quoted as it was printed.
        spans = ((name, match.span(name)) for name, value in match.groupdict().items() if value)
        yield kind, {name: text[start:end].strip(" '\".,:;") for name, (start, end) in spans}


def _survivors(hits: Iterable[_Hit], lines: Sequence[Line]) -> Iterator[_Hit]:
    """Yield the hits that can have ended the job.

    Left out are those after which the job finished ten more steps, those that torchrun lists as later ones, exceptions
    after which the same process raised another one, and of exceptions that follow from each other all but one.
    """
    hits = list(hits)
    of_loss = {hit.row for hit in hits if hit.kind.name == "loss"}
    steps = [(row, step) for row, line in enumerate(lines) if (step := step_of(line))]
    settled, finite = _settled(steps), _settled([entry for entry in steps if entry[0] not in of_loss])
    start, later = -1, set[int]()
    for row, line in enumerate(lines):  # its list of failures is before the first observed one
        if line.text.rstrip().endswith("Failures:"):
            start = row
        elif start >= 0 and "Root Cause (first observed failure)" in line.text:
            later.update(range(start, row))
            start = -1
    handled = _handled(hits, lines)
    for hit in hits:
        limit = finite if hit.kind.name == "loss" else settled
        if hit.row >= limit and hit.row not in later and not (hit.raised and hit.row in handled):
            yield hit


def _handled(hits: Iterable[_Hit], lines: Sequence[Line]) -> set[int]:
    """Rows of exceptions after which their process raised others, and of all but one that follow from each other."""
    handled: set[int] = set()
    last: dict[str, _Hit] = {}
    for hit in hits:
        if hit.raised is None or hit.depth >= _SYMPTOM:
            continue
        process = lines[hit.row].process
        before = last.get(process)
        if before is None:
            last[process] = hit
        elif hit.raised.chain:
            keep = min(before, hit, key=lambda candidate: (candidate.kind is _UNKNOWN, candidate.depth))
            if before.kind is _UNKNOWN and hit.kind is _UNKNOWN and hit.raised.chain == "handled":
                keep = hit
            handled.add((hit if keep is before else before).row)
            last[process] = keep
        else:
            if process and before.raised is not None and hit.raised.name != before.raised.name:
                handled.add(before.row)
            last[process] = hit
    return handled


def _settled(steps: list[tuple[int, str]]) -> int:
    """Return the row from which on the log has lines of fewer than so many different steps; -1 without as many."""
    numbers = set()
    for row, number in reversed(steps):
        numbers.add(number)
        if len(numbers) == _WENT_ON:
            return row
    return -1


def _figures(message: str) -> dict[str, float]:
    """Return figures of an out-of-memory message in GiB."""
    lowered, figures = message.translate(ASCII_LOWER), dict[str, float]()
    for name, patterns in data_file("runs", "lines")["memory"].items():
        for pattern in patterns:
            if match := re.search(pattern.replace("{size}", _SIZE), lowered):
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
    """Return whether the plan, another process or fragments of the allocator took the memory."""
    total, reserved = figures.get("total", 0.0), figures.get("reserved", 0.0)
    if figures.get("outside", 0.0) > max(_CONTEXT_GIB, figures.get("tried", 0.0)):
        return "gpu_taken"
    unallocated = reserved - figures.get("allocated", reserved)
    if unallocated >= max(figures.get("tried", 0.0), _FRAGMENTED * total) > 0:
        return "gpu_fragments"
    return "gpu_memory"


def _sentences(kind: _Kind, hit: _Hit, slots: Mapping[str, str], lines: Sequence[Line]) -> tuple[str, str]:
    """Return the event and the change that fixes it."""
    processes = len({line.process for line in lines if line.process})
    looked = plural(len(lines), "line") + (f" of {processes} processes" if processes > 1 else "")
    if kind is _UNKNOWN and hit.raised is not None:
        message = hit.raised.message
        shown = f"{hit.raised.name}: {message[:_LONGEST_QUOTE]}" if message else hit.raised.name
        at = re.findall(r'File "([^"]{1,200})", line (\d+)', hit.raised.frames)
        where = f" at line {at[-1][1]} of {at[-1][0]}" if at else ""
        change = f"The cause is unknown: no fact has this message. Looked at: {looked}, whose deepest exception this is"
        return f"The script raised {shown}".rstrip(".") + ".", f"{change}{where}; read the lines of its traceback."
    change = re.sub(r"{(\w+)}", lambda match: slots.get(match[1], match[0]), kind.change)
    if kind.depth > _SYMPTOM:
        change = f"{change} Looked at: {looked}, with no exception of the script in them."
    if kind.applies:
        change = f"{change} (Applies to {kind.applies}.)"
    return _filled(kind.cause, slots), change


def _filled(template: str, slots: Mapping[str, str]) -> str:
    """Return a sentence of the data files with its slots; a part in brackets is left out if it lacks one.

    Texts of the log are put in last, so that nothing in them is read as a template.
    """

    def part(match: re.Match[str]) -> str:
        return match[1] if all(slots.get(name) for name in re.findall(r"{(\w+)}", match[1])) else ""

    sentence = re.sub(r"\[([^\[\]]*)\]", part, template)
    return re.sub(r"{(\w+)}", lambda match: slots.get(match[1], ""), sentence)


def _evidence(line: Line, hit: _Hit) -> str:
    """Return the line, or of a long one the part about the message."""
    text = " ".join(line.text.split())
    if len(text) <= _LONGEST_EVIDENCE:
        return text
    low = text.translate(ASCII_LOWER)
    start = min((match.start() for pattern in hit.kind.patterns if (match := pattern.search.search(low))), default=0)
    start = max(0, start - 60)
    cut = text[start : start + _LONGEST_EVIDENCE]
    return f"{'… ' if start else ''}{cut}{' …' if start + len(cut) < len(text) else ''}"
