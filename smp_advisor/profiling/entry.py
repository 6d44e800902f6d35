"""The one call that profiles a model: trace, scaled copy, local run and rehearsal, each on its own or together."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, cast

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.measured import Profile, Provenance
from smp_advisor.profiling.polynomial import Polynomial
from smp_advisor.profiling.recipe import recipe
from smp_advisor.profiling.sandbox import Limits, run_isolated
from smp_advisor.workload.job import Job
from smp_advisor.workload.model import Model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smp_advisor.libraries.plan import Plan

__all__ = ["STAGES", "Stage", "attention_for", "profile", "trace_plain"]

Stage = Literal["trace", "copy", "local", "rehearsal"]
STAGES: tuple[Stage, ...] = ("trace", "copy", "local", "rehearsal")

_TRACE_SECONDS = 300.0
_FUSED_SINCE = 2
"""PyTorch's major version that brought a fused kernel for attention."""


def profile(
    model: Any,
    job: Job | None = None,
    *,
    stages: Sequence[Stage] | None = None,
    plan: Plan | None = None,
    script: str | os.PathLike[str] | None = None,
    inputs: Any = None,
    precision: str | None = None,
    attention: str | None = None,
    library: str | None = None,
    batch: int | None = None,
    data_parallel_degree: int | None = None,
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
        A ``torch.nn.Module``, which is never changed; a transformers configuration (object, dict, path of its
        ``config.json``); a `Model` or a parameter count; the path of a training script (``.py``), which is run.
    job
        The training run; or its fields as keywords (``sequence_length=512``).
    stages
        Which of ``trace`` (the full model, without allocating it), ``copy`` (real steps of a scaled copy), ``local``
        (the script as SageMaker would run it) and ``rehearsal`` (the plan on local processes). None: the trace and the
        copy, the local run if there is a `script`, the rehearsal if there is a `plan`.
    plan
        What is rehearsed, and whose microbatches and checkpointing the copy follows.
    script
        Training script of the local run.
    inputs
        What the model is called with, where that can't be inferred: example tensors by name or by place, or a function
        of (batch, sequence) that makes them.
    precision
        ``fp32``, ``amp`` (autocast), ``bf16`` (pure) or ``fp16`` (SMP v1's wrapper, 20 bytes a parameter); None for the
        job's.
    attention
        ``fused`` or ``eager``; None for the job's, or for what the library's PyTorch runs.
    library
        Which library the run is planned with, where there is no `plan`: ``"smp-v1"`` runs on PyTorch 1.x.
    batch
        Samples of a microbatch for the figures that are shown; the plan's, else 1.
    data_parallel_degree
        Replicas of the model in the planned job, for the rehearsal; two are rehearsed where they are not known.
    memory_bytes, seconds
        Limits of each child process; each stage has its own where they are not given.
    on_line, on_progress
        Called with each line of a child's log, and with how far it is.
    **settings
        Fields of `Job`.

    Raises
    ------
    ProfileError
        One sentence: which stage failed, at which of the user's lines, and what to supply.

    Examples
    --------
    >>> profile = smp_advisor.profile(model, sequence_length=2048, stages=("trace",))  # doctest: +SKIP
    >>> smp_advisor.advise(profile, "ml.p4d.24xlarge", instance_count=16)  # doctest: +SKIP
    """
    if _is_script(model):
        script, model = model, None
    given_job = job is not None or "attention" in settings
    job = _job(job, settings)
    chosen = _stages(stages, model=model, plan=plan, script=script)
    limits = Limits(memory_bytes=memory_bytes, seconds=seconds or _TRACE_SECONDS)
    plain = {
        "precision": recipe(precision or job.precision).precision,
        "attention": attention or (job.attention if given_job else attention_for(library, plan)),
        "optimizer": job.optimizer,
        "batch": batch or (max(1, plan.batch_size // plan.microbatches) if plan is not None else 1),
        "sequence": job.sequence_length,
    }
    if plain["attention"] not in {"fused", "eager"}:
        raise ProfileError(f"attention must be fused or eager, not {attention!r}.")
    watching: dict[str, Any] = {"on_line": on_line, "on_progress": on_progress}
    bounds: dict[str, Any] = {"memory_bytes": memory_bytes} | ({} if seconds is None else {"seconds": seconds})
    if model is None:
        result = _empty(str(script), plain)
    elif "trace" in chosen:
        result = _trace(model, plain, inputs, limits, watching)
    else:
        result = _counted(model, plain)
    if "copy" in chosen or "rehearsal" in chosen:
        from smp_advisor.profiling.subject import read_subject

        subject = read_subject(model)
        if "copy" in chosen:
            from smp_advisor.profiling import scaled

            copy = scaled.run(subject, job, plan, inputs=inputs, precision=precision, **bounds, **watching)
            result = dataclasses.replace(result, scaled=copy)
        if "rehearsal" in chosen and plan is not None:
            from smp_advisor.profiling import rehearsal

            rehearsed = rehearsal.run(
                subject, job, plan, data_parallel_degree=data_parallel_degree, inputs=inputs, **bounds, **watching
            )
            result = dataclasses.replace(result, rehearsal=rehearsed)
    if "local" in chosen:
        from smp_advisor.profiling import local_run

        given = {} if plan is None else local_run.planned(plan)
        ran = local_run.run(os.fspath(script or ""), **given, **bounds, on_line=on_line)
        result = dataclasses.replace(result, local=ran)
    return result


def attention_for(library: str | None, plan: Plan | None = None) -> str:
    """Kernel that the library's PyTorch runs: ``eager`` before PyTorch 2, hence with SMP v1; ``fused`` since."""
    name = plan.library if plan is not None else library or "smp-v1"
    version = str(getattr(plan, "framework_version", "") or "")
    major = version.split(".", maxsplit=1)[0]
    if major.isdigit():
        return "fused" if int(major) >= _FUSED_SINCE else "eager"
    return "eager" if name == "smp-v1" else "fused"


def _is_script(model: Any) -> bool:
    return isinstance(model, str | os.PathLike) and os.fspath(model).endswith(".py")


def _job(job: Job | None, settings: dict[str, Any]) -> Job:
    if job is None:
        known = {one.name for one in dataclasses.fields(Job)}
        unknown = sorted(set(settings) - known)
        if unknown:
            raise ProfileError(f"profile takes no setting {unknown[0]!r}; see the fields of Job.")
        return Job(**settings)
    if settings:
        raise ProfileError(f"Give either a Job or its fields, not both: {', '.join(sorted(settings))} came beside job.")
    return job


def _stages(stages: Sequence[Stage] | None, *, model: Any, plan: Any, script: Any) -> tuple[Stage, ...]:
    if stages is None:
        wanted: list[Stage] = ["trace", "copy"] if model is not None else []
        if script is not None:
            wanted.append("local")
        if plan is not None and model is not None:
            wanted.append("rehearsal")
        return tuple(wanted)
    if isinstance(stages, str):
        stages = cast("tuple[Stage, ...]", (stages,))
    for stage in stages:
        if stage not in STAGES:
            raise ProfileError(f"stages are {', '.join(STAGES)}, not {stage!r}.")
    needs = {
        "local": ("script", script),
        "rehearsal": ("plan", plan),
        "trace": ("model", model),
        "copy": ("model", model),
    }
    for stage in stages:
        name, value = needs[stage]
        if value is None:
            raise ProfileError(f"The stage {stage!r} needs a {name}: pass {name}=.")
    return tuple(stages)


def _trace(model: Any, plain: dict[str, Any], inputs: Any, limits: Limits, watching: dict[str, Any]) -> Profile:
    """In a child process: forked for what lives here, a fresh interpreter for what JSON can say."""
    argument = _as_json(model) if inputs is None and "torch" not in sys.modules else None
    if argument is not None:
        found = run_isolated(
            "smp_advisor.profiling.entry:trace_plain", argument, plain, what="the trace", limits=limits, **watching
        )
    else:
        found = run_isolated(_trace_live, model, plain, inputs, what="the trace", limits=limits, **watching)
    return Profile.from_dict(found)


def trace_plain(model: Any, plain: dict[str, Any]) -> dict[str, Any]:
    """Trace of a model that JSON can describe; runs in a fresh interpreter."""
    if isinstance(model, dict) and "smp_advisor" in model:
        model = _described(model["smp_advisor"])
    return _trace_live(model, plain, None)


def _trace_live(model: Any, plain: dict[str, Any], inputs: Any) -> dict[str, Any]:
    from smp_advisor.profiling.ladder import climb_down
    from smp_advisor.profiling.sandbox import progress
    from smp_advisor.profiling.subject import read_subject
    from smp_advisor.profiling.trace import Settings

    return climb_down(read_subject(model), Settings(**plain, inputs=inputs, on_progress=progress)).as_dict()


def _as_json(model: Any) -> Any:
    """What stands for a model in JSON; None for one that only this process has."""
    if isinstance(model, Model):
        return {"smp_advisor": {"name": model.name, "config": json.loads(model.config_json), "origin": model.note}}
    if isinstance(model, os.PathLike):
        return os.fspath(model)
    if isinstance(model, str | Real):
        return model if isinstance(model, str) else float(model)
    if isinstance(model, dict):
        try:
            return json.loads(json.dumps(model))
        except (TypeError, ValueError):
            return None
    return None


def _described(values: dict[str, Any]) -> Any:
    from smp_advisor.profiling.subject import read_subject

    subject = read_subject(values["config"])
    inferred = values["origin"].startswith("inferred")
    return dataclasses.replace(
        subject,
        name=values["name"],
        origin=values["origin"],
        source="count" if inferred else "configuration",
    )


def _counted(model: Any, plain: dict[str, Any]) -> Profile:
    """Parameters alone, for stages that need no trace."""
    import torch

    from smp_advisor.profiling.gpu_kernels import without_initialisation
    from smp_advisor.profiling.structure import ties
    from smp_advisor.profiling.subject import read_subject

    subject = read_subject(model)
    built = subject.module
    if built is None:
        with torch.device("meta"), without_initialisation():
            built = subject.build()
    return dataclasses.replace(
        _empty(subject.name, plain),
        source=subject.source,
        origin=subject.origin,
        parameter_count=sum(p.numel() for p in built.parameters()),
        trainable_parameter_count=sum(p.numel() for p in built.parameters() if p.requires_grad),
        tied=ties(built),
        config_json=subject.config_json,
        provenance=(Provenance(figure="parameters", method="counted", confidence="exact"),),
    )


def _empty(name: str, plain: dict[str, Any]) -> Profile:
    return Profile(
        name=name,
        source="script",
        parameter_count=0,
        trainable_parameter_count=0,
        saved_bytes=Polynomial(),
        forward_flops=Polynomial(),
        backward_flops=Polynomial(),
        **plain,
    )
