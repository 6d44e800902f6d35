"""Runs that are compared: of one process, without accumulation, on two nodes, after a kill, of another version."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from smp_advisor.rehearsal.contract import FIRST_NODE
from smp_advisor.rehearsal.findings import events, failures, near, other_parameters, ranks_of, same_batches, updates_of
from smp_advisor.rehearsal.report import Observed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.rehearsal.findings import Event, Stage
    from smp_advisor.rehearsal.report import Rehearsal

_NODES_TOLERANCE = 0.03
_EACH_UPDATE = 0.9
_TOLERANCE = 1e-3
"""Of losses and norms: gradients carry a mark of up to half of it, and sums are taken in another order."""


def updates_of_all(stage: Stage) -> list[tuple[float, float, int, int]]:
    """Of each update of the first optimizer on all ranks: mean loss, gradient norm, sum and number of samples."""
    updates = []
    per_rank = [updates_of(stage, rank) for rank in ranks_of(stage)]
    for together in zip(*per_rank, strict=False):
        loss = sum(entry[0] for entry in together) / len(together)
        square, parts = together[0][1], sum(entry[2] for entry in together)  # a norm is that of all ranks
        samples = sum(entry[3] for entry in together) % 2**56
        updates.append((loss, (square + parts) ** 0.5, samples, sum(entry[4] for entry in together)))
    return updates


def scale(several: Stage, reference: Stage, kind: str) -> tuple[list[Observed], str]:
    """Return the scale against the same samples on one process or in one batch; or why they were not compared."""
    factor = len(several["ranks"])
    before, after = f"with {factor} processes", "of one process with the same samples"
    if kind == "accumulation":
        factor = max(event["times"] for event in events(several, 0, "accumulation"))
        before, after = f"with {factor} microbatches", "without accumulation"
    if reference["failed"]:
        return [], f"the stage {reference['name']!r} stopped"
    mine, theirs = updates_of_all(several), updates_of_all(reference)
    if not mine or not theirs or factor < 2:
        return [], "no update"
    if mine[0][2] != theirs[0][2] or mine[0][3] != theirs[0][3]:
        return [], "the samples of the two runs differ"
    step, passed = events(several, 0, "step")[0], events(several, 0, "pass")[0]
    site = step["site"]
    is_of_library = "transformers" in step["libraries"] and passed["site"] == site
    names = ((1, "gradient norm"), (0, "loss")) if kind == "scale" else ((1, "gradient norm"),)
    for index, what in names:
        if not theirs[0][index]:
            continue
        ratio = mine[0][index] / theirs[0][index]
        expected = (factor, 1 / factor, factor**2, 1 / factor**2)
        if any(abs(ratio / value - 1) < 0.03 for value in expected):
            how = f"{'not divided' if ratio > 1 else 'divided twice'} by their number"
            text = f"the first {what} {before} is {ratio:.3f} times that {after}, as if it is {how}"
            text += ", in code of the library alone: it matters where gradients are clipped" if is_of_library else ""
            return [Observed(kind=kind, text=text, site=site, level="note" if is_of_library else "error")], ""
    return [], ""


def planned_rate(several: Stage, single: Stage | None) -> Iterator[Observed]:
    """A schedule that ends before the training does; where a loop may be left early, only if one process differs."""
    ends = [(_schedule_end(stage), stage) for stage in (several, single) if stage is not None]
    (mine, _), *further_ends = ends
    if mine is None:
        return
    planned, ended = mine
    single_end = further_ends[0][0] if further_ends else None
    depends = single_end is not None and single_end[1] >= 0.95 * single_end[0]
    if ended >= 0.8 * planned or not (depends or not any(event["leaves"] for event in events(several, 0, "loop"))):
        return
    text = f"the learning rate is zero after {ended:.0f} of {planned:.0f} updates"
    if single_end is not None and depends:
        world = len(several["ranks"])
        text = f"with {world} processes {text}, and with one process after {single_end[1]:.0f} of {single_end[0]:.0f}"
    yield Observed(kind="learning rate", text=text, site=events(several, 0, "step")[0]["site"])


def _schedule_end(stage: Stage) -> tuple[float, float] | None:
    """Planned updates, and the update after which the schedule is zero."""
    schedules = events(stage, 0, "schedule")
    loops = {event["key"]: event for event in events(stage, 0, "loop")}
    if not schedules or not loops or any(not event["size"] for event in loops.values()):
        return None
    inner = next(iter(loops.values()))  # its updates are seen first
    planned = math.prod(event["size"] for event in loops.values()) / max(1, inner["iterations"])
    last = schedules[-1]
    # One that steps by epoch steps more often in epochs that end early.
    if last["per_update"] < _EACH_UPDATE or last["zero_step"] is None:
        return None
    return planned, last["zero_step"] / last["per_update"]


def nodes(stage: Stage, several: Stage) -> Iterator[Observed]:
    """A second node that is taken for the first: at the start, or in the samples and the scale of the first update."""
    noted = partial(Observed, kind="node")
    for rank in ranks_of(stage):
        for event in events(stage, rank, "group"):
            world = len(stage["ranks"])
            if event["world_size"] not in (-1, world) or event["rank"] not in (-1, rank):
                text = f"on node {rank + 1} the script starts as rank {event['rank']} of {event['world_size']}, and is "
                yield noted(text=f"{text}rank {rank} of {world}: it takes the number on its node for its rank",
                            site=event["site"])  # fmt: skip
                return
            if event["address"] not in (FIRST_NODE, None):
                text = f"the script sets MASTER_ADDR to {event['address']}, where other nodes do not find the first one"
                yield noted(text=text, site=event["site"])
                return
    mine, theirs = updates_of_all(stage), updates_of_all(several)
    if stage["failed"] or not mine or not theirs or events(stage, 0, "tensor parallel"):
        return
    start = f"with {len(stage['ranks'])} nodes of one GPU"
    if mine[0][2:] == theirs[0][2:]:
        ratio = mine[0][1] / theirs[0][1] if theirs[0][1] else 1.0
        if abs(ratio - 1) > _NODES_TOLERANCE:
            text = f"{start} the first gradient norm is {ratio:.3f} times that of one node"
            yield noted(text=text, site=events(stage, 0, "step")[0]["site"])
    elif any(same_batches(stage)) and not any(same_batches(several)):
        text = f"{start} every rank has the same inputs: they are divided within a node only"
        yield noted(text=text, site=events(stage, 0, "pass")[0]["site"])


def resumed(killed: Stage, again: Stage | None, *, keeps_checkpoints: bool) -> Iterator[Observed]:
    """Yield whether a start after a kill goes on: parameters, optimizer and rates at its first update."""
    was_killed = any(events(killed, rank, "killed") for rank in ranks_of(killed))
    if not was_killed or again is None:
        if was_killed and keeps_checkpoints:
            text = "after a kill nothing is in /opt/ml/checkpoints to resume from"
            yield Observed(kind="resume", text=text, level="warning")
        return
    if again["failed"]:
        return  # its failure is reported
    before = events(killed, 0, "step")
    main = before[-1]["optimizer"] if before else 0  # others end before, such as that of a search of the rate
    before = [event for event in before if event["optimizer"] == main]
    after = next((event for event in events(again, 0, "step") if event["optimizer"] == main), None)
    if after is None or not before:
        return
    name, _ = max(killed["checkpoints"], key=lambda entry: entry[1])
    states = [*before, *events(killed, 0, "updated")[-1:]]
    matches = [number for number, state in enumerate(states) if _same_figures(state, after)]
    noted = partial(Observed, kind="resume", site=after["site"])
    if not matches:
        yield noted(text=f"after a kill the parameters are none of those that were saved ({name})")
        return
    steps = [events(again, rank, "step") for rank in ranks_of(again)]
    apart_now = next(other_parameters(steps), None) if len(steps) > 1 and all(steps) else None
    if apart_now is not None:
        yield noted(text=f"after a kill {apart_now.text}")
        return
    update = next((n for n in reversed(matches) if n < len(before) and _continues(before[n], after)), matches[-1])
    if update == 0 or (0 in matches and not after["states"]):
        text = f"after a kill the script starts from zero: {name} is in /opt/ml/checkpoints, and is not read"
        yield noted(text=text, level="warning" if keeps_checkpoints else "note")
        return
    drawn = [event["state"] for stage in (killed, again) for event in events(stage, 0, "random")[:1]]
    if events(killed, 0, "dropout") and len(drawn) == 2 and drawn[0] == drawn[1]:
        text = "after a kill the random numbers are those of the start: dropout repeats its masks"
        yield noted(text=text, level="note")
    if update >= len(before):
        return
    expected = before[update]
    number, count = update + 1, expected["states"]
    if count and not after["states"]:
        yield noted(text=f"after a kill the optimizer starts without its state: update {number} had {count} tensors")
    elif count and not near(expected["state"][1], after["state"][1], 1e-4):
        yield noted(text="after a kill the optimizer has another state")
    elif after["unread"]:
        text = f"after a kill the script does not read {after['unread'][0]!r} of its checkpoint"
        yield noted(text=text, level="warning")
    if any(not near(a, b, 1e-4) for a, b in zip(expected["rates"], after["rates"], strict=False)):
        rates = f"{after['rates'][0]:.4g}, and {expected['rates'][0]:.4g} without it"
        yield noted(text=f"after a kill the learning rate of update {number} is {rates}")
        return
    for (ours, ahead, what), (theirs, later, _) in zip(expected["schedules"], after["schedules"], strict=False):
        if theirs < ours and (ahead != later or not ahead) and len(expected["schedules"]) == len(after["schedules"]):
            level = "warning" if "scaler" in what else "error"  # it finds its scale in a few skipped updates
            yield noted(text=f"after a kill {what} is at step {theirs} again, and at {ours} without it", level=level)
            return


def _continues(expected: Event, after: Event) -> bool:
    """Whether an update has the state and the rates of another: with a rate of zero, parameters alone do not decide."""
    same_rates = all(near(a, b, 1e-4) for a, b in zip(expected["rates"], after["rates"], strict=False))
    return same_rates and bool(expected["states"]) == bool(after["states"])


def _same_figures(first: Event, second: Event) -> bool:
    pairs = [(first[name], second[name]) for name in ("parameters", "parts")]
    return all(near(a[1], b[1], 1e-6) and abs(a[0] - b[0]) <= 1e-5 * max(1.0, a[1] ** 0.5) for a, b in pairs)


def compared(result: Rehearsal, new: dict[str, Any], old: dict[str, Any]) -> Rehearsal:
    """Return the rehearsal of a script with what differs from that of another version.

    `new` and `old` are the records of both. The processes of each have different data where their loaders divide them.
    """
    first, second = new["stages"][0], old["stages"][0]
    if second["failed"]:
        failure = next(iter(failures(second)), None)
        text = f"the other version cannot be compared: {failure.text if failure else 'it stopped'}"
        return replace(result, findings=(*result.findings, Observed(kind="failure", text=text)))
    if first["failed"]:
        return result
    done: list[str] = []
    differences = [
        *_updates(first, second, done), *_parameters(first, second, done), *_saved(first, second, done)
    ]  # fmt: skip
    return replace(result, findings=(*result.findings, *differences), compared=tuple(done))


def _site(stage: dict[str, Any]) -> str:
    steps = events(stage, 0, "step")
    return str(steps[0]["site"]) if steps else ""


def _updates(first: dict[str, Any], second: dict[str, Any], done: list[str]) -> Iterator[Observed]:
    mine, theirs = updates_of_all(first), updates_of_all(second)
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
    rates = [[event["rates"] for event in events(stage, 0, "step")] for stage in (first, second)]
    if rates[0][:count] != rates[1][:count]:
        text = "the learning rates differ from those of the other version"
        yield Observed(kind="learning rate", text=text, site=_site(first))


def _parameters(first: dict[str, Any], second: dict[str, Any], done: list[str]) -> Iterator[Observed]:
    ends = [[events(stage, rank, "updated") for rank in ranks_of(stage)] for stage in (first, second)]
    counts = {len(updates) for ranks in ends for updates in ranks}
    if len(counts) != 1 or 0 in counts:
        return
    mine, theirs = (ranks[0][-1]["parameters"][1] + sum(r[-1]["parts"][1] for r in ranks) for ranks in ends)
    if near(mine, theirs, _TOLERANCE):
        done.append("parameters after the last update")
    else:
        text = f"the squares of the parameters sum to {mine:.6g} after the last update, and to {theirs:.6g} before"
        yield Observed(kind="parameters", text=text, site=_site(first))


def _saved(first: dict[str, Any], second: dict[str, Any], done: list[str]) -> Iterator[Observed]:
    names = [
        {(event["path"].rpartition("/")[2], event["elements"]) for event in events(stage, 0, "save")}
        for stage in (first, second)
    ]
    missing = sorted(names[1] - names[0])
    if missing:
        text = f"the other version saves {missing[0][0]} with {missing[0][1]:,} elements, and this one does not"
        yield Observed(kind="saved in part", text=text, level="warning")
    elif names[1]:
        done.append(f"{len(names[1])} saved files")
