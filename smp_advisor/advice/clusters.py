"""Other clusters for an advice, and the largest model, sequence and batch that its own cluster trains."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from smp_advisor.advice.request import question_of
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.library import plan_fields
from smp_advisor.search.clusters import COUNTS, Limits, best_on, places_of
from smp_advisor.search.sizes import compare
from smp_advisor.workload import Model, format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smp_advisor.advice.recommendation import Recommendation
    from smp_advisor.advice.request import Request
    from smp_advisor.cluster import Cluster, Instance
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.search.sizes import ClusterSizes, Progress
    from smp_advisor.session import Advice


def compare_clusters(
    advice: Recommendation | Advice,
    instances: Instance | str | Sequence[Instance | str] | None = None,
    counts: Sequence[int] | None = None,
    *,
    max_days: float | str | None = None,
    max_usd: float | str | None = None,
    max_gpu_hours: float | str | None = None,
    on_progress: Progress | None = None,
) -> ClusterSizes:
    """Return days, cost and memory of the best plan on other clusters, and the knee of each instance type.

    Parameters
    ----------
    instances
        An instance type, several, or ``"any"``; the advice's own type if None.
    counts
        Numbers of nodes; 16 numbers from 1 to 256 if None.
    max_days, max_usd, max_gpu_hours
        Deadline, budget and GPU-hours of the run.
    on_progress
        As for `advise`. An interrupt ends the comparison with the clusters compared by then.

    Raises
    ------
    AdvisorError
        The clusters or limits are not valid.

    Examples
    --------
    >>> import smp_advisor as smpa
    >>> advice = smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp", tokens="20B")
    >>> [size.cluster.nodes for size in advice.compare_clusters(counts=(1, 2)).sizes]
    [1, 2]
    """
    question = question_of(advice.request, advice.cluster).training(calibration=advice.job.calibration)
    limits = Limits.of(question.request.job, max_days=max_days, max_usd=max_usd, max_gpu_hours=max_gpu_hours)
    kinds = advice.cluster.instance if instances is None else instances
    places = places_of(kinds, None, limits=limits, library=question.library, counts=counts or COUNTS)
    clusters = tuple(dict.fromkeys((*places.clusters, advice.cluster)))
    here = replace(places, clusters=clusters, goal="cheapest", requested=advice.cluster)
    return compare(question, here, limits, on_progress)


_MOST_TOKENS, _MOST_SAMPLES, _MOST_PARAMETERS = 2**21, 2**16, 10**13
_LEAST_PARAMETERS = 10**8
_TOKENS, _TENTHS = 1024, 20
"""Steps of the answers: sequences of multiples of this many tokens, and models of this many sizes per factor of ten."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Largest:
    """The largest of each that fits with the required probability while everything else stays as requested."""

    parameters: int
    """Parameters of a bare count, in any library if the request leaves it open; 0 if none tried fits, or for a model
    that reads no tokens."""
    sequence_length: int
    """Tokens per sample, up to the positions of the model; 0 for a fixed length, or if none tried fits."""
    batch_size: int
    """Samples per replica and pass in the library of the plan; 0 for a library without this setting."""

    def __str__(self) -> str:
        parts = [
            *([f"a model of {format_count(self.parameters)} parameters"] if self.parameters else []),
            *([f"sequences of {self.sequence_length:,} tokens"] if self.sequence_length else []),
            *([f"a batch of {self.batch_size:,} per replica and pass"] if self.batch_size else []),
        ]
        return f"Largest that fits, each with the rest of the request: {', '.join(parts) or 'nothing that was tried'}."


def largest(request: Request, cluster: Cluster, plan: Plan) -> Largest:
    """Search the largest model, sequence and batch of a request on one cluster.

    Each answer is a size whose own search has a plan that fits. Above it, the next larger size that was tried has
    none; sizes in between are tried by bisection, which supposes that what fits at a size fits below it.
    """
    question = question_of(request, cluster)
    model, length = question.request.model, question.request.job.sequence_length

    def fits_model(step: int) -> bool:
        count = _count(step)
        return best_on(question.having(model=Model.from_parameters(count, sequence_length=length)), cluster).fits

    def fits_length(step: int) -> bool:
        return best_on(question.training(sequence_length=step * unit), cluster).fits

    def fits_batch(size: int) -> bool:
        pins = {**question.request.pins, "batch_size": size}
        return best_on(replace(question.having(pins=pins), library=plan.library), cluster).fits

    positions = min(model.shape.max_positions or _MOST_TOKENS, _MOST_TOKENS)
    unit = min(_TOKENS, positions)
    steps = 0 if model.fixed_sequence_length else positions // unit
    total = question.request.job.global_batch_size
    if "batch_size" not in plan_fields(plan.library):
        batch = 0
    elif total is None:
        batch = _last(fits_batch, _MOST_SAMPLES)
    else:  # only its divisors can be tried
        divisors = (size for size in range(min(total, _MOST_SAMPLES), 0, -1) if total % size == 0)
        batch = next((size for size in divisors if _tried(fits_batch, size)), 0)
    sizes = round(_TENTHS * math.log10(_MOST_PARAMETERS / _LEAST_PARAMETERS))
    return Largest(
        parameters=_count(step) if model.reads_tokens and (step := _last(fits_model, sizes)) else 0,
        sequence_length=unit * _last(fits_length, steps),
        batch_size=batch,
    )


def _count(step: int) -> int:
    """Return the parameters of a size, in two digits."""
    exact = _LEAST_PARAMETERS * 10 ** (step / _TENTHS)
    digits = int(math.log10(exact)) - 1
    return int(round(exact, -digits))


def _tried(fits: Callable[[int], bool], number: int) -> bool:
    try:
        return fits(number)
    except AdvisorError:  # a size that the library refuses
        return False


def _last(fits: Callable[[int], bool], most: int) -> int:
    """Return the last number up to `most` that fits, by doubling and bisection; 0 if one does not."""
    low, high = 0, 1
    while high <= most and _tried(fits, high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _tried(fits, middle) else (low, middle)
    return low
