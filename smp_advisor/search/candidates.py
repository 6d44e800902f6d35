"""Each library as a candidate for a run: the obstacle that excludes it, or its fastest plan."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from smp_advisor.core import GIB, MOST
from smp_advisor.core.files import data_file
from smp_advisor.core.words import plural
from smp_advisor.costs.evaluate import estimate, seconds_columns
from smp_advisor.costs.wording import percent
from smp_advisor.errors import AdvisorError, JobError, PlanError
from smp_advisor.libraries.layout import of_own_code
from smp_advisor.libraries.library import get_library, plan_fields
from smp_advisor.libraries.state_bytes import reduces_in_fp32
from smp_advisor.libraries.validation import undocumented_settings, unscripted_job
from smp_advisor.libraries.version import (
    default_version,
    has_plain_head,
    image,
    release,
    unconfirmed,
    unlisted_because,
    version_with,
    versions,
)
from smp_advisor.search.decision import least_regret_first
from smp_advisor.search.search import search
from smp_advisor.workload.job import OPTIMIZERS
from smp_advisor.workload.stack import AUTO

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.search.rank import Objective
    from smp_advisor.search.search import SearchResult
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

_SPARE_STATE = 0.5
"""Share of memory up to which the state of a replica leaves nothing to save by division."""
_SMALL_STATE = 0.1
"""The same for a plan that recomputes activations: dividing less than this does not spare it the recomputation."""
_NO_STATE = 0.03
"""Share of memory below which a division of the state saves nothing that anyone needs."""
_NO_WORK = 0.001
"""Share of the GPU's peak below which a step is launches and waits: its time does not rank libraries."""
Obstacle = Literal["setting", "job", "framework", "instance", "memory"]


@cache
def library_policy() -> SimpleNamespace:
    """Return the library for each case, which ``data/library_choice.toml`` explains."""
    return SimpleNamespace(**data_file("search", "library_choice"))


def titled(library: str) -> str:
    """Return the title of a library with its status: ``SMP v1 (archived since December 2023)``."""
    status = library_policy().status.get(library)
    return get_library(library).title + (f" ({status})" if status else "")


@dataclass(frozen=True, kw_only=True)
class Request:
    """The part of a request that decides which libraries can train it."""

    model: Model
    cluster: Cluster
    job: Job
    pins: Mapping[str, Any]
    user_settings: frozenset[str]
    """Names of the job's settings that the user set."""
    pytorch: tuple[int, ...] | None
    """Version of the script's PyTorch; None where it is free."""
    min_fit_probability: float
    unlisted: bool = False
    """Whether instances count that a library's image supports and no list of AWS names."""
    own_script: bool = False
    """Whether the user's script trains, instead of a generated one."""

    @property
    def fixed_settings(self) -> frozenset[str]:
        """Settings of the job that the search must not change: the user's, and all of a script of theirs."""
        return self.user_settings | {"stack"} if self.own_script else self.user_settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One library: its fastest plan, or the obstacle that excludes it."""

    library: str
    obstacle: Obstacle | None = None
    because: str = ""
    """The obstacle, as a phrase that follows the library's title and a colon."""
    tokens_per_second: float = 0.0
    samples: int = 0
    precision: str = ""
    replica_fits: bool = False
    """Whether only batch or fixed settings keep a library that does not divide the model from a plan that fits."""
    scripted: bool = True
    """Whether a script can be generated for the job, or the user has one."""
    fastest_divided: float = float("inf")
    """Tokens per second that a division of the model explains at most: those without the reduction of gradients, if a
    replica's state leaves half of the memory free, or nine tenths with recomputation; the plan's own where the state is
    tiny or the step does no work. Infinite where division also saves memory."""
    optimizer_seconds: float = 0.0


def job_for(library: str, request: Request) -> Job:
    """Return the job of a request with a library's own defaults for settings that the user did not set."""
    record, job, user_settings = get_library(library), request.job, request.user_settings
    precision = record.default_precision
    if precision == "bf16" and not request.cluster.instance.bf16:
        precision = "fp16"
    attention = record.default_attention
    version = pins_for(library, request).get("version")
    if version in versions(library) and release(image(library, version).framework_version) < (2,):
        attention = "eager"  # PyTorch has fused attention from version 2 on
    job = replace(
        job,
        precision=job.precision if "precision" in user_settings else precision,
        attention=job.attention if "attention" in user_settings or job.stack != AUTO else attention,
    )
    return of_own_code(job, library) if request.own_script else job


def pins_for(library: str, request: Request) -> dict[str, Any]:
    """Return the fixed fields of a request, with the version of a library whose container has the script's PyTorch."""
    if request.pytorch is None or library in library_policy().before_pytorch_2:
        return dict(request.pins)
    version = version_with(library, request.pytorch, request.cluster.instance)
    return {**({} if version == default_version(library) else {"version": version}), **request.pins}


_LOGIT_BYTES = 12
"""Bytes per logit of a plain loss (`training_settings.toml`)."""
_VISIBLE = 0.02
"""Least share of the memory of a GPU for which a lever is tried."""
_WORTH = 0.05
"""Least gain in speed for which a lever is part of the advice: what the cost model resolves."""
_WORTH_LESS_EXACT = 0.25
"""Least gain for which gradients are summed in 16 bits, which loses small ones."""
_REPLACED_LAYERS = ("tensor_parallel_degree", "context_parallel_degree", "expert_parallel_degree")
"""Degrees with which a library replaces layers, so that the generated script has no loss in chunks."""


def _levers(model: Model, cluster: Cluster, job: Job, library: str, user_settings: Collection[str]) -> dict[str, Any]:
    """Settings of the job that train the same model and that the user left open, where they may bring something."""
    of_gpu, levers = _VISIBLE * cluster.instance.usable_gpu_memory_gib * GIB, dict[str, Any]()
    if "stack" in user_settings or job.stack != AUTO or get_library(library).script != "torch":
        return levers
    logits = _LOGIT_BYTES * model.shape.vocab * model.sequence_length(job.sequence_length)
    if job.loss == "plain" and has_plain_head(model.family) and logits > of_gpu:
        levers["loss"] = "chunked"
    fuses = job.optimizer_step == "auto" and "fused" in OPTIMIZERS[job.optimizer].steps
    if fuses and not get_library(library).divides_model and job.adapter is None:
        levers["optimizer_step"] = "fused"  # replicas update with foreach, which copies
    if job.gradient_reduction == "auto" and reduces_in_fp32(job) and get_library(library).divides_model:
        levers["gradient_reduction"] = "16-bit"
    free = dict[str, Any]()
    for name, value in levers.items():
        with suppress(JobError):  # not every optimizer has a fused step
            if name not in user_settings and not undocumented_settings(library, replace(job, **{name: value})):
                free[name] = value
    return free


def free_search(
    model: Model,
    cluster: Cluster,
    job: Job,
    objective: Objective,
    terms: Mapping[str, Any],
    *,
    user_settings: Collection[str],
) -> tuple[Job, SearchResult]:
    """Return the search of a cluster, with those free settings of the job that make a model fit or train faster."""
    result, library = search(model, cluster, job, objective=objective, **terms), terms["library"]
    used = list[tuple[str, Any]]()
    for name, value in _levers(model, cluster, job, library, user_settings).items():
        if name == "optimizer_step" and len(result.ranked):
            continue  # it saves no speed that the cost model resolves
        if name == "gradient_reduction" and len(result.ranked) and not _waits(model, cluster, job, result):
            continue
        worth = _WORTH_LESS_EXACT if name == "gradient_reduction" else _WORTH
        changed, pins = replace(job, **{name: value}), dict(terms["pins"] or {})
        own = {degree: 1 for degree in _REPLACED_LAYERS if degree in plan_fields(library)}
        if name == "loss" and any(pins.get(degree, 1) != 1 for degree in own):
            continue
        with suppress(AdvisorError):
            candidate = search(model, cluster, changed, objective=objective, **{**terms, "pins": own | pins})
            if _gains(candidate, result, worth):
                used.append((name, getattr(job, name)))
                job, result = changed, candidate
    for name, before in used[:-1]:  # those after it may bring the same
        plain = replace(job, **{name: before})
        without = search(model, cluster, plain, objective=objective, **terms)
        if len(without.ranked) and not _gains(result, without, _WORTH):
            job, result = plain, without
    return job, result


def _waits(model: Model, cluster: Cluster, job: Job, result: SearchResult) -> bool:
    """Return whether the best plan waits long enough for its network that less of it could be worth less exact sums."""
    parts = seconds_columns(model, cluster, job, result.space.layout.take(result.ranked[:1]))
    total = sum(float(seconds[0]) for seconds in parts.values())
    return float(parts["data_parallel_seconds"][0]) > _WORTH_LESS_EXACT * total


def _gains(candidate: SearchResult, result: SearchResult, worth: float) -> bool:
    """Return whether a search with a lever fits where nothing did, comes nearer, or is faster by the share `worth`."""
    if not len(candidate.ranked) or not len(result.ranked):
        nearer = candidate.plans_enumerated and candidate.needed_gib.min() < result.needed_gib.min(initial=np.inf)
        return bool(len(candidate.ranked) or (not len(result.ranked) and nearer))
    value, own = (of.scores.tokens_per_second[0] * of.scores.worth[0] for of in (candidate, result))
    return bool(result.objective in ("throughput", "cost") and value > own * (1 + worth))


def candidate(library: str, request: Request, *, samples: int | None = None) -> Candidate:
    """Return a library's fastest plan for a request, or the obstacle that excludes it."""
    excluded = obstacle(library, request)
    if excluded is not None:
        return Candidate(library=library, obstacle=excluded[0], because=excluded[1])
    job = job_for(library, request)
    if samples is not None and job.global_batch_size is None:
        job = replace(job, global_batch_size=samples)
    terms = {
        "library": library, "min_fit_probability": request.min_fit_probability, "pins": pins_for(library, request)
    }  # fmt: skip
    try:
        job, result = free_search(
            request.model, request.cluster, job, "throughput", terms, user_settings=request.fixed_settings
        )
    except AdvisorError as error:
        return Candidate(library=library, obstacle="setting", because=str(error).removesuffix("."))
    if not len(result.ranked):
        return _too_large(library, request, job)
    tokens = request.model.sequence_length(job.sequence_length)
    parts = seconds_columns(request.model, request.cluster, job, result.space.layout.take(result.ranked[:1]))
    return Candidate(
        library=library,
        tokens_per_second=float(result.scores.tokens_per_second[0]),
        samples=round(float(result.scores.tokens_per_step[0]) / tokens),
        precision=job.precision,
        scripted=request.own_script
        or not unscripted_job(library, request.job, request.model, request.cluster.instance),
        fastest_divided=float("inf") if get_library(library).divides_model else _fastest_divided(request, job, result),
        optimizer_seconds=float(parts["optimizer_seconds"][0]) / float(result.scores.tokens_per_step[0]),
    )


def _fastest_divided(request: Request, job: Job, result: SearchResult) -> float:
    """Return the tokens per second of the best plan of unsharded replicas without the reduction of their gradients."""
    value = estimate(request.model, request.cluster, job, result.best())
    stage = value.memory.peak
    state = stage.parameters_gib + stage.gradients_gib + stage.optimizer_state_gib + stage.fp32_copies_gib
    if state < _NO_STATE * value.usable_gpu_memory_gib or value.mfu < _NO_WORK:
        return value.tokens_per_second
    share = _SMALL_STATE if value.plan.activation_checkpointing else _SPARE_STATE
    if state > share * value.usable_gpu_memory_gib:
        return float("inf")
    return value.tokens_per_second / (1 - value.time.data_parallel_seconds / value.time.total_seconds)


def _too_large(library: str, request: Request, job: Job) -> Candidate:
    """Return a library without a plan that fits, with the cause: the model itself, the batch or the fixed settings."""
    divides, fitting = get_library(library).divides_model, False
    # Whether the model fits with one sample on each GPU and without the fixed settings.
    single = replace(job, global_batch_size=request.cluster.gpus, max_tokens_per_step=MOST)
    version = {name: value for name, value in pins_for(library, request).items() if name == "version"}
    terms: dict[str, Any] = {"min_fit_probability": request.min_fit_probability, "pins": version}
    with suppress(AdvisorError):
        fitting = len(search(request.model, request.cluster, single, library=library, **terms).ranked) > 0
    if not fitting and divides:
        because = f"no plan fits with a probability of {percent(request.min_fit_probability)}"
    elif not fitting:
        because = "an entire replica does not fit on a GPU"
    elif job.global_batch_size is not None:
        because = f"no plan with a global batch of {plural(job.global_batch_size, 'sample')} fits"
    else:
        because = f"no plan {'with the fixed settings' if request.pins else 'within the limit of the batch'} fits"
    return Candidate(library=library, obstacle="memory", because=because, replica_fits=fitting and not divides)


def obstacle(library: str, request: Request) -> tuple[Obstacle, str] | None:
    """Return why a library can't train a request, before any plan is estimated."""
    lacks, record = sorted(set(request.pins) - plan_fields(library)), get_library(library)
    if lacks:
        return "setting", f"no setting {' or '.join(map(repr, lacks))}"
    if request.pins:
        with suppress(AdvisorError):  # only together with other settings, which the search adds
            plan = record.plan(library=library, **pins_for(library, request))
            for text in record.model_mismatches(plan, request.model, request.job):
                return "setting", text.rstrip(".")
    missing = undocumented_settings(library, request.job)
    if missing:
        return "job", f"documents no {missing[0]}"
    policy, version = library_policy(), request.pytorch
    if (
        version is not None
        and library not in policy.any_pytorch
        and (version < (2,)) != (library in policy.before_pytorch_2)
    ):
        needs = "PyTorch 2" if version < (2,) else "a PyTorch older than 2"
        return "framework", f"needs {needs}, and the script has {'.'.join(map(str, version))}"
    if library == policy.compiled and version is None:
        return "framework", "needs a PyTorch older than 2"
    machine = request.cluster.instance
    if request.unlisted and unconfirmed(library, machine):
        return None
    unlisted = unlisted_because(library, machine)
    return ("instance", unlisted) if unlisted else None


def allows_bf16(plan: Plan, cluster: Cluster) -> bool:
    """Return whether an fp16 plan also runs in bf16, which has the range of fp32 and needs no loss scaling."""
    if plan.precision != "fp16" or not cluster.instance.bf16 or "bf16" not in plan_fields(plan.library):
        return False
    try:
        replace(plan, fp16=False, bf16=True)
    except PlanError:
        return False
    return True


def fp16_reason(library: str, cluster: Cluster) -> str:
    """Return why a plan of a library trains in fp16, as a phrase."""
    if not cluster.instance.bf16:
        return f"{cluster.instance.gpu_label} does not compute in bf16"
    title = get_library(library).title
    if "bf16" in plan_fields(library):
        return f"{title} trains in bf16 only with sharded data parallelism, which this plan does not use"
    return f"AWS tested {title} in fp16"


def search_in_bf16_if_possible(
    model: Model,
    cluster: Cluster,
    job: Job,
    objective: Objective,
    terms: Mapping[str, Any],
    *,
    user_settings: frozenset[str],
) -> tuple[Job, SearchResult, tuple[Job, SearchResult]]:
    """Return the search of a cluster, in bf16 if the preferred plan allows it; and that which it was preferred to."""
    job, result = free_search(model, cluster, job, objective, terms, user_settings=user_settings)
    result = _surest(model, job, result)
    free = "precision" not in user_settings and not {"fp16", "bf16"} & set(terms["pins"] or {})
    if free and len(result.ranked) and allows_bf16(result.best(), cluster):
        in_bf16 = replace(job, precision="bf16")
        best = _surest(model, in_bf16, search(model, cluster, in_bf16, objective=objective, **terms))
        if len(best.ranked):
            return in_bf16, best, (job, result) if best.has_best_of(result) else (in_bf16, best)
    return job, result, (job, result)


def _surest(model: Model, job: Job, result: SearchResult) -> SearchResult:
    fast = len(result.ranked) > 1 and result.objective in ("throughput", "cost")
    return least_regret_first(model, job, result) if fast else result
