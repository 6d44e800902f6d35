"""Blocks to checkpoint for a given memory, with little recomputation."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.result_html import NotebookResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.profiling.result import Profile

__all__ = ["CheckpointChoice", "Interval", "block_paths", "cheapest_first", "checkpoint_choice", "peak_bytes"]


@dataclass(frozen=True, slots=True)
class Interval:
    """One interval of a step, in order, with both forms of its block: as it is, and checkpointed. Bytes."""

    block: int | None
    """Number of the block that runs in it; None between blocks."""
    is_forward: bool
    change: tuple[int, int]
    """Live memory at the end minus that at the start."""
    rise: tuple[int, int]
    """Peak within the interval minus live memory at the start."""


def peak_bytes(intervals: Sequence[Interval], checkpointed: Sequence[bool]) -> int:
    """Peak live memory of a step, with the choice for each block."""
    live = peak = 0
    for interval in intervals:
        form = interval.block is not None and checkpointed[interval.block]
        peak = max(peak, live + interval.rise[form])
        live += interval.change[form]
    return peak


def cheapest_first(intervals: Sequence[Interval], flops: Sequence[int], limit: int) -> tuple[bool, ...] | None:
    """Choice for each block whose peak is within a limit: those that repeat the fewest FLOPs per released byte.

    Of equal blocks, it has the fewest that fit. None if not even all blocks checkpointed are within the limit.
    """
    released = [0] * len(flops)
    for interval in intervals:
        if interval.is_forward and interval.block is not None:
            released[interval.block] = interval.change[0] - interval.change[1]
    order = sorted(range(len(flops)), key=lambda block: flops[block] / max(released[block], 1))
    choice = [False] * len(flops)
    for block in order:
        if peak_bytes(intervals, choice) <= limit:
            break
        choice[block] = True
    return tuple(choice) if peak_bytes(intervals, choice) <= limit else None


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointChoice(NotebookResult):
    """Modules to checkpoint so that a step stays within a limit of memory, with little recomputation."""

    name: str
    """Name of the model."""
    batch: int
    sequence: int
    memory_gib: float
    """The limit."""
    modules: tuple[str, ...]
    """Paths of the modules to checkpoint, in execution order; empty if the step fits without."""
    blocks: int
    """Number of blocks of the model."""
    peak_gib: float
    """Peak of a step with these modules checkpointed, excluding the allocator's reserve and the CUDA context."""
    plain_peak_gib: float
    """Peak without checkpointing."""
    full_peak_gib: float
    """Peak with every block checkpointed."""
    time_share: float
    """Time added to forward and backward pass, as a share of them, in proportion to FLOPs."""
    full_time_share: float
    """The same with every block checkpointed."""

    @property
    def ranges(self) -> str:
        """The modules as text, with consecutive numbers joined: ``model.layers.0 to 11``."""
        parts: list[str] = []
        for parent, group in groupby(self.modules, key=lambda path: path.rpartition(".")[0]):
            runs: list[list[str]] = []
            for name in (path.rpartition(".")[2] for path in group):
                follows = runs and name.isdecimal() and runs[-1][-1].isdecimal()
                if follows and int(name) == int(runs[-1][-1]) + 1:
                    runs[-1].append(name)
                else:
                    runs.append([name])
            prefix = f"{parent}." if parent else ""
            parts += [prefix + (run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}") for run in runs]
        return ", ".join(parts)

    @property
    def summary(self) -> str:
        """The choice in one line."""
        peak = f"{self.peak_gib:.2f} GiB of {self.memory_gib:g} GiB"
        if not self.modules:
            return f"{self.name} needs no activation checkpointing: its peak is {peak}."
        return (
            f"Checkpoint {len(self.modules)} of {self.blocks} blocks of {self.name}: peak {peak}, "
            f"{self.time_share:.1%} more time in forward and backward pass."
        )

    @property
    def findings(self) -> tuple[tuple[str, str], ...]:
        """Label and text of each figure."""
        size = f"batch {self.batch}" + (f", {self.sequence:,} tokens" if self.sequence > 1 else "")
        rows = [
            ("Modules", self.ranges or "none"),
            ("Size", size),
            ("Without checkpointing", f"{self.plain_peak_gib:.2f} GiB"),
            ("Every block", f"{self.full_peak_gib:.2f} GiB, {self.full_time_share:.1%} more time"),
            ("Excluded", "the allocator's reserve and the CUDA context; time is in proportion to FLOPs"),
        ]
        if 0 < len(self.modules) < self.blocks:
            order = "those that repeat the least work per released byte come first; another choice may be cheaper"
            rows.append(("Order", order))
        return tuple(rows)

    _repr_pretty_ = NotebookResult._repr_pretty_


def checkpoint_choice(
    profile: Profile, memory_gib: float, *, batch: int | None, sequence: int | None, persistent_gradients: bool
) -> CheckpointChoice:
    """Choose the blocks to checkpoint; see `Profile.checkpoint_for`."""
    batch = _size("batch", profile.batch if batch is None else batch)
    sequence = _size("sequence", profile.sequence if sequence is None else sequence)
    value: object = memory_gib
    gib = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not 0 < gib < math.inf:
        raise ProfileError(f"memory_gib must be a positive number of GiB, not {memory_gib!r}.")
    intervals = _intervals(profile, batch, sequence)
    flops = [block.forward_flops(batch, sequence) for block in profile.blocks]
    everything, plain = (
        profile.peak_memory(batch, sequence, checkpointing=on, persistent_gradients=persistent_gradients)
        for on in (True, False)
    )
    resting = plain.parameters_bytes + plain.optimizer_state_bytes + profile.input_bytes(batch, sequence)
    passes = profile.gradient_bytes if persistent_gradients else 0
    limit = int(gib * 2**30) - resting
    optimizer_step = profile.gradient_bytes + profile.optimizer_rise_bytes
    choice: tuple[bool, ...] = (False,) * len(flops)
    peak = plain.peak_bytes
    if peak > resting + limit:
        cheapest = cheapest_first(intervals, flops, limit - passes) if optimizer_step <= limit else None
        if cheapest is None:
            raise ProfileError(
                f"No choice of checkpointed blocks fits {profile.name} in {memory_gib:g} GiB: with every block"
                f" checkpointed, the peak is {everything.peak_gib:.2f} GiB. Use a smaller batch, or shard the model."
            )
        choice = cheapest
        peak = resting + max(optimizer_step, passes + peak_bytes(intervals, choice))
    work = max(1, profile.forward_flops(batch, sequence) + profile.backward_flops(batch, sequence))
    recomputed = sum(cost for cost, chosen in zip(flops, choice, strict=True) if chosen)
    return CheckpointChoice(
        name=profile.name,
        batch=batch,
        sequence=sequence,
        memory_gib=gib,
        modules=tuple(path for path, chosen in zip(block_paths(profile), choice, strict=True) if chosen),
        blocks=len(flops),
        peak_gib=peak / 2**30,
        plain_peak_gib=plain.peak_gib,
        full_peak_gib=everything.peak_gib,
        time_share=recomputed / work,
        full_time_share=sum(flops) / work,
    )


def _size(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 2**24:
        raise ProfileError(f"{name} must be a positive number, at most {2**24:,}, not {value!r}.")
    return value


def _intervals(profile: Profile, batch: int, sequence: int) -> list[Interval]:
    """The traced step, with the form of each interval with and without checkpointing.

    A block is taken to release the smallest of three traced figures: that of its forward pass, that of its backward
    pass, and its saved bytes minus its input. They differ where blocks share tensors, which stay while one block needs
    them. Where all blocks together release less than their sum, the difference is added to the interval.
    """
    count, size = len(profile.blocks), (batch, sequence)
    lines = (profile.timeline, profile.checkpointed_timeline)
    # One interval before, between and after the blocks of the forward pass, and one before those of the backward pass.
    order = ["forward"] * (2 * count + 1) + ["backward"] * (count + 1)
    if not count or any([segment.phase for segment in line] != order for line in lines):
        raise ProfileError(
            f"The step of {profile.name} was not traced block by block with and without checkpointing, so that no"
            " choice of blocks can be computed."
        )
    plain, recomputing = ([(part.change_bytes(*size), part.rise_bytes(*size)) for part in line] for line in lines)
    changes = [usual[0] - checkpointed[0] for usual, checkpointed in zip(plain, recomputing, strict=True)]
    released = [
        min(
            changes[2 * place + 1],
            -changes[3 * count + 1 - place],
            block.saved_bytes(*size) - block.input_bytes(*size),
        )
        for place, block in enumerate(profile.blocks)
    ]
    owners = [place // 2 if place % 2 else None for place in range(2 * count + 1)] + [None, *reversed(range(count))]
    intervals: list[Interval] = []
    total = difference = 0
    for place, block in enumerate(owners):
        is_forward = order[place] == "forward"
        (change, rise), (_, checkpointed_rise) = plain[place], recomputing[place]
        step = 0 if block is None else released[block] if is_forward else -released[block]
        extra = max(0, total - difference)
        rises = (rise + extra, (rise if block is None else checkpointed_rise) + extra)
        intervals.append(Interval(block, is_forward, (change, change - step), rises))
        total += step
        difference += changes[place]
    return intervals


def block_paths(profile: Profile) -> tuple[str, ...]:
    """Path of every block in execution order.

    Equal blocks have the path of the first of their kind. The others follow by number where the first ones' numbers
    are their places; a place without a known path is ``path (block 7)``.
    """
    places: Counter[str] = Counter()
    derived: list[str] = []
    regular: dict[str, bool] = {}
    met: set[str] = set()
    for block in profile.blocks:
        parent, _, _ = block.name.rpartition(".")
        derived.append(f"{parent}.{places[parent]}" if parent else str(places[parent]))
        if block.name not in met:
            regular[parent] = regular.get(parent, True) and derived[-1] == block.name
        met.add(block.name)
        places[parent] += 1
    return tuple(
        path if regular[block.name.rpartition(".")[0]] else f"{block.name} (block {place})"
        for place, (block, path) in enumerate(zip(profile.blocks, derived, strict=True))
    )
