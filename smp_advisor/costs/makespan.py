"""Length of a pipeline's step in closed form, for equal and unequal stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from smp_advisor.libraries.layout import Layout

    Floats = NDArray[np.float64]

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
    together = np.minimum(np.where(layout.simple_pipeline, microbatches, layout.active_microbatches), stages)
    rounds, remainder = np.divmod(microbatches - 1, np.maximum(together, 1))
    interleaved = rounds * stages + remainder + stages
    spans = np.where(layout.simple_pipeline, microbatches + stages - 1, interleaved)
    return microbatches + (spans - microbatches) / layout.virtual_stages


def makespan_seconds(layout: Layout, forward: Floats, backward: Floats, runs: Sequence[tuple[int, int]]) -> Floats:
    """Length of each plan's step in seconds, shape (n,), with immediate transfers.

    Parameters
    ----------
    forward, backward
        Seconds of one microbatch on a stage of each kind, shape (kinds, n).
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
    whole = forward + backward
    counts = np.array([count for _, count in runs], dtype=np.float64)
    order = [kind for kind, _ in runs]
    total = (counts[:, np.newaxis] * whole[order]).sum(axis=0)
    slowest: Floats = whole.max(axis=0)
    busy: Floats = microbatches * slowest
    if len(runs) == 1 and runs[0][1] == 1:
        return busy
    simple: Floats = total + (microbatches - 1) * (forward.max(axis=0) + backward.max(axis=0))
    if layout.simple_pipeline.all():
        return simple
    stages = int(counts.sum())
    active = np.minimum(layout.active_microbatches, microbatches)
    span = busy
    before, position = np.zeros(len(layout)), 0
    for kind, count in runs:
        # The waiting time is a convex function of the position among equal stages: one of the ends has the most.
        for index in {0, count - 1}:
            head = before + index * whole[kind]
            tail = total - head - whole[kind]
            others = np.minimum(active, stages - position - index) - 1
            first = np.maximum(tail - others * forward[kind], 0.0)
            last = np.maximum(tail - others * backward[kind], 0.0)
            # With all microbatches in flight, the wait for the first one to return is also that for the last one.
            wait = np.where(microbatches > others + 1, first + last, np.maximum(first, last))
            span = np.maximum(span, head + microbatches * whole[kind] + wait)
        before, position = before + count * whole[kind], position + count
    together = np.minimum(np.maximum(layout.active_microbatches, 1), stages)
    rounds, remainder = np.divmod(microbatches - 1, together)
    limited = total + rounds * np.maximum(total, together * slowest) + remainder * slowest
    span = np.where(active < np.minimum(stages, microbatches), np.maximum(span, limited), span)
    span = np.where(layout.simple_pipeline, simple, span)
    seconds: Floats = busy + (span - busy) / layout.virtual_stages
    return seconds
