"""Run of the scaled copy: training steps in a child process, compared with its trace."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.precision import training_precision
from smp_advisor.profiling.sandbox import Limits, progress, run_isolated
from smp_advisor.profiling.scaled.result import Comparison, ScaledRun

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.profiling.scaled.build import Copy
    from smp_advisor.workload.job import Job

__all__ = ["run"]

_STEPS = 6
_MOST_MICROBATCHES = 4
_MOST_SAMPLES = 2
_MOST_TOKENS = 64


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """Settings of the run in the child process."""

    profiled: ProfiledModel
    precision: str
    optimizer: str
    inputs: Any
    microbatches: int
    samples: int
    sequence: int
    checkpointing: bool
    steps: int
    memory_bytes: int
    seconds: float
    notes: tuple[str, ...]


def run(
    profiled: ProfiledModel,
    job: Job,
    plan: Plan | None = None,
    *,
    inputs: Any = None,
    precision: str | None = None,
    steps: int = _STEPS,
    memory_bytes: int | None = None,
    seconds: float = 120.0,
    on_line: Callable[[str], None] | None = None,
    on_progress: Callable[[float, float, str], None] | None = None,
) -> ScaledRun:
    """Train a scaled copy of a model for a few steps in a child process.

    Parameters
    ----------
    profiled
        The model to profile; a live module is neither modified nor copied in this process.
    job
        Precision, optimizer and sequence length.
    plan
        Microbatches, batch and activation checkpointing; None for one microbatch without checkpointing.
    inputs
        Example inputs, required if they cannot be inferred.
    precision
        ``fp32``, ``amp``, ``bf16`` or ``fp16``; None uses the job's precision.
    steps
        Optimizer steps on one batch.
    memory_bytes, seconds
        Limits of the child process. None for `memory_bytes` is half of the available memory.
    on_line, on_progress
        Called with each line of the child's log, and with its progress.

    Raises
    ------
    ProfileError
        The copy cannot be built, fails or exceeds a limit. The sentence names the user's source line.
    """
    limits = Limits(memory_bytes=memory_bytes, seconds=seconds)
    limits = Limits(memory_bytes=limits.resolved_memory_bytes(), seconds=seconds)
    planned = plan.microbatches * plan.gradient_accumulation_steps if plan else 1
    samples = max(1, plan.batch_size // plan.microbatches) if plan else 2
    checkpointing = bool(plan and plan.activation_checkpointing)
    notes = []
    if plan and checkpointing and str(plan.activation_checkpointing) != "each":
        notes.append(f"activation_checkpointing={plan.activation_checkpointing!r} was applied to each block.")
    if job.optimizer not in {"adam", "sgd", "plain-sgd"}:
        notes.append(f"AdamW was used instead of {job.optimizer}.")
    reducible = {
        "microbatches": (planned, min(planned, _MOST_MICROBATCHES)),
        "samples per microbatch": (samples, min(samples, _MOST_SAMPLES)),
    }
    notes += [f"{name} reduced from {full} to {used}." for name, (full, used) in reducible.items() if full != used]
    settings = _Settings(
        profiled=profiled,
        precision=training_precision(precision or job.precision).precision,
        optimizer=job.optimizer,
        inputs=inputs,
        microbatches=min(planned, _MOST_MICROBATCHES),
        samples=min(samples, _MOST_SAMPLES),
        sequence=job.sequence_length,
        checkpointing=checkpointing,
        steps=steps,
        memory_bytes=limits.resolved_memory_bytes(),
        seconds=seconds,
        notes=tuple(notes),
    )
    result = run_isolated(
        _train,
        settings,
        what=f"the scaled copy of {profiled.name}",
        limits=limits,
        on_line=on_line,
        on_progress=on_progress,
    )
    return ScaledRun.from_dict(result)


def _train(settings: _Settings) -> dict[str, Any]:
    """Build the copy, train it, and compare it with its trace; runs in the child process."""
    import torch

    from smp_advisor.profiling.inputs import cast_inputs, example_inputs, filled
    from smp_advisor.profiling.scaled.build import make_copy, token_count
    from smp_advisor.profiling.scaled.training import Trainer, split
    from smp_advisor.profiling.step import call_model
    from smp_advisor.profiling.structure import parameter_total, ties

    begun = time.perf_counter()
    total = settings.steps + 3
    progress(0, total, "building the copy")
    precision = training_precision(settings.precision)
    dtype, precision_text, notes = _types(settings)
    with ExitStack() as stack:
        copy = make_copy(settings.profiled, stack, memory_bytes=settings.memory_bytes, dtype=dtype)
        model = copy.model.train()
        example = example_inputs(model, settings.inputs, config=copy.profiled.config)
        sequence = 1
        if example.has_sequence:
            planned = min(settings.sequence, example.longest or settings.sequence)
            sequence = min(planned, _MOST_TOKENS)
            notes += [f"tokens per sample reduced from {planned} to {sequence}."] if sequence < planned else []
        has_batch_norm = any("BatchNorm" in type(module).__name__ for module in model.modules())
        samples = max(settings.samples, 2) if has_batch_norm else settings.samples
        sizes = [samples] * settings.microbatches
        vocab = token_count(copy)
        batch = split(filled(example.make(sum(sizes), sequence), vocab), sizes)
        last = _partial(sizes, minimum=2 if has_batch_norm else 1)
        last_batch = split(filled(example.make(sum(last), sequence), vocab, seed=1), last)
        groups = ties(model)
        with torch.no_grad():
            output = call_model(model, cast_inputs(batch[0], dtype))
        if not (isinstance(output, torch.Tensor) and output.ndim == 0) and getattr(output, "loss", None) is None:
            notes.append("The model returned no loss: the mean of its first output was used as the loss.")
        progress(1, total, "comparing with the trace")
        comparisons, comparison_notes = _compare(copy, settings, example, sequence, samples, dtype)
        trainer = Trainer(
            model,
            precision=settings.precision,
            dtype=dtype,
            optimizer=settings.optimizer,
            blocks=copy.blocks if settings.checkpointing else (),
            counted=copy.blocks,
        )
        losses: list[float] = []
        trained = trainer.train([])
        for step in range(settings.steps):
            if step > 1 and time.perf_counter() - begun + 3 * trained.step_seconds > settings.seconds:
                notes.append(f"{step} of {settings.steps} steps were run within the time limit.")
                break
            progress(2 + step, total, f"step {step + 1} of {settings.steps}")
            trained = trainer.train([batch])
            losses += trained.losses
            print(f"step {step + 1} loss {losses[-1]:.6g}", flush=True)  # noqa: T201 (the live log)
        progress(2 + settings.steps, total, "a last partial batch")
        partial = trainer.train([last_batch])
        parameters = dict(model.named_parameters())
        run_blocks = [path for path in copy.blocks if trained.forwards[path]]
        times = 2 if settings.checkpointing else 1
        return ScaledRun(
            name=settings.profiled.name,
            how=copy.how,
            reductions=copy.reductions,
            parameter_count=parameter_total([model]),
            precision=precision_text or precision.label,
            optimizer=settings.optimizer,
            losses=tuple(losses),
            microbatches=tuple(sizes),
            partial_microbatches=tuple(last),
            partial_loss=partial.losses[0],
            sequence=sequence,
            inputs=example.description,
            trained=len(trained.with_gradient),
            without_gradient=tuple(
                name for name, p in parameters.items() if p.requires_grad and name not in trained.with_gradient
            ),
            frozen=sum(not p.requires_grad for p in parameters.values()),
            tied=tuple(group for group in groups if group in ties(model)),
            checkpointed=len(run_blocks) if settings.checkpointing else 0,
            recomputed=settings.checkpointing
            and all(trained.forwards[path] >= times * len(sizes) for path in run_blocks),
            comparisons=tuple(comparisons),
            notes=(*settings.notes, *notes, *comparison_notes),
            seconds=time.perf_counter() - begun,
            step_seconds=trained.step_seconds,
        ).as_dict()


def _types(settings: _Settings) -> tuple[torch.dtype, str, list[str]]:
    """Dtype of the copy's parameters on this machine, with a text and a note if it differs from the plan's."""
    import torch

    if settings.precision in {"fp32", "amp"}:
        return torch.float32, "", []
    if settings.precision == "bf16":
        return torch.bfloat16, "", []
    text = "bf16 with fp32 master copies and a loss scale, instead of fp16"
    note = "fp16 was computed in bf16, which has the same size: on a CPU, fp16 is about 20 times slower."
    return torch.bfloat16, text, [note]


def _partial(sizes: list[int], *, minimum: int) -> list[int]:
    """Microbatch sizes of a batch with one sample less, of at least `minimum` samples each."""
    remaining = max(sum(sizes) - 1, minimum)
    parts: list[int] = []
    while remaining > 0:
        parts.append(min(sizes[0], remaining))
        remaining -= parts[-1]
    if len(parts) > 1 and parts[-1] < minimum:
        last = parts.pop()
        parts[-1] += last
    return parts


def _compare(
    copy: Copy, settings: _Settings, example: Any, sequence: int, samples: int, dtype: torch.dtype
) -> tuple[list[Comparison], list[str]]:
    """Compare predictions for the copy with one real microbatch; also returns notes."""
    from smp_advisor.errors import AdvisorError
    from smp_advisor.profiling.fake import fake_copy, fake_inputs, fake_mode
    from smp_advisor.profiling.inputs import cast_inputs, filled
    from smp_advisor.profiling.scaled.build import token_count
    from smp_advisor.profiling.step import measure_step
    from smp_advisor.profiling.structure import parameter_total
    from smp_advisor.workload import Model

    model = copy.model
    comparisons: list[Comparison] = []
    notes: list[str] = []
    if copy.profiled.model_class is not None:
        try:
            predicted = Model.from_config(copy.profiled.config).parameter_count
            comparisons.append(Comparison("parameters", predicted, parameter_total([model]), "the advisor's formulas"))
        except AdvisorError:
            notes.append("The advisor has no formulas for this model family; its parameters are counted directly.")
    vocab = token_count(copy)
    inputs = cast_inputs(filled(example.make(samples, sequence), vocab), dtype)
    options: dict[str, Any] = {
        "precision": settings.precision,
        "attention": "eager",
        "blocks": copy.blocks,
        "checkpointing": settings.checkpointing,
    }
    real = measure_step(model, inputs, **options)
    try:
        mode = fake_mode()
        fake = fake_copy(model, mode, None)
        with mode:
            traced = measure_step(fake, fake_inputs(inputs, mode, dtype), **options)
    except Exception as error:  # noqa: BLE001 (a model may raise anything under a trace)
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        notes.append(f"The copy could not be traced ({reason}): its figures are from real steps alone.")
        return comparisons, notes
    source = "its trace"
    return [
        *comparisons,
        Comparison("saved bytes", traced.saved_bytes, real.saved_bytes, source),
        Comparison("forward FLOPs", traced.forward_flops, real.forward_flops, source),
        Comparison("backward FLOPs", traced.backward_flops, real.backward_flops, source),
    ], notes
