"""How certain the choice is: the leading plans under joint draws of the cost model's errors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.arguments import options
from smp_advisor.costs.evaluate import seconds_columns
from smp_advisor.costs.predictive import layout_draws
from smp_advisor.costs.uncertainty import DIVISIONS, plan_divisions
from smp_advisor.search.rank import NEAR_BEST, batch_policy, first_of_each, policy, published_for
from smp_advisor.search.search import search

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from numpy.typing import NDArray

    from smp_advisor.search.rank import BatchPolicy
    from smp_advisor.search.search import SearchResult
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

    Floats = NDArray[np.float64]

FAMILIES = {
    "replicated": "data parallelism",
    "tensor": "tensor parallelism",
    "sharded": "sharded data parallelism",
    "pipeline": "pipeline parallelism",
    "offloaded": "offloading of activations",
}
"""Families of plans by the division of the model that the cost model's errors depend on."""

_CLOSE = 0.05
_LEADING_SHARE = 0.75
"""Plans below this share of the best speed are the best in hardly any draw."""


@dataclass(frozen=True, kw_only=True)
class BatchChoice:
    tokens_per_step: int
    policy: BatchPolicy | None
    """Target, cap and published batches; None for a batch of the user's."""
    cap_tokens: int | None
    """Limit of the search: the policy's cap or the job's `max_tokens_per_step`; None for a batch of the user's."""
    half: float | None
    """Speed of the best plan with half the batch over that of the chosen plan; None if none fits or was tried.
    Plans with more techniques than the chosen one do not count, here and in `twice`."""
    twice: float | None
    """The same for twice the batch, whether or not the cap allows it."""
    larger_gain: float
    """Gain in speed of the fastest plan with a larger batch up to the cap over the chosen plan; 0 if none is faster.
    Plans with more techniques count."""
    cap_binds: bool
    """Whether twice the batch would exceed the cap."""
    cap_cost: float
    """Share by which the best plan with twice the batch would be faster where the cap binds; else 0."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The choice under the cost model's uncertainty, from 64 joint draws of its errors."""

    near_best_probability: float
    """Probability that the chosen plan is within 3 % of the fastest plan that fits with no larger batch."""
    expected_regret: float
    """Expected share of the speed of that fastest plan that the chosen plan lacks."""
    family: str
    """Family of the chosen plan: one of `FAMILIES`."""
    indistinct: tuple[str, ...]
    """Other families whose best plan is not distinguishable in speed from the chosen plan."""
    published: str
    """Publication that uses the plan's family for the regime; empty if no other family is as fast or there is none."""
    close: int = 1
    """Number of compared plans, the chosen one among them, whose expected regrets are within 5 % of its own."""
    close_within: float = 0.0
    """The largest of these differences."""
    mfu: float = field(default=1.0, compare=False)
    """Model FLOPs utilization of the chosen plan."""
    compared: int
    """Number of plans that were drawn: the chosen one, the fastest of each family and of each number of techniques."""
    batch: BatchChoice


_NEIGHBORS = 1.5
"""Most samples of a neighbor of the user's batch, over those of the batch."""
_VISIBLE_GAIN = 0.1


def better_neighbor(model: Model, job: Job, result: SearchResult, terms: Mapping[str, Any]) -> tuple[int, float] | None:
    """A slightly larger batch than the user's that trains visibly faster, and its gain in speed; None without one.

    `terms` are the library, the required probability and the fixed settings of the search, as `search` takes them.
    """
    own = job.global_batch_size
    if own is None:
        return None
    multiples = (result.cluster.gpus, result.cluster.nodes, 2 ** (own - 1).bit_length())
    sizes = {-(-own // multiple) * multiple for multiple in multiples} - {own}
    best: tuple[int, float] | None = None
    for samples in sorted(size for size in sizes if size <= _NEIGHBORS * own):
        tokens = samples * model.sequence_length(job.sequence_length)
        ratio = _speed_with(model, job, result, tokens, terms) or 0.0
        if ratio >= 1 + _VISIBLE_GAIN and (best is None or ratio > 1 + best[1] + _VISIBLE_GAIN):
            best = samples, ratio - 1
    return best


def cost_of_certainty(
    model: Model, job: Job, result: SearchResult, terms: Mapping[str, Any]
) -> tuple[float, float] | None:
    """Speed that the required probability costs, and the probability of the faster plan; None below a tenth."""
    required = terms["min_fit_probability"]
    if result.objective not in ("throughput", "cost") or required <= 0.5:
        return None
    likely = search(model, result.cluster, job, objective=result.objective, **{**terms, "min_fit_probability": 0.5})
    gain = float(likely.scores.tokens_per_second[0] / result.scores.tokens_per_second[0]) - 1
    chance = NormalDist().cdf(float(likely.margin[likely.ranked[0]]))
    return (gain, chance) if gain > _VISIBLE_GAIN and chance < required else None


def decide(model: Model, job: Job, result: SearchResult, terms: Mapping[str, Any]) -> Decision:
    """Score the leading plans of a search under 64 draws, and the batch of the first."""
    leading = _leading(result)
    layout = result.space.layout.take(result.ranked[leading])
    speeds = _speeds(model, job, result, leading)
    best = speeds.max(axis=1)
    regrets = (1 - speeds / best[:, np.newaxis]).mean(axis=0)
    near = np.abs(regrets - regrets[0]) <= _CLOSE
    division, title = published_for(result.space.library, model.parameter_count)
    divisions = plan_divisions(layout)
    names = [FAMILIES[DIVISIONS[division]] for division in divisions.tolist()]
    indistinct = {
        name
        for name in set(names) - {names[0]}
        if _indistinct(speeds[:, 0], speeds[:, [family == name for family in names]].max(axis=1))
    }
    return Decision(
        near_best_probability=float((speeds[:, 0] >= (1 - NEAR_BEST) * best).mean()),
        expected_regret=float(regrets[0]),
        family=names[0],
        indistinct=tuple(sorted(indistinct)),
        published=title if indistinct and DIVISIONS[divisions[0]] == division else "",
        close=int(near.sum()),
        close_within=float(np.abs(regrets - regrets[0])[near].max()),
        compared=len(leading),
        batch=_batch_choice(model, job, result, terms),
    )


def least_regret_first(model: Model, job: Job, result: SearchResult) -> SearchResult:
    """The result, with the leading plan first that is expected to lose the least speed over the cost model's errors."""
    leading = _leading(result)
    scores = result.scores
    able = scores.tokens_per_second[leading] >= (1 - NEAR_BEST) * scores.tokens_per_second[0]
    for values in (scores.doublings_missing, scores.context_nodes, scores.nodes):
        able &= values[leading] <= values[0]
    leading = leading[able]
    if len(leading) < 2:
        return result
    speeds = _speeds(model, job, result, leading)
    regrets = (1 - speeds / speeds.max(axis=1)[:, np.newaxis]).mean(axis=0)
    good = leading[regrets <= regrets.min() + policy().equal_regret]
    first = int(good[scores.techniques[good].argmin()])
    if first == 0 or (0 in good and scores.techniques[0] <= scores.techniques[first]):
        return result
    order = np.concatenate([[first], np.delete(np.arange(len(result.ranked)), first)])
    return replace(
        result, ranked=result.ranked[order], scores=scores.take(order), step_seconds=result.step_seconds[order]
    )


def _speeds(model: Model, job: Job, result: SearchResult, leading: NDArray[np.intp]) -> Floats:
    """Return the tokens per second of the leading plans in every draw, shape (64, n)."""
    cluster, layout = result.cluster, result.space.layout.take(result.ranked[leading])
    moves = np.flatnonzero(layout.offload_activations)
    resident = layout.take(moves)
    resident = replace(resident, offload_activations=np.zeros_like(resident.offload_activations))
    draws = layout_draws(model, cluster, job, [layout, resident])
    # Moving activations only adds work, so no draw makes a plan faster than the same plan without it.
    draws[:, moves] = np.maximum(draws[:, moves], draws[:, len(layout) :])
    # The scores include the allocator's time near full memory, which the draws do not.
    predicted = sum(seconds_columns(model, cluster, job, layout).values())
    result_speeds: Floats = result.scores.tokens_per_second[leading] * predicted / draws[:, : len(layout)]
    return result_speeds


def _leading(result: SearchResult) -> NDArray[np.intp]:
    """Positions in `ranked` of the chosen plan, and of the fastest of each family and of each number of techniques."""
    scores, offloads = result.scores, result.space.layout.offload_activations[result.ranked]
    speed = np.where(scores.tokens_per_step <= scores.tokens_per_step[0], scores.tokens_per_second, 0.0)
    speed = np.where(offloads & (speed <= speed[~offloads].max(initial=0.0)), 0.0, speed)
    speed[0] = scores.tokens_per_second[0]
    near = np.flatnonzero(speed >= _LEADING_SHARE * speed.max())
    near = near[np.argsort(-speed[near], kind="stable")]
    of_family = near[first_of_each(plan_divisions(result.space.layout.take(result.ranked[near])))]
    of_number = near[first_of_each(scores.techniques[near])]
    leading = np.concatenate([np.zeros(1, dtype=np.intp), of_family, of_number])
    return leading[first_of_each(leading)]


def _indistinct(chosen: Floats, rival: Floats) -> bool:
    """Return whether neither of two families is faster by more than 3 % in enough draws."""
    ratio, enough = rival / chosen, policy().resolution_probability
    return bool((ratio >= 1 / (1 - NEAR_BEST)).mean() < enough and (ratio <= 1 - NEAR_BEST).mean() < enough)


def _batch_choice(model: Model, job: Job, result: SearchResult, terms: Mapping[str, Any]) -> BatchChoice:
    scores, own, cap = result.scores, job.global_batch_size is not None, job.max_tokens_per_step
    tokens, speed = int(scores.tokens_per_step[0]), float(scores.tokens_per_second[0])
    larger = scores.tokens_per_second[scores.tokens_per_step > tokens].max(initial=speed)
    binds = not own and 2 * tokens > cap
    half, twice = (
        _speed_with(model, job, result, size, terms) if own or size > cap else _best_ratio(result, size, result)
        for size in (tokens / 2, tokens * 2)
    )
    return BatchChoice(
        tokens_per_step=tokens,
        policy=None if own else batch_policy(model, job, result.cluster.gpus),
        cap_tokens=None if own else cap,
        half=half,
        twice=twice,
        larger_gain=0.0 if own else float(larger / speed - 1),
        cap_binds=binds,
        cap_cost=max(twice - 1, 0.0) if binds and twice is not None else 0.0,
    )


def _best_ratio(result: SearchResult, tokens: float, chosen: SearchResult) -> float | None:
    """Speed of the best plan of a batch, with no more techniques than the chosen plan, over its speed."""
    scores, own = result.scores, chosen.scores
    rows = (scores.tokens_per_step == tokens) & (scores.techniques <= own.techniques[0])
    best = scores.tokens_per_second[rows].max(initial=0.0)
    return float(best / own.tokens_per_second[0]) if best else None


def _speed_with(model: Model, job: Job, result: SearchResult, tokens: float, terms: Mapping[str, Any]) -> float | None:
    """Return the same by a search of its own with this global batch."""
    samples = tokens / model.sequence_length(job.sequence_length)
    most = options()["global_batch_size"].most
    if not 1 <= samples <= most or samples != int(samples) or {"batch_size", "microbatches"} & set(terms["pins"] or {}):
        return None
    job = replace(job, global_batch_size=int(samples))
    return _best_ratio(search(model, result.cluster, job, objective=result.objective, **terms), tokens, result)
