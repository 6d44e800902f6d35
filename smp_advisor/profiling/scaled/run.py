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
    from smp_advisor.profiling.inputs import ExampleInputs
    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.profiling.scaled.build import Copy
    from smp_advisor.profiling.scaled.copy_inputs import Affordable
    from smp_advisor.profiling.scaled.extrapolated import Measuring
    from smp_advisor.profiling.scaled.training import Trained, Trainer
    from smp_advisor.profiling.step import StepMeasure
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
    memory_bytes: int
    """Memory that the copy is built for."""
    extrapolates: bool = False
    """Whether copies at other widths and depths are extrapolated to the full size."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PlannedSteps:
        """Inverse of `as_dict`, also after a JSON round trip."""
        return cls(**(dict(values) | {name: tuple(values[name]) for name in ("sizes", "notes")}))


def planned_steps(
    job: Job, plan: Plan | None, *, precision: str, attention: str, memory_bytes: int, extrapolates: bool
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
        memory_bytes=memory_bytes,
        extrapolates=extrapolates,
    )


_STEPS = 2
_MOST_TOKENS = 64
_MOST_WORK = 20_000_000_000
"""Limit of `StepMeasure.work` of a step with all its microbatches: one to two seconds of one core in 16 bits. Guessed
images and sounds are reduced to it, and then the width of the copy."""
_EXCESS = 10
"""A copy that cannot be reduced to the limit is not trained if a step has this many times the work."""
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
    extrapolates: bool = False,
    memory_bytes: int | None = None,
    seconds: float = GUARD_SECONDS,
    on_line: Callable[[str], None] | None = None,
    on_progress: Callable[[float, float, str], None] | None = None,
) -> ScaledRun:
    """Train a scaled copy of a model for two steps in a child process.

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
    extrapolates
        Whether copies at other widths and depths are measured and extrapolated to the full size.

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
        memory_bytes=memory_bytes or _MEMORY_BYTES,
        extrapolates=extrapolates,
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
    from smp_advisor.profiling.failures import is_about_types, source_frame

    try:
        return _train(profiled, inputs, PlannedSteps.from_dict(planned)).as_dict()
    except Exception as error:
        if not is_about_types(error):
            raise
        frame = source_frame(error)
        return {"problem": " ".join(str(error).split())[:160].rstrip(".") + (f" ({frame})" if frame else "")}


def _train(profiled: ProfiledModel, inputs: Any, planned: PlannedSteps) -> ScaledRun:
    """Build the copy, train it, compare it with its trace, and extrapolate it; runs in the child process."""
    most_parameters: int | None = None
    while True:
        with ExitStack() as stack:
            try:
                sized = _sized(profiled, inputs, planned, stack, most_parameters)
            except ProfileError:
                if most_parameters is None:
                    raise
                most_parameters = _UNLIMITED  # it cannot be narrower
                continue
            count, work = sized.parameter_count, sized.work * len(sized.sizes)
            if most_parameters is None and work > _MOST_WORK and profiled.model_class is None:
                most_parameters = max(1, count * _MOST_WORK // work)
                continue
            if work > _EXCESS * _MOST_WORK:
                raise ProfileError(
                    f"A step of the copy of {profiled.name} takes {work / 1e9:,.0f} GFLOPs on this machine, over the "
                    f"limit of {_EXCESS * _MOST_WORK / 1e9:,.0f}: pass smaller inputs for the stage 'copy'."
                )
            result = _stepped(profiled, sized, planned)
            copy, was_reduced = sized.copy, bool(sized.affordable.note)
            break
    if not planned.extrapolates:
        return result
    if was_reduced:
        reason = "No figures were extrapolated to the full model: the inputs of the copy were reduced."
        return replace(result, notes=(*result.notes, reason))
    progress(2 + _STEPS, _STEPS + 3, "extrapolation: copies at other widths and depths")
    measuring = _measuring(inputs, planned)
    return _extrapolated(result, profiled, copy, measuring)


_UNLIMITED = 2**62


@dataclass(frozen=True, kw_only=True)
class _Sized:
    """A copy whose inputs, and the work of a step with them, are known."""

    copy: Copy
    affordable: Affordable
    sizes: tuple[int, ...]
    """Samples of each microbatch."""
    sequence: int
    vocab: int
    dtype: torch.dtype
    precision_text: str
    notes: tuple[str, ...]
    options: Mapping[str, Any]

    @property
    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.copy.model.parameters())

    @property
    def work(self) -> int:
        """Work of a microbatch; 0 if the copy could not be traced."""
        return self.affordable.traced.work if self.affordable.traced is not None else 0


def _sized(
    profiled: ProfiledModel, inputs: Any, planned: PlannedSteps, stack: ExitStack, most_parameters: int | None
) -> _Sized:
    """Build the copy and trace a step of it."""
    from smp_advisor.profiling.inputs import example_inputs
    from smp_advisor.profiling.scaled.build import make_copy, token_count
    from smp_advisor.profiling.scaled.copy_inputs import affordable_inputs

    progress(0, _STEPS + 3, "copy: building")
    dtype, precision_text, precision_notes = _types(planned.precision)
    copy = make_copy(
        profiled,
        stack,
        memory_bytes=planned.memory_bytes,
        dtype=dtype,
        inputs=inputs,
        most_parameters=most_parameters,
    )
    model = copy.model.train()
    example = example_inputs(model, inputs, config=copy.profiled.config)
    sequence, sequence_notes = _sequence(planned.sequence, example)
    has_batch_norm = any("BatchNorm" in type(module).__name__ for module in model.modules())
    sizes = tuple(max(size, 2) if has_batch_norm else size for size in planned.sizes)
    vocab = token_count(copy)
    options = {
        "attention": "eager",
        "blocks": copy.blocks,
        "checkpointing": planned.checkpointing,
        "precision": planned.precision,
    }
    progress(1, _STEPS + 3, "copy: trace")
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
    notes = (*planned.notes, *precision_notes, *sequence_notes, *filter(None, [affordable.note]))
    return _Sized(
        copy=copy,
        affordable=affordable,
        sizes=sizes,
        sequence=sequence,
        vocab=vocab,
        dtype=dtype,
        precision_text=precision_text,
        notes=notes,
        options=options,
    )


def _stepped(profiled: ProfiledModel, sized: _Sized, planned: PlannedSteps) -> ScaledRun:
    """Train the copy for two steps, and compare one with its trace."""
    from smp_advisor.profiling.inputs import cast_inputs, filled
    from smp_advisor.profiling.scaled.training import Trainer, split
    from smp_advisor.profiling.structure import parameter_total, ties

    copy, example, sizes = sized.copy, sized.affordable.example, sized.sizes
    model, precision, checkpointing = copy.model, planned.precision, planned.checkpointing
    if example.scales:
        batch = split(filled(example.make(sum(sizes), sized.sequence), sized.vocab), sizes)
    else:
        batch = [filled(example.make(1, 1), sized.vocab)] * len(sizes)
    groups = ties(model)
    sample = cast_inputs(filled(example.make(sizes[0], sized.sequence), sized.vocab), sized.dtype)
    comparisons, comparison_notes, real = _compare(copy, sample, sized.affordable, sized.options)
    trainer = Trainer(
        model,
        precision=precision,
        dtype=sized.dtype,
        optimizer=planned.optimizer,
        blocks=copy.blocks if checkpointing else (),
        counted=copy.blocks,
    )
    trained, losses = _trained_steps(trainer, batch)
    trainable = (name for name, p in model.named_parameters() if p.requires_grad)
    missing = tuple(name for name in trainable if name not in trained.with_gradient)
    run_blocks = [path for path in copy.blocks if trained.forwards[path]]
    return ScaledRun(
        name=profiled.name,
        how=copy.how,
        reductions=copy.reductions,
        parameter_count=parameter_total([model]),
        precision=sized.precision_text or training_precision(precision).label,
        optimizer=planned.optimizer,
        losses=tuple(losses),
        returns_loss=real.returns_loss,
        microbatches=tuple(sizes),
        sequence=sized.sequence,
        inputs=example.description,
        trained=len(trained.with_gradient),
        without_gradient=missing,
        unused=tuple(name for name in missing if name.rpartition(".")[0] not in trained.ran),
        frozen=sum(not p.requires_grad for p in model.parameters()),
        tied=tuple(group for group in groups if group in ties(model)),
        checkpointed=len(run_blocks) if checkpointing else 0,
        recomputed=checkpointing and all(trained.forwards[path] >= 2 * len(sizes) for path in run_blocks),
        comparisons=tuple(comparisons),
        notes=(*sized.notes, *comparison_notes),
    )


def _measuring(inputs: Any, planned: PlannedSteps) -> Measuring:
    from smp_advisor.profiling.scaled.extrapolated import Measuring

    return Measuring(
        precision=planned.precision,
        dtype=_types(planned.precision)[0],
        attention=planned.attention,
        sequence=planned.sequence,
        inputs=inputs,
    )


def _extrapolated(result: ScaledRun, profiled: ProfiledModel, copy: Copy, measuring: Measuring) -> ScaledRun:
    """The result with figures of the full model, or with the reason why there are none."""
    from smp_advisor.profiling.scaled.extrapolated import at_full_size_of

    try:
        return replace(result, full_size=at_full_size_of(profiled, copy.cut, measuring))
    except ProfileError as error:
        note = f"No figures were extrapolated to the full model: {error.sentence}"
        return replace(result, notes=(*result.notes, note))


def _trained_steps(trainer: Trainer, batch: Any) -> tuple[Trained, list[float]]:
    """The last training step and the loss of each."""
    import torch

    torch.manual_seed(0)  # of dropout: otherwise the kernel's state would make every run a different one
    losses: list[float] = []
    trained = trainer.train([])
    for step in range(_STEPS):
        progress(2 + step, _STEPS + 3, f"copy: step {step + 1} of {_STEPS}")
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


def _compare(
    copy: Copy, inputs: Any, affordable: Affordable, options: Mapping[str, Any]
) -> tuple[list[Comparison], list[str], StepMeasure]:
    """Compare predictions for the copy with one real microbatch; also returns notes, and the measured step."""
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
        return comparisons, notes, real
    comparisons += [Comparison(figure, read(traced), read(real), "its trace") for figure, read in FIGURES.items()]
    if has_recurrent_layers(model):
        notes.append(
            "Recurrent layers: the trace has the saved bytes of GPU kernels, and the kernels of this machine save more."
        )
    return comparisons, notes, real
