"""Length of a pipeline's step in closed form, for equal and unequal stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.elementwise import anywhere, inverted, largest, maximum, minimum, where

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.elementwise import Floats
    from smp_advisor.libraries.layout import Layout


__all__ = ["makespan_seconds", "makespan_slots"]


def makespan_slots(layout: Layout) -> Floats:
    """Length of each plan's step in slots, for equal stages, shape (n,).

    A slot is one forward and one backward pass of a stage. Without a pipeline this is the number of microbatches; the
    excess over it is the bubble. The result equals that of `simulate` for equal stages and immediate transfers, for any
    ratio of backward to forward (a property test compares them): ``active`` microbatches pass through the pipeline
    together, one slot apart, and the next ones start when the first returns after ``stages`` slots. Virtual stages
    divide the time to fill the pipeline by their number (Narayanan et al. 2021, arXiv 2104.04473, section 2.2).
    """
    stages, microbatches = layout.pipeline_parallel_degree, layout.microbatches
    together = minimum(where(layout.simple_pipeline, microbatches, layout.active_microbatches), stages)
    rounds, remainder = divmod(microbatches - 1, maximum(together, 1))
    interleaved = rounds * stages + remainder + stages
    spans = where(layout.simple_pipeline, microbatches + stages - 1, interleaved)
    return microbatches + (spans - microbatches) / layout.virtual_stages


def makespan_seconds(
    layout: Layout, forward: Sequence[Floats], backward: Sequence[Floats], runs: Sequence[tuple[int, int]]
) -> Floats:
    """Length of each plan's step in seconds, shape (n,), with immediate transfers.

    Parameters
    ----------
    forward, backward
        Seconds of one microbatch on a stage, by kind of stage.
    runs
        (kind, number of consecutive stages of it), in the order of the stages. All plans have these stages.

    Notes
    -----
    Filling and draining the pipeline takes the sum over the stages, every other microbatch the slowest stage. With
    ``pipeline="simple"`` that is exact for any stages: the forward passes, and then the backward passes, are a flow
    shop of equal jobs. In the interleaved order a stage works on later microbatches while the stages behind it work on
    its first (or last) one, so the slowest stage waits only for the part of their time that its other microbatches in
    flight do not fill. The result is a lower bound of `simulate`, equal to it for equal stages and within a tenth for
    others as long as `active_microbatches` does not limit the pipeline (property tests compare them).
    """
    microbatches = layout.microbatches
    both = [first + second for first, second in zip(forward, backward, strict=True)]
    total: Floats = sum((count * both[kind] for kind, count in runs), 0.0)
    slowest = largest(both)
    busy: Floats = microbatches * slowest
    if len(runs) == 1 and runs[0][1] == 1:
        return busy
    simple: Floats = total + (microbatches - 1) * (largest(forward) + largest(backward))
    if not anywhere(inverted(layout.simple_pipeline)):
        return simple
    stages = sum(count for _, count in runs)
    active = minimum(layout.active_microbatches, microbatches)
    span = busy
    before: Floats = 0.0
    position = 0
    for kind, count in runs:
        # The waiting time is a convex function of the position among equal stages: one of the ends has the most.
        for index in {0, count - 1}:
            head = before + index * both[kind]
            tail = total - head - both[kind]
            behind = minimum(active, stages - position - index) - 1
            first = maximum(tail - behind * forward[kind], 0.0)
            last = maximum(tail - behind * backward[kind], 0.0)
            # With all microbatches in flight, the wait for the first one to return is also that for the last one.
            wait = where(microbatches > behind + 1, first + last, maximum(first, last))
            span = maximum(span, head + microbatches * both[kind] + wait)
        before, position = before + count * both[kind], position + count
    together = minimum(maximum(layout.active_microbatches, 1), stages)
    rounds, remainder = divmod(microbatches - 1, together)
    limited = total + rounds * maximum(total, together * slowest) + remainder * slowest
    span = where(active < minimum(stages, microbatches), maximum(span, limited), span)
    span = where(layout.simple_pipeline, simple, span)
    seconds: Floats = busy + (span - busy) / layout.virtual_stages
    return seconds
