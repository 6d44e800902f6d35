"""The result of a rehearsal: how it ended, what was seen with its evidence, and what was not looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.arguments.signatures import checked_class
from smp_advisor.core.files import data_file
from smp_advisor.core.words import escape

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """Something that the rehearsal saw."""

    kind: str
    """Kind of defect, a key of `KINDS`."""
    text: str
    """The observation, with ranks and figures."""
    level: str = "error"
    """``error`` ends or falsifies a training, ``warning`` costs, ``note`` is a fact."""
    site: str = ""
    """``file:line`` of the script; empty if there is none."""

    @property
    def line(self) -> int | None:
        """Line of the script."""
        number = self.site.rpartition(":")[2]
        return int(number) if number.isdigit() else None

    def __str__(self) -> str:
        where = f" ({self.site})" if self.site and self.site not in self.text else ""
        return f"{self.level}: {self.text}{where}"


KINDS: Mapping[str, str] = data_file("rehearsal", "kinds")
"""Kinds of findings that a rehearsal looks for."""
MOST_PROCESSES = 4
PROVOCATIONS = {
    "bad batch": "a bad batch on the last rank",
    "uneven": "an update less on the last rank",
    "order": "a loss that never falls on the last rank",
    "half": "numbers of 16 bits",
}
"""Stages that are made where the reading of a script suspects a kind."""


@checked_class
@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsal:
    """A rehearsal of a training script: a few updates on this machine, in the container's contract.

    Examples
    --------
    >>> smp_advisor.rehearse("train.py").findings  # doctest: +SKIP
    """

    script: str
    processes: int
    outcome: str
    """``ran to the end``, ``stopped after n updates``, or where it stopped and why."""
    updates: int
    findings: tuple[Observed, ...]
    """Errors and warnings, the earliest stage first."""
    notes: tuple[Observed, ...] = ()
    """Facts that cost nothing by themselves."""
    stages: tuple[tuple[str, str], ...] = ()
    """Each stage with how it ended."""
    stand_ins: tuple[str, ...] = ()
    """Parts that the job will have and this run had not: data, weights, kernels, precision."""
    observed: tuple[str, ...] = ()
    """Kinds that this run could have seen, keys of `KINDS`."""
    not_observed: tuple[tuple[str, str], ...] = ()
    """Kinds that it could not see, each with the reason."""
    copies: tuple[tuple[str, float, float], ...] = ()
    """``load`` or ``save``, and the copies of the fp32 model that the first process of a node and each other one have
    in host memory then. An advice that is rehearsed counts them."""
    versions: tuple[tuple[str, str], ...] = ()
    """Python and the libraries of the script, in the versions that ran."""
    reachable: tuple[str, ...] = ()
    """Places that the script could reach; empty if it saw only copies, and no network."""
    compared: tuple[str, ...] = ()
    """Behavior that was compared with another script."""
    processor_seconds: float = 0.0
    log: tuple[str, ...] = ()
    """Last lines of the rank that failed first, or of the first rank."""

    @property
    def ok(self) -> bool:
        """Whether every stage ran, and nothing was found. It promises nothing about kinds that were not observed."""
        return self.outcome != "" and not self.outcome.startswith(("stopped at", "not rehearsed")) and not self.findings

    @property
    def summary(self) -> str:
        """The result in one line."""
        count = len(self.findings)
        findings_text = "nothing found" if not count else f"{count} finding{'s' if count > 1 else ''}"
        return f"{self.script}: {self.outcome}; {findings_text}"

    @property
    def mark(self) -> str:
        """The mark of a plan: ``rehearsed: 2 processes, 6 updates, resumed, loads``."""
        if self.outcome.startswith(("stopped at", "not rehearsed")):
            return self.outcome
        parts = [f"{self.processes} processes", f"{self.updates} updates"]
        kinds = {finding.kind for finding in self.findings}
        if dict(self.stages).get("resumed") == "to the end" and "resume" not in kinds:
            parts.append("resumed")
        if "load" in self.observed and not kinds & {"load", "saved in part"}:
            parts.append("loads")
        if self.findings:
            parts.append(f"{len(self.findings)} finding{'s' if len(self.findings) > 1 else ''}")
        return f"rehearsed: {', '.join(parts)}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for files and assistants."""
        from dataclasses import asdict

        return asdict(self)

    def __str__(self) -> str:
        lines = [f"The script could reach {', '.join(self.reachable)}."] if self.reachable else []
        lines += [self.summary, *(f"- {finding}" for finding in (*self.findings, *self.notes))]
        for title, entries in self._parts():
            if entries:
                lines.append(f"{title}: {'; '.join(entries)}")
        return "\n".join(lines)

    def _parts(self) -> list[tuple[str, list[str]]]:
        loaded = "{} {:g} x the model in the first process of a node, {:g} x in each other"
        return [
            ("stages", [f"{name} {how}" for name, how in self.stages]),
            ("compared", list(self.compared)),
            ("stand-ins", list(self.stand_ins)),
            ("versions", [f"{name} {version}" for name, version in self.versions]),
            ("host memory", [loaded.format(*copies) for copies in self.copies]),
            ("looked at", [KINDS[kind] for kind in self.observed]),
            ("not looked at", [f"{KINDS[kind]} ({why})" for kind, why in self.not_observed]),
        ]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        del cycle
        printer.text(str(self))

    def _repr_html_(self) -> str:
        color = "var(--jp-success-color1, #1b7f3b)" if self.ok else "var(--jp-error-color1, #b3261e)"
        reach = f"<p>The script could reach {escape(', '.join(self.reachable))}.</p>" if self.reachable else ""
        items = "".join(f"<li>{escape(str(entry))}</li>" for entry in (*self.findings, *self.notes))
        parts = "".join(
            f"<details><summary>{escape(title)}</summary><ul>{''.join(f'<li>{escape(e)}</li>' for e in entries)}</ul>"
            "</details>"
            for title, entries in (*self._parts(), ("log", self.log))
            if entries
        )
        return (
            f'<div class="smp-advisor-result" style="border-left:3px solid {color};padding-left:10px;margin:4px 0">'
            f"<p><strong>{escape(self.summary)}</strong></p>{reach}<ul>{items}</ul>{parts}</div>"
        )
