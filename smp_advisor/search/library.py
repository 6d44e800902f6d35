"""The library for a run, from instance, framework, settings and model, with the reason and the other libraries."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isinf
from typing import TYPE_CHECKING

from smp_advisor.cluster.cluster import Cluster
from smp_advisor.core.files import sentence
from smp_advisor.core.tables import number
from smp_advisor.costs.wording import SAME, listed, percent, sample_unit
from smp_advisor.errors import AdvisorError, InstanceError, NoPlanFitsError, PlanError
from smp_advisor.libraries.library import get_library, libraries, plan_fields
from smp_advisor.libraries.training_compiler import nearest_tested
from smp_advisor.libraries.validation import unscripted_job
from smp_advisor.libraries.version import default_of, default_version, images, release, require_supported_instance
from smp_advisor.search.candidates import (
    Candidate,
    Request,
    candidate,
    free_search,
    job_for,
    library_policy,
    obstacle,
    pins_for,
    titled,
)
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from smp_advisor.search.search import SearchResult

_TOKENS_PER_PARAMETER = 20
_SAMPLES = 1_000_000
_RESOLVED = 0.05
"""Gain in throughput that the cost model resolves between libraries."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryChoice:
    """A library, the reason for choosing it, and how the others compare."""

    library: str
    because: str
    """Its title with its status, and the reason; empty for a requested library."""
    comparisons: tuple[str, ...] = ()
    """One sentence for each other library of the framework."""


def choose_library(request: Request, framework: str | None = None) -> LibraryChoice:
    """Choose the library for a run by ``library_choice.toml``; `framework` is the script's (``"pytorch 1.13"``)."""
    name, _ = framework_of(framework)
    policy = library_policy()
    if name == "tensorflow":
        require_supported_instance(policy.tensorflow, request.cluster.instance)
        title = get_library(policy.tensorflow).title
        reason = f"{title} is the only model-parallel library for TensorFlow. SMP v2 supports PyTorch only."
        return LibraryChoice(library=policy.tensorflow, because=f"{titled(policy.tensorflow)}. {reason}")
    usual = _usual(request)
    if all(entry.obstacle for entry in usual) and any(entry.obstacle == "instance" for entry in usual):
        request = replace(request, unlisted=True)
        usual = _usual(request)
    chosen, reason = _preferred(usual, request)
    samples = chosen.samples or None
    further = tuple(
        candidate(library, request, samples=samples)
        for library in (policy.archived, policy.compiled)
        if library != chosen.library
    )
    comparisons = tuple(
        _compared(_with_the_batch(rival, chosen, request), chosen, request)
        for rival in (*usual, *further)
        if rival.library != chosen.library
    )
    parts = [
        f"{titled(chosen.library)}.",
        reason,
        _one_gpu(chosen, request),
        require_supported_instance(chosen.library, request.cluster.instance),
    ]
    return LibraryChoice(library=chosen.library, because=" ".join(filter(None, parts)), comparisons=comparisons)


def preferred_library(request: Request) -> Candidate:
    """Return the library of a run that AWS's list of the instance allows."""
    return _preferred(_usual(request), request)[0]


def searches_of_all(request: Request) -> list[SearchResult]:
    """The searches of every usual library that can train a request, none of which needs to have a plan that fits."""
    results, least = [], request.min_fit_probability
    for library in (name for name in library_policy().order if obstacle(name, request) is None):
        of_run = request.model, request.cluster, job_for(library, request)
        terms = {"library": library, "min_fit_probability": least, "pins": pins_for(library, request)}
        with suppress(AdvisorError):  # a fixed setting that the library refuses
            results.append(free_search(*of_run, "throughput", terms, user_settings=request.fixed_settings)[1])
    return results


def _usual(request: Request) -> tuple[Candidate, ...]:
    order = library_policy().order if request.job.adapter is None else library_policy().order_of_adapters
    return tuple(candidate(library, request) for library in order)


def framework_of(text: str | None) -> tuple[str, tuple[int, ...] | None]:
    """Return the name and version of a framework: ``pytorch 1.13`` is ("pytorch", (1, 13))."""
    if text is None:
        return "pytorch", None
    match = re.fullmatch(r"(pytorch|torch|tensorflow|tf)[ =-]*([0-9]+(?:\.[0-9]+)*)?", text.strip().lower())
    if match is None:
        raise PlanError(f"framework must be 'pytorch' or 'tensorflow', optionally with a version, not {text!r}.")
    name = {"torch": "pytorch", "tf": "tensorflow"}.get(match[1], match[1])
    return name, release(match[2]) if match[2] else None


def _scripted(fitting: list[Candidate], dividing: list[Candidate], request: Request) -> list[Candidate]:
    """The candidates with a generated script; all of them if only the optimizer, of the user's code, has none."""
    scripted = [entry for entry in fitting if entry.scripted]
    if scripted or not fitting:
        return scripted
    job = replace(request.job, optimizer="adam", paged_optimizer=False)
    objection = unscripted_job(fitting[0].library, job, request.model, request.cluster.instance, only=True)
    if objection and not dividing:
        raise NoPlanFitsError(objection)
    return [] if objection else fitting


def _preferred(usual: tuple[Candidate, ...], request: Request) -> tuple[Candidate, str]:
    policy = library_policy()
    compiled = _compiled(usual[0], request)
    if compiled is not None:
        return compiled
    fitting = [entry for entry in usual if entry.obstacle is None]
    # Without any plan that fits, the search of the first library that could divide the model reports by how much.
    dividing = [entry for entry in usual if entry.obstacle == "memory" and get_library(entry.library).divides_model]
    fitting = _scripted(fitting, dividing, request)
    if fitting:
        chosen = fitting[0]
        for entry in fitting[1:] if request.cluster.gpus > 1 else ():
            if min(entry.tokens_per_second, fitting[0].fastest_divided) >= chosen.tokens_per_second * (1 + policy.gain):
                chosen = entry
        # An image that AWS no longer patches only where no patched one fits.
        rivals = [entry for entry in fitting if _patched_versions(entry.library, request)]
        fastest = max(rivals, key=lambda entry: entry.tokens_per_second, default=chosen)
        patched = chosen if chosen in rivals else fastest
        reason = _reason(patched, usual, request)
        if patched is not chosen:
            gain = chosen.tokens_per_second / patched.tokens_per_second - 1
            faster = f", whose plan is estimated {percent(gain)} faster: name the library to take it"
            title, own = (get_library(entry.library).title for entry in (chosen, patched))
            version = default_of(patched.library, _patched_versions(patched.library, request))
            values = {"own": own, "version": version, "title": title}
            reason = f"{reason} {sentence('search', 'patched', faster=faster if gain >= SAME else '', **values)}"
        return patched, reason
    archived = candidate(policy.archived, request)
    if archived.obstacle is None or (archived.obstacle == "memory" and not dividing):
        if request.job.training == "dpo" and not request.own_script:
            archived = usual[0]  # the archived library has no script for preferences
        return archived, _reason(archived, usual, request)
    if archived.obstacle != "instance" or not request.pytorch:
        for entry in (*dividing, *(entry for entry in usual if entry.obstacle == "memory")):
            return entry, _reason(entry, usual, request)
    raise _no_library(archived, request)


def _patched_versions(library: str, request: Request) -> list[str]:
    """Versions of a library with an image that AWS patches and that has code for the GPU, of those requested."""
    version = pins_for(library, request).get("version")
    usable = [image for image in images(library) if image.is_patched and version in (None, image.version)]
    return [image.version for image in usable if image.drives(request.cluster.instance)]


def _compiled(replicated: Candidate, request: Request) -> tuple[Candidate, str] | None:
    """Training Compiler, for an old script and a model that fits on one GPU and that AWS tested with it."""
    compiled, machine = library_policy().compiled, request.cluster.instance
    entry = candidate(compiled, request)
    if replicated.obstacle is not None or request.pytorch is None or entry.obstacle not in {None, "memory"}:
        return None
    length = request.model.sequence_length(request.job.sequence_length)
    row = nearest_tested(request.model, machine, length, default_version(compiled))
    if row is None or row.factor <= 1:
        return None
    return entry, sentence("search", "tested", machine=machine, row=row)


def _reason(chosen: Candidate, usual: tuple[Candidate, ...], request: Request) -> str:
    machine, policy = request.cluster.instance, library_policy()
    title, first = get_library(chosen.library).title, usual[0]
    before = [entry for entry in usual if entry.library != chosen.library]
    lacking = [entry for entry in before if entry.obstacle in {"setting", "job"}]
    if len(lacking) == len(before):
        current = "" if chosen.library == policy.archived else "Of the current libraries, "
        has = _requirements(lacking, request)
        of_family = (
            " for this family" if any(set(request.pins) <= plan_fields(entry.library) for entry in lacking) else ""
        )
        return f"{current}{'o' if current else 'O'}nly {title} has {has}{of_family}."
    if chosen.library == policy.archived and any(entry.obstacle == "framework" for entry in usual):
        version = ".".join(map(str, request.pytorch or ()))
        return f"{title} runs with PyTorch {version}. SMP v2 and FSDP need PyTorch 2."
    if chosen is first:
        return f"An entire replica fits on one {machine.gpu_label}, so model parallelism is not required."
    if first.obstacle is None:
        gain = chosen.tokens_per_second / first.tokens_per_second - 1
        first_title = get_library(first.library).title
        return sentence("search", "faster", machine=machine, title=title, gain=percent(gain), other=first_title)
    need = f"No entire replica fits on one {machine.gpu_label}, so the model must be divided."
    if first.obstacle != "memory" or first.replica_fits:
        need = f"{get_library(first.library).title}: {first.because}."
    unlisted = next((entry.because for entry in before if entry.obstacle == "instance"), "")
    if unlisted:
        need = f"{need} {unlisted}."
    if request.job.adapter is not None and chosen.library == policy.order_of_adapters[1]:
        need = f"{need} AWS trains adapters with PEFT, and SMP v2 would only shard their model, too."
    if chosen.library == policy.archived:
        return f"{need} No plan of {listed([get_library(entry.library).title for entry in before])} fits."
    return need


def _one_gpu(chosen: Candidate, request: Request) -> str:
    """Return whether one small instance trains the model in a day; empty if it does not."""
    name, day = library_policy().smallest_instance, 86_400
    small, tokens = Cluster(name, 1), request.model.sequence_length(request.job.sequence_length)
    if isinf(chosen.fastest_divided) or request.cluster.gpus == 1 or request.pins:
        return ""
    alone = candidate(chosen.library, replace(request, cluster=small))
    daily = alone.tokens_per_second * day
    # Without an amount, that of the tokens per parameter which Hoffmann et al. 2022 (arXiv 2203.15556) find best, and
    # about the images of ImageNet.
    reads = request.model.reads_tokens
    usual = _TOKENS_PER_PARAMETER * request.model.parameter_count if reads else _SAMPLES * tokens
    needed = request.job.tokens or usual
    if alone.obstacle is not None or daily < needed:
        return ""
    if request.job.tokens:
        return f"One {name} is enough: it trains in {number(24 * needed / daily)} hours."
    amount = (
        f"{format_count(daily)} tokens" if reads else f"{format_count(daily / tokens)} {sample_unit(request.model)}"
    )
    return f"One {name} is enough if you train no more than {amount} a day."


def _requirements(lacking: list[Candidate], request: Request) -> str:
    """Return the fixed settings and kinds of training that some libraries lack."""
    fields = plan_fields(lacking[0].library).intersection(*(plan_fields(entry.library) for entry in lacking))
    missing = [repr(name) for name in request.pins if name not in fields]
    jobs = dict.fromkeys(entry.because.removeprefix("documents no ") for entry in lacking if entry.obstacle == "job")
    return listed([*missing, *jobs])


def _with_the_batch(rival: Candidate, chosen: Candidate, request: Request) -> Candidate:
    """Return a faster rival with the batch of the chosen library: a larger one alone is no merit of a library."""
    larger = request.job.global_batch_size is None and 0 < chosen.samples < rival.samples
    if not larger or rival.tokens_per_second < chosen.tokens_per_second * (1 + _RESOLVED):
        return rival
    same = candidate(rival.library, request, samples=chosen.samples)
    return rival if same.obstacle is not None else same


_OF_OPTIMIZER = "because its GPUs share the optimizer step"
_OF_LAYERS = "because of its code or precision, not because the model is divided"


def _compared(rival: Candidate, chosen: Candidate, request: Request) -> str:
    title = get_library(rival.library).title
    name = title if rival.library in library_policy().order else titled(rival.library)
    if rival.obstacle is not None:
        return f"{name}: {rival.because.removeprefix(title).strip().partition(': ')[0]}."
    if not chosen.tokens_per_second:
        return f"{name} has a plan that fits."
    gain = rival.tokens_per_second / chosen.tokens_per_second - 1
    speed = "about as fast" if abs(gain) < _RESOLVED else f"{percent(gain)} {'faster' if gain > 0 else 'slower'}"
    notes = [f"in {rival.precision}"] if rival.precision != chosen.precision else []
    if gain >= _RESOLVED and rival.tokens_per_second > chosen.fastest_divided:
        saved = 1 / chosen.tokens_per_second - 1 / rival.tokens_per_second
        is_of_optimizer = chosen.optimizer_seconds - rival.optimizer_seconds > saved / 2
        notes.append(_OF_OPTIMIZER if is_of_optimizer else _OF_LAYERS)
    if rival.library not in library_policy().order and request.job.global_batch_size is None:
        notes.append("with the same batch")
    if not rival.scripted:
        notes.append("but without a generated script")
    return f"{name}: {' '.join([speed, *notes])}."


def _no_library(archived: Candidate, request: Request) -> PlanError | InstanceError:
    records = [record for record in libraries() if record.framework == "pytorch"]
    owners = {name: [record for record in records if name in plan_fields(record.name)] for name in request.pins}
    having = [record for record in records if set(request.pins) <= plan_fields(record.name)]
    if not having:
        settings = [f"{name} ({' or '.join(record.title for record in of_name)})" for name, of_name in owners.items()]
        return PlanError(f"No library has all of {listed(settings)}: leave one of them out.")
    if request.pins and len(having) > 1:
        reasons = [(record.title, obstacle(record.name, request)) for record in having]
        texts = [f"{title}: {reason[1].removeprefix(title).strip()}" for title, reason in reasons if reason]
        return PlanError(f"No library has {listed(list(request.pins))} here: leave it out. {'. '.join(texts)}.")
    for record in having:
        try:
            require_supported_instance(record.name, request.cluster.instance)
        except InstanceError as error:
            own = [name for name, of_name in owners.items() if len(of_name) == 1]
            return InstanceError(f"Only {record.title} has {listed(own)}: {error}" if own else str(error))
    return PlanError(f"{get_library(archived.library).title}: {archived.because}.")
