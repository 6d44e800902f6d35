"""Real training steps of the scaled copy in the child process."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.extrapolation import FIGURES
from smp_advisor.profiling.inputs import cast_inputs, example_inputs, filled, valid_ids
from smp_advisor.profiling.parts import Agreement
from smp_advisor.profiling.precision import training_precision
from smp_advisor.profiling.recurrent_kernels import has_recurrent_layers
from smp_advisor.profiling.scaled.build import make_copy, narrower, trace_copy
from smp_advisor.profiling.scaled.result import ScaledRun
from smp_advisor.profiling.step import call_model, loss_of, make_optimizer, measure_step
from smp_advisor.profiling.structure import parameter_total, ties
from smp_advisor.sandbox import progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from smp_advisor.profiling.inferred_inputs import ExampleInputs
    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.profiling.scaled.build import Copy
    from smp_advisor.profiling.scaled.run import Settings
    from smp_advisor.profiling.step import StepMeasure


_STAGES = 4
"""Building the copy, its trace, and two steps."""
_SAMPLES = 2
"""Of a batch: the fewest for which norms of batches have statistics."""
_MOST_TOKENS = 64
_MOST_WORK = 8_000_000_000
"""Limit of `StepMeasure.work` of a step: a second of one core in 16 bits. A copy is narrowed to it."""
_EXCESS = 6
"""A copy that cannot be reduced to the limit is not trained if a step has this many times the work."""


def train(profiled: ProfiledModel, inputs: Any, settings: Settings) -> ScaledRun:
    """Build the copy, train it for two steps, and compare one with its trace."""
    with ExitStack() as stack:
        progress(0, _STAGES, "copy: building")
        dtype = torch.float32 if settings.precision in {"fp32", "amp"} else torch.bfloat16
        copy = make_copy(profiled, stack, memory_bytes=settings.memory_bytes, dtype=dtype, inputs=inputs)
        sized = _sized(copy, inputs, settings, dtype)
        if sized.work > _MOST_WORK:
            most_parameters = max(1, parameter_total([copy.model]) * _MOST_WORK // sized.work)
            narrowed = narrower(copy, most_parameters, inputs)
            smaller = None if narrowed is None else _sized(narrowed, inputs, settings, dtype)
            # A module that reads values accepts any width up to there; its trace with assumed values does not.
            sized = smaller if smaller is not None and smaller.traced is not None else sized
        if sized.work > _EXCESS * _MOST_WORK:
            raise ProfileError(
                f"A step of the copy of {profiled.name} takes {sized.work / 1e9:,.0f} GFLOPs on this machine, over the "
                f"limit of {_EXCESS * _MOST_WORK / 1e9:,.0f}: pass smaller inputs for the stage 'copy'."
            )
        return _stepped(profiled, sized, settings)


@dataclass(frozen=True, kw_only=True)
class _Sized:
    """A copy with its inputs, and the trace of a step with them."""

    copy: Copy
    example: ExampleInputs
    traced: StepMeasure | None
    """None if the copy could not be traced."""
    failure: str
    """Error of the trace; with assumed values, it still counts the work of a step."""
    sequence: int
    vocab: int
    dtype: torch.dtype
    notes: tuple[str, ...]
    options: Mapping[str, Any]

    @property
    def work(self) -> int:
        """`StepMeasure.work` of a step; 0 if the copy could not be traced."""
        return 0 if self.traced is None else self.traced.work


def _sized(copy: Copy, inputs: Any, settings: Settings, dtype: torch.dtype) -> _Sized:
    """Trace a step of the copy."""
    notes = []
    if settings.optimizer not in {"adam", "sgd", "plain-sgd"}:
        notes.append(f"AdamW was used instead of {settings.optimizer}.")
    if settings.precision == "fp16":
        notes.append("fp16 was computed in bf16, which has the same size: on a CPU, fp16 is about 20 times slower.")
    model = copy.model.train()
    example = example_inputs(model, inputs)
    full = min(settings.sequence, example.longest or settings.sequence) if example.has_sequence else 1
    sequence = min(full, _MOST_TOKENS)
    if sequence < full:
        notes.append(f"tokens per sample reduced from {full} to {sequence}.")
    vocab = valid_ids(model)
    options = {"attention": "eager", "blocks": copy.blocks, "precision": settings.precision}
    progress(1, _STAGES, "copy: trace")
    inputs = cast_inputs(filled(example.make(_SAMPLES, sequence), vocab), dtype)
    traced, failure = trace_copy(model, inputs, dtype, options)
    return _Sized(
        copy=copy, example=example, traced=traced, failure=failure, sequence=sequence, vocab=vocab, dtype=dtype,
        notes=tuple(notes), options=options,
    )  # fmt: skip


def _stepped(profiled: ProfiledModel, sized: _Sized, settings: Settings) -> ScaledRun:
    """Train the copy for two steps, and compare one with its trace."""
    copy, example, precision = sized.copy, sized.example, settings.precision
    model, groups = copy.model, ties(copy.model)
    size = (_SAMPLES, sized.sequence) if example.scales else (1, 1)
    batch = cast_inputs(filled(example.make(*size), sized.vocab), sized.dtype)
    trainer = _Trainer(model, precision, settings.optimizer)
    torch.manual_seed(0)  # of dropout: otherwise the kernel's state would make every run a different one
    # Only the first step is measured: the second shows that the update took place.
    losses: list[float] = []

    def record(loss: Tensor) -> None:
        losses.append(float(loss.detach()))
        print(f"step {len(losses)} loss {losses[-1]:.6g}", flush=True)  # noqa: T201 (the live log)

    # The first step is measured, the second shows which layers run.
    progress(2, _STAGES, "copy: step 1 of 2")
    real = measure_step(model, batch, keeps_gradients=True, **sized.options)
    record(real.loss)
    trained, ran = trainer.update(), set[str]()
    progress(3, _STAGES, "copy: step 2 of 2")
    with _running(model, ran), torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "amp"):
        loss = loss_of(call_model(model, batch))
    loss.backward()  # type: ignore[no-untyped-call]
    record(loss)
    trained |= trainer.update()  # a step may drop layers at random
    # The trace predicted this step: where they differ, the trace is not to be trusted.
    comparisons, comparison_notes = _compared(sized, real)
    missing = tuple(name for name, p in model.named_parameters() if p.requires_grad and name not in trained)
    return ScaledRun(
        name=profiled.name,
        how=copy.how,
        reductions=copy.reductions,
        parameter_count=parameter_total([model]),
        precision="bf16 with fp32 master copies" if precision == "fp16" else training_precision(precision).label,
        optimizer=settings.optimizer,
        losses=tuple(losses),
        returns_loss=real.returns_loss,
        sequence=sized.sequence,
        inputs=example.description,
        trained=len(trained),
        without_gradient=missing,
        unused=tuple(name for name in missing if name.rpartition(".")[0] not in ran),
        frozen=sum(not p.requires_grad for p in model.parameters()),
        tied=tuple(group for group in groups if group in ties(model)),
        comparisons=tuple(comparisons),
        notes=(*sized.notes, *comparison_notes),
    )


def _compared(sized: _Sized, real: StepMeasure) -> tuple[list[Agreement], list[str]]:
    """Predictions for the copy next to its first step, and notes."""
    traced, comparable = sized.traced, dict(FIGURES)
    if traced is None or sized.failure:
        return [], [f"The copy could not be traced ({sized.failure}): its figures are from real steps alone."]
    notes = []
    if has_recurrent_layers(sized.copy.model):
        del comparable["saved bytes"]
        notes.append(
            "Recurrent layers: the trace has the saved bytes of GPU kernels, and the kernels of this machine save more."
        )
    return [
        Agreement(figure=figure, predicted=read(traced), measured=read(real), against="its trace")
        for figure, read in comparable.items()
    ], notes


_LEARNING_RATE = 5e-4
"""Small enough for convolutional networks, large enough for a visible change in a few steps."""


class _Trainer:
    """The optimizer of a model in a precision; 16-bit parameters of ``mixed`` and ``fp16`` are copies of fp32 ones."""

    def __init__(self, model: nn.Module, precision: str, optimizer: str) -> None:
        self.model, form = model, training_precision(precision)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        has_masters = form.copy_bytes > 0 or form.gathers
        self.masters = [nn.Parameter(p.detach().float().clone()) for p in self.parameters] if has_masters else []
        self.optimizer = make_optimizer(self.masters or self.parameters, optimizer, foreach=False)
        for group in self.optimizer.param_groups:
            group["lr"] = _LEARNING_RATE

    def update(self) -> set[str]:
        """Update the parameters, and return the names of those with a gradient."""
        with_gradient = {name for name, p in self.model.named_parameters() if p.grad is not None}
        copies = list(zip(self.parameters, self.masters, strict=True)) if self.masters else []
        for parameter, master in copies:
            master.grad = None if parameter.grad is None else parameter.grad.float()
        self.optimizer.step()
        with torch.no_grad():
            for parameter, master in copies:
                parameter.copy_(master)
        self.model.zero_grad(set_to_none=True)
        return with_gradient


@contextlib.contextmanager
def _running(model: nn.Module, paths: set[str]) -> Iterator[None]:
    """Add the paths of the modules that run and have parameters of their own."""
    handles = [
        module.register_forward_pre_hook(lambda _, __, path=path: paths.add(path))
        for path, module in model.named_modules()
        if module._parameters
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
