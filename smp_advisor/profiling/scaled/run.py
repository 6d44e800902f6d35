"""Run of the scaled copy: training steps in a child process, compared with its trace."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.description import GUARD_SECONDS, as_json, from_json, without_collections
from smp_advisor.profiling.precision import higher_precision, training_precision
from smp_advisor.profiling.sandbox import Limits, progress, run_isolated
from smp_advisor.profiling.scaled.result import Comparison, ScaledRun

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.profiling.example import ExampleInputs
    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.profiling.scaled.build import Copy
    from smp_advisor.profiling.scaled.copy_inputs import Affordable
    from smp_advisor.profiling.scaled.extrapolated import Measuring
    from smp_advisor.profiling.scaled.training import Trained, Trainer
    from smp_advisor.workload.job import Job

__all__ = ["run", "train_described"]

_MOST_MICROBATCHES = 4
_MOST_SAMPLES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSteps:
    """Microbatches and settings of a copy under a job and its plan, with its limits."""

    optimizer: str
    sequence: int
    """Tokens per sample of the job."""
    sizes: tuple[int, ...]
    """Samples of each microbatch of the copy."""
    checkpointing: bool
    notes: tuple[str, ...]
    """A sentence for each difference from the plan and the job."""
    precision: str
    attention: str
    """Kernel whose saved tensors are extrapolated to the full size."""
    steps: int
    memory_bytes: int
    """Memory that the copy is built for."""
    extrapolates: bool = True
    """Whether copies at other widths and depths are extrapolated to the full size."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PlannedSteps:
        """Inverse of `as_dict`, also after a JSON round trip."""
        return cls(**(dict(values) | {name: tuple(values[name]) for name in ("sizes", "notes")}))


def planned_steps(
    job: Job, plan: Plan | None, *, precision: str, attention: str, steps: int, memory_bytes: int
) -> PlannedSteps:
    """The steps of a copy under a plan; without one, a microbatch of two samples without checkpointing."""
    checkpointing = plan.activation_checkpointing if plan else False
    notes = []
    if checkpointing and str(checkpointing) != "each":
        notes.append(f"activation_checkpointing={checkpointing!r} was applied to each block.")
    if job.optimizer not in {"adam", "sgd", "plain-sgd"}:
        notes.append(f"AdamW was used instead of {job.optimizer}.")
    planned = plan.microbatches * plan.gradient_accumulation_steps if plan else 1
    samples = max(1, plan.batch_size // plan.microbatches) if plan else 2
    reducible = {
        "microbatches": (planned, min(planned, _MOST_MICROBATCHES)),
        "samples per microbatch": (samples, min(samples, _MOST_SAMPLES)),
    }
    notes += [f"{name} reduced from {full} to {used}." for name, (full, used) in reducible.items() if full != used]
    return PlannedSteps(
        optimizer=job.optimizer,
        sequence=job.sequence_length,
        sizes=(min(samples, _MOST_SAMPLES),) * min(planned, _MOST_MICROBATCHES),
        checkpointing=bool(checkpointing),
        notes=tuple(notes),
        precision=precision,
        attention=attention,
        steps=steps,
        memory_bytes=memory_bytes,
    )


_STEPS = 6
_MOST_TOKENS = 64
_LEAST_STEPS = 2
_MOST_WORK = 250_000_000_000
"""Limit of `StepMeasure.work` of a step with all its microbatches: 12 to 25 seconds of one core in 16 bits. Images and
sounds are reduced to it; inputs of the user are not, so that fewer steps are run."""
_MEMORY_BYTES = 4 * 2**30
"""Memory that a copy is built for, also on a machine that has less available: the copy is the same everywhere."""


def run(
    model: Any,
    job: Job,
    plan: Plan | None = None,
    *,
    name: str = "",
    inputs: Any = None,
    precision: str | None = None,
    attention: str = "fused",
    steps: int = _STEPS,
    memory_bytes: int | None = None,
    seconds: float = GUARD_SECONDS,
    on_line: Callable[[str], None] | None = None,
    on_progress: Callable[[float, float, str], None] | None = None,
) -> ScaledRun:
    """Train a scaled copy of a model for a few steps in a child process.

    A live module is neither modified nor copied in this process, and a model that JSON can describe is built in the
    child alone. Parameters that are not listed are those of `smp_advisor.profile`.

    Parameters
    ----------
    plan
        Microbatches, batch and activation checkpointing; None for one microbatch without checkpointing.
    name
        Name of the model in errors; that of the built model if it is empty.
    attention
        ``fused`` or ``eager``: the kernel whose saved tensors are extrapolated to the full size.
    steps
        Optimizer steps on one batch.

    Raises
    ------
    ProfileError
        The copy cannot be built, fails or exceeds a limit. The sentence names the user's source line.
    """
    target, argument, name = _started(model, inputs, name)
    planned = planned_steps(
        job,
        plan,
        precision=training_precision(precision or job.precision).precision,
        attention=attention,
        steps=steps,
        memory_bytes=memory_bytes or _MEMORY_BYTES,
    )
    notes: list[str] = []
    while True:  # until it runs in a precision; there are three
        higher = higher_precision(planned.precision)
        try:
            result = run_isolated(
                target,
                *argument,
                planned.as_dict(),
                what=f"the scaled copy of {name}",
                limits=Limits(memory_bytes=memory_bytes, seconds=seconds),
                on_line=on_line,
                on_progress=on_progress,
            )
        except ProfileError as error:
            # Kernels of recurrent layers crash on some CPUs: on one thread with long sequences, or in 16 bits.
            if error.kind != "crash" or not (planned.extrapolates or higher):
                raise
            if planned.extrapolates:
                planned = replace(planned, extrapolates=False)
                notes.append(f"No figures were extrapolated to the full model: {error.sentence}")
            else:
                planned = replace(planned, precision="fp32")
                notes.append(f"{error.sentence} It was trained in fp32.")
            continue
        if "problem" not in result:
            break
        failing = training_precision(planned.precision).title
        if not higher:
            raise ProfileError(f"The scaled copy of {name} failed in {failing}: {result['problem']}.")
        label = training_precision(higher).label
        notes.append(f"The copy fails in {failing}: {result['problem']}. It was trained with {label}.")
        planned = replace(planned, precision=higher)
    run = ScaledRun.from_dict(result)
    return replace(run, notes=(*notes, *run.notes))


def _started(model: Any, inputs: Any, name: str) -> tuple[Callable[..., Any] | str, tuple[Any, ...], str]:
    """Target of the child process, its first arguments, and the model's name.

    The child is a fresh interpreter if JSON can describe the model, else a fork of this process.
    """
    description = as_json(model) if name and inputs is None and "torch" not in sys.modules else None
    if description is not None:
        return "smp_advisor.profiling.scaled.run:train_described", (description,), name
    from smp_advisor.profiling.profiled_model import read_model

    profiled = read_model(model)
    return partial(_trained, profiled, inputs), (), name or profiled.name


def train_described(model: Any, planned: dict[str, Any]) -> dict[str, Any]:
    """Train a copy of a model described in JSON; called in a fresh interpreter."""
    from smp_advisor.profiling.profiled_model import read_model

    with without_collections():
        profiled = read_model(from_json(model))
    return _trained(profiled, None, planned)


def _trained(profiled: ProfiledModel, inputs: Any, planned: dict[str, Any]) -> dict[str, Any]:
    """The result as plain data; only the ``problem`` if the copy fails because of the types of this precision."""
    from smp_advisor.profiling.input_trial import is_about_types, source_frame

    try:
        return _train(profiled, inputs, PlannedSteps.from_dict(planned)).as_dict()
    except Exception as error:
        if not is_about_types(error):
            raise
        frame = source_frame(error)
        return {"problem": " ".join(str(error).split())[:160].rstrip(".") + (f" ({frame})" if frame else "")}


def _train(profiled: ProfiledModel, inputs: Any, planned: PlannedSteps) -> ScaledRun:
    """Build the copy, train it, compare it with its trace, and extrapolate it; runs in the child process."""
    from smp_advisor.profiling.inputs import cast_inputs, example_inputs, filled
    from smp_advisor.profiling.scaled.build import make_copy, token_count
    from smp_advisor.profiling.scaled.copy_inputs import affordable_inputs
    from smp_advisor.profiling.scaled.extrapolated import Measuring
    from smp_advisor.profiling.scaled.training import Trainer, split
    from smp_advisor.profiling.structure import parameter_total, ties

    steps, precision, checkpointing = planned.steps, planned.precision, planned.checkpointing
    total = steps + 4
    progress(0, total, "building the copy")
    sizes, notes = list(planned.sizes), list(planned.notes)
    dtype, precision_text, precision_notes = _types(precision)
    notes += precision_notes
    with ExitStack() as stack:
        copy = make_copy(profiled, stack, memory_bytes=planned.memory_bytes, dtype=dtype, inputs=inputs)
        model = copy.model.train()
        example = example_inputs(model, inputs, config=copy.profiled.config)
        sequence, sequence_notes = _sequence(planned.sequence, example)
        has_batch_norm = any("BatchNorm" in type(module).__name__ for module in model.modules())
        sizes = [max(size, 2) if has_batch_norm else size for size in sizes]
        vocab = token_count(copy)
        options = {"attention": "eager", "blocks": copy.blocks, "checkpointing": checkpointing, "precision": precision}
        progress(1, total, "comparing with the trace")
        affordable = affordable_inputs(
            model,
            example,
            samples=sizes[0],
            sequence=sequence,
            vocab=vocab,
            dtype=dtype,
            options=options,
            memory_bytes=planned.memory_bytes,
            most_work=_MOST_WORK // len(sizes),
        )
        example = affordable.example
        notes += [*sequence_notes, *([affordable.note] if affordable.note else [])]
        batch = split(filled(example.make(sum(sizes), sequence), vocab), sizes)
        last = _partial(sizes, minimum=2 if has_batch_norm else 1)
        last_batch = split(filled(example.make(sum(last), sequence), vocab, seed=1), last)
        groups = ties(model)
        if not _returns_loss(model, cast_inputs(batch[0], dtype)):
            notes.append("The model returned no loss: the mean of its outputs was used as the loss.")
        sample = cast_inputs(filled(example.make(sizes[0], sequence), vocab), dtype)
        comparisons, comparison_notes, work = _compare(copy, sample, affordable, options)
        steps, step_notes = _affordable_steps(steps, work * len(sizes))
        notes += step_notes
        trainer = Trainer(
            model,
            precision=precision,
            dtype=dtype,
            optimizer=planned.optimizer,
            blocks=copy.blocks if checkpointing else (),
            counted=copy.blocks,
        )
        trained, losses = _trained_steps(trainer, batch, steps)
        progress(2 + steps, total, "a last partial batch")
        partial = trainer.train([last_batch])
        trainable = (name for name, p in model.named_parameters() if p.requires_grad)
        missing = tuple(name for name in trainable if name not in trained.with_gradient)
        run_blocks = [path for path in copy.blocks if trained.forwards[path]]
        result = ScaledRun(
            name=profiled.name,
            how=copy.how,
            reductions=copy.reductions,
            parameter_count=parameter_total([model]),
            precision=precision_text or training_precision(precision).label,
            optimizer=planned.optimizer,
            losses=tuple(losses),
            microbatches=tuple(sizes),
            partial_microbatches=tuple(last),
            partial_loss=partial.losses[0],
            sequence=sequence,
            inputs=example.description,
            trained=len(trained.with_gradient),
            without_gradient=missing,
            unused=tuple(name for name in missing if name.rpartition(".")[0] not in trained.ran),
            frozen=sum(not p.requires_grad for p in model.parameters()),
            tied=tuple(group for group in groups if group in ties(model)),
            checkpointed=len(run_blocks) if checkpointing else 0,
            recomputed=checkpointing and all(trained.forwards[path] >= 2 * len(sizes) for path in run_blocks),
            comparisons=tuple(comparisons),
            notes=(*notes, *comparison_notes),
        )
    if not planned.extrapolates:
        return result
    if affordable.note:
        note = "No figures were extrapolated to the full model: the inputs of the copy were reduced."
        return replace(result, notes=(*result.notes, note))
    progress(3 + steps, total, "copies at other widths and depths")
    measuring = Measuring(
        precision=precision,
        dtype=dtype,
        attention=planned.attention,
        sequence=planned.sequence,
        inputs=inputs,
    )
    return _extrapolated(result, profiled, copy, measuring)


def _extrapolated(result: ScaledRun, profiled: ProfiledModel, copy: Copy, measuring: Measuring) -> ScaledRun:
    """The result with figures of the full model, or with the reason why there are none."""
    from smp_advisor.profiling.scaled.extrapolated import at_full_size_of

    try:
        return replace(result, full_size=at_full_size_of(profiled, copy.cut, measuring))
    except ProfileError as error:
        note = f"No figures were extrapolated to the full model: {error.sentence}"
        return replace(result, notes=(*result.notes, note))


def _affordable_steps(steps: int, work: int) -> tuple[int, list[str]]:
    """Steps to run if one of them takes this work, with a note if they are fewer; at least two."""
    affordable = min(steps, max(_LEAST_STEPS, steps * _MOST_WORK // max(work, 1)))
    size = f"{work / 1e9:,.0f} GFLOPs, over the limit of {_MOST_WORK / 1e9:,.0f}"
    return affordable, [f"{affordable} of {steps} steps were run: each takes {size}."] if affordable < steps else []


def _trained_steps(trainer: Trainer, batch: Any, steps: int) -> tuple[Trained, list[float]]:
    """The last training step and the loss of each."""
    import torch

    torch.manual_seed(0)  # of dropout: otherwise the kernel's state would make every run a different one
    losses: list[float] = []
    trained = trainer.train([])
    for step in range(steps):
        progress(2 + step, steps + 4, f"step {step + 1} of {steps}")
        trained = trainer.train([batch])
        losses += trained.losses
        print(f"step {step + 1} loss {losses[-1]:.6g}", flush=True)  # noqa: T201 (the live log)
    return trained, losses


def _sequence(sequence: int, example: ExampleInputs) -> tuple[int, list[str]]:
    """Tokens per sample, with a note if the job has more."""
    if not example.has_sequence:
        return 1, []
    full = min(sequence, example.longest or sequence)
    used = min(full, _MOST_TOKENS)
    return used, [f"tokens per sample reduced from {full} to {used}."] if used < full else []


def _returns_loss(model: torch.nn.Module, inputs: Any) -> bool:
    import torch

    from smp_advisor.profiling.step import call_model

    with torch.no_grad():
        output = call_model(model, inputs)
    return (isinstance(output, torch.Tensor) and output.ndim == 0) or getattr(output, "loss", None) is not None


def _types(precision: str) -> tuple[torch.dtype, str, list[str]]:
    """Dtype of the copy's parameters on this machine, with a text and a note if it differs from the plan's."""
    import torch

    if precision in {"fp32", "amp"}:
        return torch.float32, "", []
    if precision in {"bf16", "mixed"}:
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
    copy: Copy, inputs: Any, affordable: Affordable, options: Mapping[str, Any]
) -> tuple[list[Comparison], list[str], int]:
    """Compare predictions for the copy with one real microbatch; also returns notes, and the microbatch's work."""
    from smp_advisor.errors import AdvisorError
    from smp_advisor.profiling.extrapolation import FIGURES
    from smp_advisor.profiling.profiled_model import has_formulas_of_head
    from smp_advisor.profiling.recurrent_kernels import has_recurrent_layers
    from smp_advisor.profiling.step import measure_step
    from smp_advisor.profiling.structure import parameter_total
    from smp_advisor.workload import Model

    model = copy.model
    comparisons: list[Comparison] = []
    notes: list[str] = []
    if copy.profiled.model_class is not None and not has_formulas_of_head(copy.profiled.model_class.__name__):
        notes.append("The advisor's formulas are those of another head; the parameters are counted directly.")
    elif copy.profiled.model_class is not None:
        try:
            predicted = Model.from_config(copy.profiled.config).parameter_count
            comparisons.append(Comparison("parameters", predicted, parameter_total([model]), "the advisor's formulas"))
        except AdvisorError:
            notes.append("The advisor has no formulas for this model family; its parameters are counted directly.")
    real = measure_step(model, inputs, **options)
    traced = affordable.traced
    if traced is None:
        notes.append(f"The copy could not be traced ({affordable.failure}): its figures are from real steps alone.")
        return comparisons, notes, real.work
    comparisons += [Comparison(figure, read(traced), read(real), "its trace") for figure, read in FIGURES.items()]
    if has_recurrent_layers(model):
        notes.append(
            "Recurrent layers: the trace has the saved bytes of GPU kernels, and the kernels of this machine save more."
        )
    return comparisons, notes, real.work
