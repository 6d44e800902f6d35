"""Rules of training jobs that hold for every library: one validator for exported and for checked jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from smp_advisor.cluster.containers import containers_of, repositories
from smp_advisor.cluster.table import instance as known_instance
from smp_advisor.cluster.table import sagemaker_names
from smp_advisor.errors import InstanceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from smp_advisor.cluster.containers import Container
    from smp_advisor.cluster.table import Instance

MAX_RUN_SECONDS = 28 * 86_400
"""Longest ``MaxRuntimeInSeconds`` of CreateTrainingJob (botocore's model of the API, Aug 2026)."""
SCRIPT_NAME = "train_smp.py"
"""Name of the generated script, next to the notebook."""
LOCAL = ("local", "local_gpu")
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


def job_faults(job: JobTerms) -> Iterator[Fault]:
    """Yield the faults of a job. Rules about unknown terms are skipped."""
    yield from _hardware(job)
    yield from _capacity(job)
    if job.file_system and job.network is False:
        yield Fault(
            rule="file system without a network",
            setting="file_system",
            problem="A file system is accessible only from its own network, and the job has none",
            remedy="Pass the subnets and security_group_ids of the file system",
        )
    if job.launched is False and (job.gpus or 1) > 1:
        yield Fault(
            rule="no launcher",
            setting="launched",
            problem=f"No launcher starts processes on the {job.gpus} GPUs, so one process runs per node",
            remedy="Turn on torch_distributed in the distribution (version 3: distributed=Torchrun()), or start the"
            " processes in the script",
            severity="warning",
        )


def _hardware(job: JobTerms) -> Iterator[Fault]:
    if job.instance_type is None or job.instance_type in LOCAL:
        return
    try:
        machine = known_instance(job.instance_type)
    except InstanceError as error:
        if job.instance_type in sagemaker_names():
            return  # without an NVIDIA GPU
        _, _, hint = str(error).partition(": ")
        yield Fault(
            rule="unknown instance",
            setting="instance_type",
            problem=f"{job.instance_type} is not a known instance type",
            remedy=f"Correct the name: {hint.partition(';')[0]}",
        )
        return
    if job.container is None:
        return
    if not job.container.runs_on(machine):
        yield Fault(
            rule="container for another processor",
            setting="container",
            problem=f"The container of {job.container.title} is built for {job.container.cpu_architecture}, and"
            f" {machine.name} has {machine.cpu_architecture} processors",
            remedy="Pass image_uri with an image of your own, or choose another instance",
        )
    elif not job.container.drives(machine):
        row = _driving(job.container, machine)
        code = f"sm_{machine.architecture.replace('.', '')}"
        yield Fault(
            rule="container without code for the GPU",
            setting="container",
            problem=f"The container of {job.container.title} has no code for the {machine.gpu_label} ({code}) of"
            f" {machine.name}",
            remedy=f"Use framework version {row.framework_version} with {row.py_version}"
            if row is not None
            else "Choose another instance, or another library",
            changes={} if row is None else {"framework_version": row.framework_version, "py_version": row.py_version},
        )


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
            yield Fault(
                rule="longer than SageMaker runs a job",
                setting=setting,
                problem=f"The job may take {value:,} seconds, and SageMaker stops a job after {days} days"
                f" ({MAX_RUN_SECONDS:,} seconds)",
                remedy="Divide it into jobs that resume from checkpoints",
            )
    if not job.spot:
        return
    if job.keep_alive_seconds:
        yield Fault(
            rule="warm pool of spot instances",
            setting="keep_alive_seconds",
            problem="SageMaker has no warm pools of spot instances",
            remedy="Choose spot instances or a warm pool",
        )
    if job.waits is False:
        yield Fault(
            rule="spot without a waiting time",
            setting="spot",
            problem="A spot job has no max_wait, which SageMaker requires",
            remedy="Set max_wait to at least max_run",
        )
    elif job.max_wait_seconds is not None and job.max_wait_seconds < (job.max_run_seconds or 0):
        yield Fault(
            rule="waiting time shorter than the run",
            setting="max_wait_seconds",
            problem=f"max_wait ({job.max_wait_seconds:,} seconds) includes the running time and is shorter than max_run"
            f" ({job.max_run_seconds:,} seconds)",
            remedy="Set max_wait to at least max_run",
        )
    if job.checkpoints is False:
        yield Fault(
            rule="spot without checkpoints",
            setting="spot",
            problem="A spot job can be interrupted at any time, and starts from the beginning without checkpoints",
            remedy="Set a location for checkpoints",
        )
