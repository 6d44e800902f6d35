"""Two versions of a script: what the runs of both show to be the same, and what differs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.rehearsal import findings as judge
from smp_advisor.rehearsal.report import Observed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.rehearsal.report import Rehearsal

_TOLERANCE = 1e-3
"""Of losses and norms: gradients carry a mark of up to half of it, and sums are taken in another order."""


def compared(result: Rehearsal, new: dict[str, Any], old: dict[str, Any]) -> Rehearsal:
    """The rehearsal of a script with what differs from that of another version.

    `new` and `old` are the records of both. The processes of each have different data where their loaders divide them.
    """
    first, second = new["stages"][0], old["stages"][0]
    if second["failed"]:
        failure = next(iter(judge.failures(second)), None)
        text = f"the other version cannot be compared: {failure.text if failure else 'it stopped'}"
        return replace(result, findings=(*result.findings, Observed(kind="failure", text=text)))
    if first["failed"]:
        return result
    done: list[str] = []
    differences = [
        *_updates(first, second, done), *_parameters(first, second, done), *_saved(first, second, done),
        *_collectives(first, second, done),
    ]  # fmt: skip
    return replace(result, findings=(*result.findings, *differences), compared=tuple(done))


def _site(stage: dict[str, Any]) -> str:
    steps = judge.events(stage, 0, "step")
    return str(steps[0]["site"]) if steps else ""


def _updates(first: dict[str, Any], second: dict[str, Any], done: list[str]) -> Iterator[Observed]:
    mine, theirs = judge.updates_of_all(first), judge.updates_of_all(second)
    count = min(len(mine), len(theirs))
    if not count:
        yield Observed(kind="scale", text="no update of both versions could be compared", level="warning")
        return
    same = [a[2] == b[2] and a[3] == b[3] for a, b in zip(mine, theirs, strict=False)]
    if not all(same):
        text = f"update {same.index(False) + 1} has other samples than in the other version: losses are not compared"
        yield Observed(kind="same batches", text=text, site=_site(first), level="warning")
        return
    for number, (a, b) in enumerate(zip(mine, theirs, strict=False), 1):
        for index, what in ((0, "loss"), (1, "norm of the gradients")):
            if abs(a[index] - b[index]) > _TOLERANCE * max(abs(a[index]), abs(b[index]), 1e-6):
                text = f"the {what} of update {number} is {a[index]:.5g}, and {b[index]:.5g} in the other version"
                yield Observed(kind="scale", text=text, site=_site(first))
                return
    done += [f"{count} losses", f"{count} norms of gradients"]
    rates = [[event["rates"] for event in judge.events(stage, 0, "step")] for stage in (first, second)]
    if rates[0][:count] != rates[1][:count]:
        text = "the learning rates differ from those of the other version"
        yield Observed(kind="learning rate", text=text, site=_site(first))


def _parameters(first: dict[str, Any], second: dict[str, Any], done: list[str]) -> Iterator[Observed]:
    totals = []
    for stage in (first, second):
        events = [judge.events(stage, rank, "updated") for rank in judge.ranks_of(stage)]
        if not all(events):
            return
        number = min(map(len, events)) - 1
        totals.append((events[0][number]["parameters"][1] + sum(e[number]["parts"][1] for e in events), number))
    (mine, count), (theirs, second_count) = totals
    if count == second_count:
        if abs(mine - theirs) > _TOLERANCE * max(mine, theirs):
            text = f"the squares of the parameters sum to {mine:.6g} after the last update, and to {theirs:.6g} before"
            yield Observed(kind="parameters", text=text, site=_site(first))
        else:
            done.append("parameters after the last update")


def _saved(first: dict[str, Any], second: dict[str, Any], done: list[str]) -> Iterator[Observed]:
    names = [
        {(event["path"].rpartition("/")[2], event["elements"]) for event in judge.events(stage, 0, "save")}
        for stage in (first, second)
    ]
    missing = sorted(names[1] - names[0])
    if missing:
        text = f"the other version saves {missing[0][0]} with {missing[0][1]:,} elements, and this one does not"
        yield Observed(kind="saved in part", text=text, level="warning")
    elif names[1]:
        done.append(f"{len(names[1])} saved files")


def _collectives(first: dict[str, Any], second: dict[str, Any], done: list[str]) -> Iterator[Observed]:
    counts = [len(judge.events(stage, 0, "collective")) for stage in (first, second)]
    if (counts[0] and not counts[1]) or (counts[1] and not counts[0]):
        text = f"this version has {counts[0]} collectives, and the other one {counts[1]}"
        yield Observed(kind="order", text=text, level="note")
    done.append(f"{counts[0]} collectives in one order on all ranks")
