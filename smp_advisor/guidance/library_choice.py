"""Which library to train with, from instance, framework and model; and why."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from smp_advisor.errors import InstanceError, PlanError
from smp_advisor.guidance.compiler_table import nearest_tested
from smp_advisor.guidance.wording import percent
from smp_advisor.libraries.support import require_supported_instance, supported_instances
from smp_advisor.libraries.version import facts, release
from smp_advisor.search import search

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
    """A library and why it was chosen over the others."""

    library: str
    because: str


def job_for(library: str, job: Job, cluster: Cluster, *, given: frozenset[str]) -> Job:
    """The job with a library's own defaults for what nobody gave.

    PyTorch 2 has fused attention, which SMP v1's PyTorch 1.13 lacks; where its libraries run, bf16 spares loss scaling.
    Training Compiler's tested batches are of automatic mixed precision in fp16; SMP v1's TensorFlow starts in fp32.
    """
    changes: dict[str, object] = {}
    if library in {"smp-v2", "fsdp", "ddp"}:
        if "attention" not in given:
            changes["attention"] = "fused"
        if "precision" not in given:
            changes["precision"] = "bf16" if cluster.instance.bf16 else "fp16"
    if library == "smp-v1-tensorflow" and "precision" not in given:
        changes["precision"] = "fp32"
    return replace(job, **changes)  # type: ignore[arg-type]  # names and types are the job's own


def choose_library(
    model: Model,
    cluster: Cluster,
    job: Job,
    *,
    framework: str | None = None,
    given: frozenset[str] = frozenset(),
    min_fit_probability: float = 0.95,
) -> LibraryChoice:
    """Choose between SMP v1 and v2, Training Compiler and plain DDP or FSDP.

    A model of which a whole replica fits one GPU needs no model parallelism. Else the instance decides between the
    versions of SMP (v1 is CUDA 11 only), the framework's version where it is given, and the search whether SMP v2 gains
    anything over plain FSDP.

    Parameters
    ----------
    framework
        What the training script is written for: ``"pytorch"``, ``"tensorflow"``, with a version if it is settled
        (``"pytorch 1.13"``).
    given
        Names of the job's settings that the user gave.
    """
    name, version = _framework(framework)
    if name == "tensorflow":
        return _tensorflow(cluster)

    if job.fp8:
        return LibraryChoice(
            library="smp-v2", because="Matrix products in fp8 are documented for SMP v2 (with Transformer Engine) only."
        )

    def best(library: str) -> SearchResult | None:
        own = job_for(library, job, cluster, given=given)
        found = search(model, cluster, own, library=library, min_fit_probability=min_fit_probability)
        return found if len(found.ranked) else None

    old = version is not None and version < (2,)
    whole = best("ddp")
    if whole is not None:
        return _replicated(model, cluster, job, old=old, version=version)
    needs = f"No whole replica of the model fits one {cluster.instance.gpu_label}, so the model has to be divided."
    if old:
        require_supported_instance("smp-v1", cluster.instance)
        return LibraryChoice(
            library="smp-v1",
            because=(
                f"{needs} PyTorch {'.'.join(map(str, version or ()))} is SMP v1's: version 2 and FSDP as planned here"
                " need PyTorch 2. SMP v1 is archived and gets no further releases."
            ),
        )
    return _divided(cluster, needs, best("smp-v2") if _takes("smp-v2", cluster) else None, best("fsdp"))


def _framework(text: str | None) -> tuple[str, tuple[int, ...] | None]:
    """Name and version of a framework: ``pytorch 1.13`` is ("pytorch", (1, 13))."""
    if text is None:
        return "pytorch", None
    match = re.fullmatch(r"(pytorch|torch|tensorflow|tf)[ =-]*([0-9]+(?:\.[0-9]+)*)?", text.strip().lower())
    if match is None:
        raise PlanError(f"framework must be 'pytorch' or 'tensorflow', with a version if you like, not {text!r}.")
    name = {"torch": "pytorch", "tf": "tensorflow"}.get(match[1], match[1])
    return name, release(match[2]) if match[2] else None


def _takes(library: str, cluster: Cluster) -> bool:
    """Whether a library runs on the cluster's instance by a list that could be read."""
    return cluster.instance.custom or cluster.instance in supported_instances(library)


def _tensorflow(cluster: Cluster) -> LibraryChoice:
    require_supported_instance("smp-v1-tensorflow", cluster.instance)
    return LibraryChoice(
        library="smp-v1-tensorflow",
        because=(
            "SMP v1 is the only model-parallel library for TensorFlow: version 2 is PyTorch's. It is archived and gets"
            " no further releases."
        ),
    )


def _replicated(
    model: Model, cluster: Cluster, job: Job, *, old: bool, version: tuple[int, ...] | None
) -> LibraryChoice:
    fits = f"A whole replica of {model.name} fits one {cluster.instance.gpu_label}: it needs no model parallelism."
    row = nearest_tested(model, cluster.instance, model.sequence_length(job.sequence_length), "1.13.1")
    stopped = facts("training-compiler")["discontinued"]
    try:
        require_supported_instance("training-compiler", cluster.instance)
    except InstanceError:
        row = None
    if row is not None and old and row.factor > 1:
        written = ".".join(map(str, version or ()))
        return LibraryChoice(
            library="training-compiler",
            because=(
                f"{fits} Your PyTorch {written} is one that Training Compiler's containers hold, and AWS tested"
                f" {row.model} with it: {row.compiled_batch_size} samples a GPU instead of {row.native_batch_size} on"
                f" {row.instance_type}. {stopped}"
            ),
        )
    tested = (
        f" Training Compiler was tested with {row.model}, but it holds PyTorch 1.13.1 at the newest. {stopped}"
        if row is not None
        else ""
    )
    return LibraryChoice(library="ddp", because=f"{fits} Plain DDP replicates it.{tested}")


def _divided(cluster: Cluster, needs: str, smp: SearchResult | None, plain: SearchResult | None) -> LibraryChoice:
    """SMP v2 where it gains over plain FSDP or alone fits; v1 where only that runs on the instance."""
    listed = _takes("smp-v2", cluster)
    why_not_v1 = (
        " SMP v1 is archived."
        if _takes("smp-v1", cluster)
        else f" SMP v1 does not run on {cluster.instance.name} (CUDA 11), and is archived."
    )
    if smp is not None and plain is not None:
        gain = float(smp.scores.tokens_per_second[0] / plain.scores.tokens_per_second[0]) - 1
        beside = (
            f"its plan is {percent(gain)} faster than plain FSDP's"
            if gain >= _RESOLVED
            else "plain FSDP would be as fast within what the cost model resolves, without its own container"
        )
        return LibraryChoice(
            library="smp-v2",
            because=(
                f"{needs} SMP v2, AWS's current library, does so on FSDP with a shard degree, offloading and degrees of"
                f" its own; {beside}.{why_not_v1}"
            ),
        )
    if smp is not None:
        return LibraryChoice(
            library="smp-v2", because=f"{needs} Of SMP v2 and plain FSDP only SMP v2 has a plan that fits.{why_not_v1}"
        )
    unlisted = f" {cluster.instance.name} is in no list of AWS for SMP v2." if not listed else ""
    if plain is not None:
        return LibraryChoice(library="fsdp", because=f"{needs} Plain FSDP does so.{unlisted}{why_not_v1}")
    if _takes("smp-v1", cluster):
        return LibraryChoice(
            library="smp-v1",
            because=(
                f"{needs} Neither plain FSDP nor SMP v2 has a plan that fits {cluster.instance.name}.{unlisted} SMP v1,"
                " archived as it is, still divides layers and stages."
            ),
        )
    return LibraryChoice(library="smp-v2" if listed else "fsdp", because=f"{needs}{unlisted}{why_not_v1}")
