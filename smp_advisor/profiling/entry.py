"""`profile`: runs the requested stages (trace, scaled copy) and returns one `Profile`."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from smp_advisor.arguments.signatures import checked
from smp_advisor.errors import ProfileError
from smp_advisor.profiling.precision import AttentionKernel, kernel_for, precision_of_job
from smp_advisor.profiling.result import Profile
from smp_advisor.sandbox import GUARD_SECONDS, Limits, run_isolated
from smp_advisor.workload.job import Job
from smp_advisor.workload.stack import AUTO

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from smp_advisor.libraries.plan import Plan


Stage = Literal["trace", "copy"]
STAGES: tuple[Stage, ...] = ("trace", "copy")

_STAGE_TEXTS = {"trace": "trace", "copy": "scaled copy"}
_Result = TypeVar("_Result")


@checked
def profile(
    model: Any,
    job: Job | None = None,
    *,
    stages: Stage | Collection[Stage] | None = None,
    plan: Plan | None = None,
    inputs: Any = None,
    precision: str | None = None,
    attention: str | None = None,
    library: str | None = None,
    batch: int | None = None,
    memory_bytes: int | None = None,
    seconds: float | None = None,
    on_line: Callable[[str], None] | None = None,
    on_progress: Callable[[float, float, str], None] | None = None,
    **settings: Any,
) -> Profile:
    """Profile a model before paying for a cluster.

    Parameters
    ----------
    model
        A ``torch.nn.Module`` (never modified); a transformers configuration (object, dict, or path of a
        ``config.json``); a `Model`; or a parameter count. A training script is rehearsed: `smp_advisor.rehearse`.
    job
        The training job. Its fields can be passed as keywords instead (``sequence_length=512``).
    stages
        ``trace`` (the full model, without allocating it), ``copy`` (two real steps of a scaled copy, in fp32), or both.
        None runs both.
    plan
        The plan whose precision the trace uses, and whose microbatch the figures are for.
    inputs
        Inputs of the forward method: a tensor, tensors by name or by position, a ``DataLoader`` (its first batch), or
        a function of (batch, sequence) that returns them. If the first dimension of all tensors has one size, it is
        taken as the batch, unless the module takes no other size, loops over it, or has layers with time first. Other
        tensors are used as they are, and the figures are those of one such call: costs per sample then require the
        function.
    precision
        ``fp32``, ``amp`` (autocast), ``bf16`` (pure), ``fp16`` (SMP v1's wrapper, 20 bytes per parameter) or ``mixed``
        (FSDP, 16 bytes per parameter). None uses the job's precision in the form of the library.
    attention
        ``fused`` or ``eager``. None uses the job's setting if it is not the default, or the kernel that the
        job will run.
    library
        Training library, if there is no `plan`. It decides the form of the precision and the attention kernel:
        ``"smp-v1"`` runs on PyTorch 1.x, and the generated script installs a release of transformers that has fused
        attention for most families only. None stands for the libraries from which `advise` chooses.
    batch
        Samples per microbatch for the displayed figures. None uses the plan's microbatch, or 1 without a plan.
    memory_bytes
        Memory of each child process. None is half of the available memory, at most 4 GiB. The scaled copy is built for
        the same limit, and for 4 GiB without one.
    seconds
        Last guard against a child process that hangs; None is 3,600 for the trace and the copy. It changes no figure:
        a stage that exceeds it ends with an error, or with a verdict if another stage succeeded. The work of each stage
        is limited by counts of operators, FLOPs and bytes, which are the same on every machine.
    on_line, on_progress
        Called with each line of the child's log, and with its progress.
    **settings
        Fields of `Job`.

    Raises
    ------
    ProfileError
        No requested stage succeeded. The sentence names the user's source line and what to supply. If only some stages
        fail, the profile has the results of the others and a verdict for each failure.

    Examples
    --------
    >>> profile = smp_advisor.profile(model, sequence_length=2048, stages=("trace",))  # doctest: +SKIP
    >>> smp_advisor.advise(profile, "ml.p4d.24xlarge", instance_count=16)  # doctest: +SKIP
    """
    job = _job(job, settings)
    _require(model, inputs, seconds=seconds, batch=batch, memory_bytes=memory_bytes)
    selected = STAGES if stages is None else (stages,) if isinstance(stages, str) else tuple(dict.fromkeys(stages))
    trace_settings, choice = _settings(job, plan, precision, attention, library, batch)
    limits = Limits(memory_bytes=memory_bytes, seconds=seconds or GUARD_SECONDS)
    child: dict[str, Any] = {"limits": limits, "on_line": on_line, "on_progress": on_progress}
    if "torch" in sys.modules:
        # PyTorch imports it with fake tensors, again in every child process.
        import torch._dynamo.config  # noqa: F401
    failures: dict[str, ProfileError] = {}

    def run(stage: Stage, call: Callable[[], _Result]) -> _Result | None:
        """Return the result of a stage; None if it fails and there is another, which does not depend on it."""
        try:
            return call()
        except ProfileError as error:
            if len(selected) == 1:
                raise
            failures[stage] = error
            return None

    traced = None
    if "trace" in selected:
        arguments = (model, trace_settings, choice, inputs)
        traced = run(
            "trace", lambda: Profile.from_dict(run_isolated(_trace_live, *arguments, what="the trace", **child))
        )
    try:
        result = traced or _counted(model, trace_settings, choice)
    except Exception as error:  # noqa: BLE001 - the first failure comes first
        raise failures.get("trace", error) from None
    if traced is not None and inputs is not None and not traced.scales:
        from smp_advisor.profiling.inputs import OneCall

        inputs = OneCall(inputs)
    if "copy" in selected:
        from smp_advisor.profiling import scaled

        figures: dict[str, Any] = {"name": result.name, "sequence": job.sequence_length}
        copy = run("copy", lambda: scaled.run(model, inputs=inputs, **figures, **child))
        result = dataclasses.replace(result, scaled=copy)
    if failures and len(failures) == len(selected):  # without a stage, the profile has the counts alone
        raise next(iter(failures.values()))
    verdicts = (
        f"The {_STAGE_TEXTS[stage]} failed, and the other results were kept: {error.sentence}"
        for stage, error in failures.items()
    )
    return dataclasses.replace(result, failures=tuple(verdicts))


def _job(job: Job | None, settings: dict[str, Any]) -> Job:
    if job is None:
        unknown = sorted(set(settings) - {field.name for field in dataclasses.fields(Job)})
        if unknown:
            raise ProfileError(f"profile has no setting {unknown[0]!r}; see the fields of Job.")
        return Job(**settings)
    if settings:
        raise ProfileError(f"Pass either a Job or its fields, not both: got job and {', '.join(sorted(settings))}.")
    return job


def _settings(
    job: Job, plan: Plan | None, precision: str | None, attention: str | None, library: str | None, batch: int | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the trace, and what decides on its attention kernel."""
    if attention not in {None, "fused", "eager"}:
        raise ProfileError(f"attention must be fused or eager, not {attention!r}.")
    settings = {
        "precision": precision_of_job(job, requested=precision, library=library, plan=plan),
        "optimizer": job.optimizer,
        "batch": batch or (max(1, plan.batch_size // plan.microbatches) if plan is not None else 1),
        "sequence": job.sequence_length,
    }
    # The default depends on the library; the job or its code may determine it.
    is_set = job.stack != AUTO or "attention" not in job.defaulted()
    choice = {
        "requested": attention or (job.attention if is_set else None),
        "library": library if plan is None else plan.library,
        "library_version": "" if plan is None else plan.version,
    }
    return settings, choice


def _trace_live(model: Any, trace_settings: dict[str, Any], choice: dict[str, Any], inputs: Any) -> dict[str, Any]:
    """Trace the model; called in the child process."""
    from smp_advisor.profiling.fallback import profile_with_fallbacks
    from smp_advisor.profiling.profiled_model import read_model
    from smp_advisor.profiling.traced_steps import Settings
    from smp_advisor.sandbox import progress

    profiled = read_model(model)
    kernel = kernel_for(profiled, **choice)
    settings = Settings(**trace_settings, attention=kernel.name, inputs=inputs, on_progress=progress)
    return _explained(profile_with_fallbacks(profiled, settings), kernel).as_dict()


def _explained(profile: Profile, kernel: AttentionKernel) -> Profile:
    return dataclasses.replace(profile, attention_reason=kernel.reason, fusible_attention=not kernel.is_only)


def _counted(model: Any, trace_settings: dict[str, Any], choice: dict[str, Any]) -> Profile:
    """Profile with the parameter count alone, for stages that need no trace."""
    import torch

    from smp_advisor.profiling.gpu_kernels import without_initialization
    from smp_advisor.profiling.profiled_model import read_model
    from smp_advisor.profiling.trace import counted_profile
    from smp_advisor.profiling.traced_steps import Settings

    profiled = read_model(model)
    built = profiled.module
    if built is None:
        with torch.device("meta"), without_initialization():
            built = profiled.build()
    kernel = kernel_for(profiled, **choice)
    return _explained(counted_profile(profiled, Settings(**trace_settings, attention=kernel.name), built), kernel)


def _require(model: object, inputs: object, **numbers: float | None) -> None:
    """Refuse arguments before a process starts."""
    if isinstance(model, str | os.PathLike) and os.fspath(model).endswith(".py"):
        raise ProfileError(
            f"{os.fspath(model)!r:.200} is a training script: smp_advisor.rehearse() runs it, profile() takes a model."
        )
    if not (inputs is None or callable(inputs) or hasattr(inputs, "__iter__")) or isinstance(inputs, str):
        raise ProfileError(
            "inputs must contain tensors: pass a tensor, a tuple or dict of them, a DataLoader, or a function of "
            f"(batch, sequence), not {inputs!r:.80}."
        )
    for name, number in numbers.items():
        if number is not None and number <= 0:
            raise ProfileError(f"{name} must be a number above 0, not {number!r:.80}.")
