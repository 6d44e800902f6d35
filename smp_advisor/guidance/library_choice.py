"""The library for a run, from instance, framework and model, and the reason for it."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from smp_advisor.errors import InstanceError, PlanError
from smp_advisor.guidance.wording import percent
from smp_advisor.libraries.registry import get_library
from smp_advisor.libraries.support import require_supported_instance, supported_instances
from smp_advisor.libraries.training_compiler.tested_models import nearest_tested
from smp_advisor.libraries.version import default_version, facts, release
from smp_advisor.search import search
from smp_advisor.workload.stack import AUTO

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.search import SearchResult
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["LibraryChoice", "choose_library", "job_for"]

_RESOLVED = 0.03
"""Gain in throughput that the cost model resolves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryChoice:
    """A library, and the reason for choosing it."""

    library: str
    because: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Policy:
    """Library for each case, with the reasons in ``library_choice.toml``."""

    tensorflow: str
    fp8: str
    replicated: str
    compiled: str
    divided: str
    plain: str
    archived: str


@cache
def _policy() -> _Policy:
    text = (files("smp_advisor.guidance") / "data" / "library_choice.toml").read_text("utf-8")
    return _Policy(**tomllib.loads(text))


def job_for(library: str, job: Job, cluster: Cluster, *, user_settings: frozenset[str]) -> Job:
    """The job with a library's own defaults for settings that the user did not set.

    Parameters
    ----------
    user_settings
        Names of the job's settings that the user set.
    """
    record = get_library(library)
    precision = record.default_precision
    if precision == "bf16" and not cluster.instance.bf16:
        precision = "fp16"
    return replace(
        job,
        precision=job.precision if "precision" in user_settings else precision,
        attention=job.attention if "attention" in user_settings or job.stack != AUTO else record.default_attention,
    )


def choose_library(
    model: Model,
    cluster: Cluster,
    job: Job,
    *,
    framework: str | None = None,
    user_settings: frozenset[str] = frozenset(),
    min_fit_probability: float = 0.95,
) -> LibraryChoice:
    """Choose between SMP v1 and v2, Training Compiler and plain DDP or FSDP.

    If an entire replica fits on one GPU, the model needs no model parallelism. Otherwise the instance decides between
    the versions of SMP (v1 is CUDA 11 only), the framework's version if it is set, and the search whether SMP v2 is
    faster than plain FSDP.

    Parameters
    ----------
    framework
        Framework of the training script: ``"pytorch"``, ``"tensorflow"``, with a version if it is settled
        (``"pytorch 1.13"``).
    user_settings
        Names of the job's settings that the user set.
    """
    name, version = _framework(framework)
    if name == "tensorflow":
        return _tensorflow(cluster)
    if job.fp8:
        return LibraryChoice(
            library=_policy().fp8,
            because="Matrix products in fp8 are documented for SMP v2 (with Transformer Engine) only.",
        )

    def best(library: str) -> SearchResult | None:
        own = job_for(library, job, cluster, user_settings=user_settings)
        result = search(model, cluster, own, library=library, min_fit_probability=min_fit_probability)
        return result if len(result.ranked) else None

    old = ".".join(map(str, version)) if version is not None and version < (2,) else ""
    if best(_policy().replicated) is not None:
        return _replicated(model, cluster, job, old=old)
    need = f"No entire replica of the model fits on one {cluster.instance.gpu_label}, so the model must be divided."
    if old:
        require_supported_instance(_policy().archived, cluster.instance)
        return LibraryChoice(
            library=_policy().archived,
            because=(
                f"{need} SMP v1 runs with PyTorch {old}; SMP v2 and FSDP as planned here need PyTorch 2. SMP v1 is"
                " archived and receives no further releases."
            ),
        )
    divided = best(_policy().divided) if _takes(_policy().divided, cluster) else None
    return _divided(cluster, need, divided, best(_policy().plain))


def _framework(text: str | None) -> tuple[str, tuple[int, ...] | None]:
    """Name and version of a framework: ``pytorch 1.13`` is ("pytorch", (1, 13))."""
    if text is None:
        return "pytorch", None
    match = re.fullmatch(r"(pytorch|torch|tensorflow|tf)[ =-]*([0-9]+(?:\.[0-9]+)*)?", text.strip().lower())
    if match is None:
        raise PlanError(f"framework must be 'pytorch' or 'tensorflow', optionally with a version, not {text!r}.")
    name = {"torch": "pytorch", "tf": "tensorflow"}.get(match[1], match[1])
    return name, release(match[2]) if match[2] else None


def _takes(library: str, cluster: Cluster) -> bool:
    """Whether a library runs on the cluster's instance according to a list that could be read."""
    return cluster.instance.custom or cluster.instance in supported_instances(library)


def _tensorflow(cluster: Cluster) -> LibraryChoice:
    require_supported_instance(_policy().tensorflow, cluster.instance)
    return LibraryChoice(
        library=_policy().tensorflow,
        because=(
            "SMP v1 is the only model-parallel library for TensorFlow: SMP v2 supports PyTorch only. SMP v1 is archived"
            " and receives no further releases."
        ),
    )


def _replicated(model: Model, cluster: Cluster, job: Job, *, old: str) -> LibraryChoice:
    fits = f"An entire replica of {model.name} fits on one {cluster.instance.gpu_label}: it needs no model parallelism."
    compiled = _policy().compiled
    newest = default_version(compiled)
    row = nearest_tested(model, cluster.instance, model.sequence_length(job.sequence_length), newest)
    status = facts(compiled)["discontinued"]
    try:
        require_supported_instance(compiled, cluster.instance)
    except InstanceError:
        row = None
    if row is not None and old and row.factor > 1:
        return LibraryChoice(
            library=compiled,
            because=(
                f"{fits} Training Compiler has containers for your PyTorch {old}, and AWS tested {row.model} with it:"
                f" {row.compiled_batch_size} samples per GPU instead of {row.native_batch_size} on {row.instance_type}."
                f" {status}"
            ),
        )
    tested = (
        f" AWS tested Training Compiler with {row.model}, but its newest container has PyTorch {newest}. {status}"
        if row is not None
        else ""
    )
    return LibraryChoice(library=_policy().replicated, because=f"{fits} Plain DDP replicates it.{tested}")


def _divided(cluster: Cluster, need: str, smp: SearchResult | None, plain: SearchResult | None) -> LibraryChoice:
    """SMP v2 if it is faster than plain FSDP or alone fits; v1 if only v1 runs on the instance."""
    policy, name = _policy(), cluster.instance.name
    listed, archived_runs = _takes(policy.divided, cluster), _takes(policy.archived, cluster)
    why_not_v1 = (
        " SMP v1 is archived." if archived_runs else f" SMP v1 does not run on {name} (CUDA 11), and is archived."
    )
    if smp is not None and plain is not None:
        gain = float(smp.scores.tokens_per_second[0] / plain.scores.tokens_per_second[0]) - 1
        speed = (
            f"Its plan is {percent(gain)} faster than plain FSDP's."
            if gain >= _RESOLVED
            else "Plain FSDP is as fast within the resolution of the cost model, and needs no container of its own."
        )
        return LibraryChoice(
            library=policy.divided,
            because=(
                f"{need} SMP v2, AWS's current library, divides it with FSDP and adds a shard degree, offloading and"
                f" other degrees. {speed}{why_not_v1}"
            ),
        )
    if smp is not None:
        return LibraryChoice(
            library=policy.divided,
            because=f"{need} Of SMP v2 and plain FSDP, only SMP v2 has a plan that fits.{why_not_v1}",
        )
    unlisted = "" if listed else f" {name} is in no list of AWS for SMP v2."
    if plain is not None:
        return LibraryChoice(library=policy.plain, because=f"{need} Plain FSDP divides it.{unlisted}{why_not_v1}")
    if archived_runs:
        return LibraryChoice(
            library=policy.archived,
            because=(
                f"{need} Neither plain FSDP nor SMP v2 has a plan that fits on {name}.{unlisted} SMP v1 is archived,"
                " but it divides layers and stages."
            ),
        )
    return LibraryChoice(library=policy.divided if listed else policy.plain, because=f"{need}{unlisted}{why_not_v1}")
