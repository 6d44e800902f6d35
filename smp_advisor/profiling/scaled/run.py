"""The scaled copy from beginning to end."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.recipe import recipe
from smp_advisor.profiling.sandbox import Limits, progress, run_isolated
from smp_advisor.profiling.scaled.result import Comparison, ScaledRun

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.profiling.scaled.making import Copy
    from smp_advisor.profiling.subject import Subject
    from smp_advisor.workload.job import Job

__all__ = ["run"]

_STEPS = 6
_MOST_MICROBATCHES = 4
_MOST_SAMPLES = 2
_MOST_TOKENS = 64


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """What the child is to do."""

    subject: Subject
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
    subject: Subject,
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
    subject
        What is profiled; a live module is neither changed nor copied in this process.
    job
        Precision, optimizer and sequence length.
    plan
        Microbatches, batch and activation checkpointing; None for one microbatch without.
    inputs
        Example inputs of a model for which they cannot be inferred.
    precision
        ``fp32``, ``amp``, ``bf16`` or ``fp16``; None for the job's.
    steps
        Optimizer steps on one batch.
    memory_bytes, seconds
        The child is stopped beyond them; no `memory_bytes` is half of what the machine has to give.
    on_line, on_progress
        Called with each line of the child's log, and with how far it is.

    Raises
    ------
    ProfileError
        The copy cannot be made, fails or breaks a limit: the sentence names the user's own line.
    """
    limits = Limits(memory_bytes=memory_bytes, seconds=seconds)
    limits = Limits(memory_bytes=limits.resolved_memory_bytes(), seconds=seconds)
    planned = plan.microbatches * plan.gradient_accumulation_steps if plan else 1
    samples = max(1, plan.batch_size // plan.microbatches) if plan else 2
    checkpointing = bool(plan and plan.activation_checkpointing)
    notes = []
    if plan and checkpointing and str(plan.activation_checkpointing) != "each":
        notes.append(f"activation_checkpointing={plan.activation_checkpointing!r} was run block by block.")
    if job.optimizer not in {"adam", "sgd", "plain-sgd"}:
        notes.append(f"AdamW took the steps in the place of {job.optimizer}.")
    shrunk = {
        "microbatches": (planned, min(planned, _MOST_MICROBATCHES)),
        "samples a microbatch": (samples, min(samples, _MOST_SAMPLES)),
    }
    notes += [f"{name} reduced from {full} to {kept}." for name, (full, kept) in shrunk.items() if full != kept]
    settings = _Settings(
        subject=subject,
        precision=recipe(precision or job.precision).precision,
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
        what=f"the scaled copy of {subject.name}",
        limits=limits,
        on_line=on_line,
        on_progress=on_progress,
    )
    return ScaledRun.from_dict(result)


def _train(settings: _Settings) -> dict[str, Any]:
    """In the child: make the copy, train it, compare it with its trace."""
    import torch

    from smp_advisor.profiling.inputs import example_inputs, filled
    from smp_advisor.profiling.scaled.making import make_copy, plain_inputs, token_count
    from smp_advisor.profiling.scaled.training import Trainer, split
    from smp_advisor.profiling.step import call_model
    from smp_advisor.profiling.structure import parameter_total, ties

    begun = time.perf_counter()
    total = settings.steps + 3
    progress(0, total, "making the copy")
    known = recipe(settings.precision)
    dtype, precision_words, notes = _types(settings)
    with ExitStack() as stack:
        copy = make_copy(settings.subject, stack, memory_bytes=settings.memory_bytes, dtype=dtype)
        model = copy.model.train()
        example = example_inputs(model, settings.inputs, config=copy.subject.config)
        sequence = 1
        if example.has_sequence:
            planned = min(settings.sequence, example.longest or settings.sequence)
            sequence = min(planned, _MOST_TOKENS)
            notes += [f"tokens a sample reduced from {planned} to {sequence}."] if sequence < planned else []
        has_norm_over_batch = any("BatchNorm" in type(module).__name__ for module in model.modules())
        samples = max(settings.samples, 2) if has_norm_over_batch else settings.samples
        sizes = [samples] * settings.microbatches
        vocab = token_count(copy)
        batch = split(filled(example.make(sum(sizes), sequence), vocab), sizes)
        last = _partial(sizes, least=2 if has_norm_over_batch else 1)
        last_batch = split(filled(example.make(sum(last), sequence), vocab, seed=1), last)
        groups = ties(model)
        with torch.no_grad():
            output = call_model(model, plain_inputs(batch[0], dtype))
        if not (isinstance(output, torch.Tensor) and output.ndim == 0) and getattr(output, "loss", None) is None:
            notes.append("The model returned no loss: the mean of its first result was trained on.")
        progress(1, total, "comparing with its trace")
        comparisons, more = _compare(copy, settings, example, sequence, samples, dtype)
        trainer = Trainer(
            model,
            precision=settings.precision,
            dtype=dtype,
            optimizer=settings.optimizer,
            blocks=copy.blocks if settings.checkpointing else (),
            watched=copy.blocks,
        )
        losses: list[float] = []
        trained = trainer.train([])
        for step in range(settings.steps):
            if step > 1 and time.perf_counter() - begun + 3 * trained.step_seconds > settings.seconds:
                notes.append(f"Of {settings.steps} steps {step} were run in the time there was.")
                break
            progress(2 + step, total, f"step {step + 1} of {settings.steps}")
            trained = trainer.train([batch])
            losses += trained.losses
            print(f"step {step + 1} loss {losses[-1]:.6g}", flush=True)  # noqa: T201 (the live log)
        progress(2 + settings.steps, total, "a last partial batch")
        partial = trainer.train([last_batch])
        named = dict(model.named_parameters())
        run_blocks = [path for path in copy.blocks if trained.forwards[path]]
        times = 2 if settings.checkpointing else 1
        return ScaledRun(
            name=settings.subject.name,
            how=copy.how,
            reductions=copy.reductions,
            parameter_count=parameter_total([model]),
            precision=precision_words or known.label,
            optimizer=settings.optimizer,
            losses=tuple(losses),
            microbatches=tuple(sizes),
            partial_microbatches=tuple(last),
            partial_loss=partial.losses[0],
            sequence=sequence,
            inputs=example.description,
            trained=len(trained.with_gradient),
            without_gradient=tuple(
                name for name, p in named.items() if p.requires_grad and name not in trained.with_gradient
            ),
            frozen=sum(not p.requires_grad for p in named.values()),
            tied=tuple(group for group in groups if group in ties(model)),
            checkpointed=len(run_blocks) if settings.checkpointing else 0,
            recomputed=settings.checkpointing
            and all(trained.forwards[path] >= times * len(sizes) for path in run_blocks),
            comparisons=tuple(comparisons),
            notes=(*settings.notes, *notes, *more),
            seconds=time.perf_counter() - begun,
            step_seconds=trained.step_seconds,
        ).as_dict()


def _types(settings: _Settings) -> tuple[torch.dtype, str, list[str]]:
    """Type of the copy's parameters on this machine, and words where it is not the plan's."""
    import torch

    if settings.precision in {"fp32", "amp"}:
        return torch.float32, "", []
    if settings.precision == "bf16":
        return torch.bfloat16, "", []
    words = "bf16 with fp32 master copies and a loss scale, in the place of fp16"
    note = "fp16 was computed in bf16, which has the same size: processors take some twenty times as long over fp16."
    return torch.bfloat16, words, [note]


def _partial(sizes: list[int], *, least: int) -> list[int]:
    """Microbatches of a batch that lacks a sample, or of a single sample."""
    left = max(sum(sizes) - 1, least)
    parts: list[int] = []
    while left > 0:
        parts.append(min(sizes[0], left))
        left -= parts[-1]
    if len(parts) > 1 and parts[-1] < least:
        rest = parts.pop()
        parts[-1] += rest
    return parts


def _compare(
    copy: Copy, settings: _Settings, example: Any, sequence: int, samples: int, dtype: torch.dtype
) -> tuple[list[Comparison], list[str]]:
    """Predictions for the copy itself against one real microbatch."""
    from smp_advisor.errors import AdvisorError
    from smp_advisor.profiling.fake import fake_copy, fake_inputs, fake_mode
    from smp_advisor.profiling.inputs import filled
    from smp_advisor.profiling.scaled.making import plain_inputs, token_count
    from smp_advisor.profiling.step import measure_step
    from smp_advisor.profiling.structure import parameter_total
    from smp_advisor.workload import Model

    model = copy.model
    found: list[Comparison] = []
    notes: list[str] = []
    if copy.subject.model_class is not None:
        try:
            predicted = Model.from_config(copy.subject.config).parameter_count
            found.append(Comparison("parameters", predicted, parameter_total([model]), "the advisor's formulas"))
        except AdvisorError:
            notes.append("The advisor has no formulas for this family; it counts the model itself.")
    vocab = token_count(copy)
    inputs = plain_inputs(filled(example.make(samples, sequence), vocab), dtype)
    options: dict[str, Any] = {
        "precision": settings.precision,
        "attention": "eager",
        "blocks": copy.blocks,
        "checkpointing": settings.checkpointing,
    }
    real = measure_step(model, inputs, **options)
    try:
        mode = fake_mode()
        faked = fake_copy(model, mode, None)
        with mode:
            traced = measure_step(faked, fake_inputs(inputs, mode, dtype), **options)
    except Exception as error:  # noqa: BLE001 (models fail to trace in any way they like)
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        notes.append(f"The copy could not be traced ({reason}): its figures are those of real steps alone.")
        return found, notes
    by = "its trace"
    return [
        *found,
        Comparison("saved bytes", traced.saved_bytes, real.saved_bytes, by),
        Comparison("forward FLOPs", traced.forward_flops, real.forward_flops, by),
        Comparison("backward FLOPs", traced.backward_flops, real.backward_flops, by),
    ], notes
