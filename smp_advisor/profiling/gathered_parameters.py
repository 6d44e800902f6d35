"""Timeline of a step whose fp32 parameters are gathered in 16 bits, from the trace of a 16-bit model.

FSDP's mixed precision stores fp32 shards. A block is gathered in 16 bits for its pass, together with the next one, and
its 16-bit gradient is reduced to an fp32 one (PyTorch, ``MixedPrecisionPolicy``). Parameters outside the blocks belong
to the root and stay gathered. On one GPU a shard is the entire parameter.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from smp_advisor.profiling.polynomial import Polynomial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.profiling.result import BlockProfile, Segment

__all__ = ["gathered_bytes", "with_gathered_parameters"]

_GATHERED_BYTES = 2
_GATHERED_BLOCKS = 2
"""The block that runs, and the one that is gathered in the meantime."""


def gathered_bytes(parameter_count: int, blocks: Sequence[BlockProfile]) -> int:
    """Bytes of 16-bit parameters that exist at the same time."""
    in_blocks = sum(block.parameters for block in blocks)
    largest = sorted((block.parameters for block in blocks), reverse=True)[:_GATHERED_BLOCKS]
    outside = max(0, parameter_count - in_blocks)  # blocks that share parameters count them several times
    return _GATHERED_BYTES * min(parameter_count, outside + sum(largest))


def with_gathered_parameters(
    timeline: Sequence[Segment], *, gathered_bytes: int, gradient_bytes: int
) -> tuple[Segment, ...]:
    """The timeline with gathered parameters from its first to its last interval, and with fp32 gradients.

    Parameters
    ----------
    timeline
        Intervals of a model with 16-bit parameters and gradients.
    gathered_bytes
        Gathered parameters.
    gradient_bytes
        Bytes of all fp32 gradients. Half of it is in the timeline: the bytes that backward intervals add at any size.
    """
    if not timeline:
        return ()
    constants = [max(Fraction(0), part.change_bytes.coefficient(0, 0)) for part in timeline]
    grown = [
        value if part.phase == "backward" else Fraction(0) for part, value in zip(timeline, constants, strict=True)
    ]
    total = sum(grown)
    added = [value * Fraction(gradient_bytes, 2) / total if total else Fraction(0) for value in grown]
    if not total:
        added[-1] = Fraction(gradient_bytes, 2)
    segments = [
        replace(part, change_bytes=part.change_bytes + _constant(value), rise_bytes=part.rise_bytes + _constant(value))
        for part, value in zip(timeline, added, strict=True)
    ]
    gathered = _constant(Fraction(gathered_bytes))
    first = segments[0]
    segments[0] = replace(first, change_bytes=first.change_bytes + gathered, rise_bytes=first.rise_bytes + gathered)
    segments[-1] = replace(segments[-1], change_bytes=segments[-1].change_bytes - gathered)
    return tuple(segments)


def _constant(value: Fraction) -> Polynomial:
    return Polynomial(((value,),))
