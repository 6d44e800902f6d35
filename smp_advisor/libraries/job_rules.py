"""Rules of training jobs that hold for every library: one validator for exported and for checked jobs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from smp_advisor.cluster.containers import containers_of, repositories
from smp_advisor.cluster.table import instance as known_instance
from smp_advisor.cluster.table import sagemaker_names
from smp_advisor.core.files import data_file
from smp_advisor.errors import InstanceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from smp_advisor.cluster.containers import Container
    from smp_advisor.cluster.table import Instance

MAX_RUN_SECONDS = 28 * 86_400
"""Longest ``MaxRuntimeInSeconds`` of CreateTrainingJob (botocore's model of the API, Aug 2026)."""
EXPORTED_SCRIPT = re.compile(r"train_[a-z0-9-]+_[0-9a-f]{8}\.py|train_smp\.py")
"""Names of generated scripts: model and digest; one name for all in earlier releases."""
LOCAL = ("local", "local_cpu", "local_gpu")
"""Instance types of the SDK's local mode."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobTerms:
    """Terms of a job that do not depend on its library; None for those that are not known."""

    instance_type: str | None = None
    instance_count: int | None = 1
    container: Container | None = None
    """Image in the table of AWS's containers; None if it is another or not known."""
    launched: bool | None = None
    """Whether a launcher (torchrun, MPI, ...) starts the processes."""
    spot: bool | None = False
    max_run_seconds: int | None = None
    max_wait_seconds: int | None = None
    waits: bool | None = None
    """Whether a time for waiting is set; None if unknown."""
    checkpoints: bool | None = None
    keep_alive_seconds: int | None = None
    file_system: bool | None = False
    """Whether the job reads from or writes to FSx for Lustre or EFS."""
    network: bool | None = None
    """Whether subnets and security groups are set."""

    @property
    def instance(self) -> Instance | None:
        """The instance, if the table has it."""
        try:
            return known_instance(self.instance_type) if self.instance_type else None
        except InstanceError:
            return None

    @property
    def gpus(self) -> int | None:
        """GPUs of the job; None if unknown."""
        machine = self.instance
        return None if machine is None or self.instance_count is None else machine.gpus * self.instance_count


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One reason why SageMaker refuses a job, or why it cannot do what it is for."""

    rule: str
    setting: str
    """Setting in which the fault is, by its name in `JobTerms`."""
    problem: str
    """Without a period."""
    remedy: str
    """Without a period."""
    severity: Literal["error", "warning"] = "error"
    changes: Mapping[str, str] = field(default_factory=dict)
    """Settings of the estimator that correct it; empty if there is more to change."""

    @property
    def sentence(self) -> str:
        return f"{self.problem}: {self.remedy[:1].lower()}{self.remedy[1:]}."


def _fault(key: str, setting: str, changes: Mapping[str, str] | None = None, **values: object) -> Fault:
    """Return the fault of a key of ``data/faults.toml`` with its slots filled."""
    entry: dict[str, str] = data_file("cluster", "faults")[key]
    problem, remedy = (entry[name].format(**values) for name in ("problem", "remedy"))
    severity: Literal["error", "warning"] = "warning" if entry.get("severity") == "warning" else "error"
    return Fault(
        rule=entry["rule"], setting=setting, problem=problem, remedy=remedy, severity=severity, changes=changes or {}
    )


def job_faults(job: JobTerms) -> Iterator[Fault]:
    """Yield the faults of a job. Rules about unknown terms are skipped."""
    yield from _hardware(job)
    yield from _capacity(job)
    if job.file_system and job.network is False:
        yield _fault("no_network", "file_system")
    if job.launched is False and (job.gpus or 1) > 1:
        yield _fault("no_launcher", "launched", job=job)


def _hardware(job: JobTerms) -> Iterator[Fault]:
    if job.instance_type is None or job.instance_type in LOCAL:
        return
    try:
        machine = known_instance(job.instance_type)
    except InstanceError as error:
        if job.instance_type not in sagemaker_names():  # those without an NVIDIA GPU are known
            hint = str(error).partition(": ")[2].partition(";")[0]
            yield _fault("unknown_instance", "instance_type", job=job, hint=hint)
        return
    if job.container is None:
        return
    if not job.container.runs_on(machine):
        yield _fault("other_processor", "container", container=job.container, machine=machine)
    elif not job.container.drives(machine):
        row, code = _driving(job.container, machine), f"sm_{machine.architecture.replace('.', '')}"
        changes = {} if row is None else {"framework_version": row.framework_version, "py_version": row.py_version}
        key = "no_code" if row is None else "no_code_in_this_version"
        yield _fault(key, "container", changes, container=job.container, machine=machine, code=code, row=row)


def _driving(container: Container, machine: Instance) -> Container | None:
    """The newest container of the same repository with code for a GPU, in both versions of the SDK if possible."""
    home = "pytorch-training" if "by_uri" in repositories()[container.repository] else container.repository
    usable = [row for row in containers_of(home) if row.drives(machine)]
    both = [row for row in usable if row.sdk_2 is not None and row.sdk_3 is not None]
    return (both or usable)[-1] if usable else None


def _capacity(job: JobTerms) -> Iterator[Fault]:
    days = MAX_RUN_SECONDS // 86_400
    for setting, value in (("max_run_seconds", job.max_run_seconds), ("max_wait_seconds", job.max_wait_seconds)):
        if value is not None and value > MAX_RUN_SECONDS:
            yield _fault("too_long", setting, value=value, days=days, most=MAX_RUN_SECONDS)
    if job.spot is False and job.waits:
        yield _fault("wait_without_spot", "max_wait_seconds")
    if not job.spot:
        return
    if job.keep_alive_seconds:
        yield _fault("warm_pool", "keep_alive_seconds")
    if job.waits is False:
        yield _fault("no_wait", "spot")
    elif job.max_wait_seconds is not None and job.max_wait_seconds < (job.max_run_seconds or 0):
        yield _fault("short_wait", "max_wait_seconds", job=job)
    if job.checkpoints is False:
        yield _fault("no_checkpoints", "checkpoints")
