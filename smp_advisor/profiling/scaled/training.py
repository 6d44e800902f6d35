"""Real training steps of the scaled copy in the child process, with the plan's precision and microbatches."""

from __future__ import annotations

import contextlib
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.extrapolation import FIGURES
from smp_advisor.profiling.inputs import cast_inputs, example_inputs, filled, microbatches_of, samples_of, valid_ids
from smp_advisor.profiling.parts import Agreement
from smp_advisor.profiling.patching import wrapped_forwards
from smp_advisor.profiling.precision import training_precision
from smp_advisor.profiling.recurrent_kernels import has_recurrent_layers
from smp_advisor.profiling.scaled.build import make_copy, narrower, trace_copy
from smp_advisor.profiling.scaled.result import ScaledRun
from smp_advisor.profiling.step import call_model, checkpointed, loss_of, make_optimizer, measure_step
from smp_advisor.profiling.structure import parameter_total, ties
from smp_advisor.sandbox import progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from smp_advisor.profiling.inferred_inputs import ExampleInputs
    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.profiling.scaled.build import Copy
    from smp_advisor.profiling.scaled.run import PlannedSteps
    from smp_advisor.profiling.step import StepMeasure


_STEPS = 2
_STAGES = _STEPS + 2
"""Building the copy, its trace, and the steps."""
_MOST_TOKENS = 64
_MOST_WORK = 8_000_000_000
"""Limit of `StepMeasure.work` of a step with all its microbatches: a second of one core in 16 bits. A copy is narrowed
to it."""
_EXCESS = 6
"""A copy that cannot be reduced to the limit is not trained if a step has this many times the work."""


def train(profiled: ProfiledModel, inputs: Any, planned: PlannedSteps) -> ScaledRun:
    """Build the copy, train it for two steps, and compare one with its trace."""
    with ExitStack() as stack:
        progress(0, _STAGES, "copy: building")
        dtype = torch.float32 if planned.precision in {"fp32", "amp"} else torch.bfloat16
        copy = make_copy(profiled, stack, memory_bytes=planned.memory_bytes, dtype=dtype, inputs=inputs)
        sized = _sized(copy, inputs, planned, dtype)
        if sized.work > _MOST_WORK:
            most_parameters = max(1, parameter_total([copy.model]) * _MOST_WORK // sized.work)
            narrowed = narrower(copy, most_parameters, inputs)
            smaller = None if narrowed is None else _sized(narrowed, inputs, planned, dtype)
            # A module that reads values accepts any width up to there; its trace with assumed values does not.
            sized = smaller if smaller is not None and smaller.traced is not None else sized
        if sized.work > _EXCESS * _MOST_WORK:
            raise ProfileError(
                f"A step of the copy of {profiled.name} takes {sized.work / 1e9:,.0f} GFLOPs on this machine, over the "
                f"limit of {_EXCESS * _MOST_WORK / 1e9:,.0f}: pass smaller inputs for the stage 'copy'."
            )
        return _stepped(profiled, sized, planned)


@dataclass(frozen=True, kw_only=True)
class _Sized:
    """A copy with its inputs, and the trace of a step with them."""

    copy: Copy
    example: ExampleInputs
    traced: StepMeasure | None
    """None if the copy could not be traced."""
    failure: str
    """Error of the trace; with assumed values, it still counts the work of a step."""
    sizes: tuple[int, ...]
    """Samples of each microbatch."""
    sequence: int
    vocab: int
    dtype: torch.dtype
    notes: tuple[str, ...]
    options: Mapping[str, Any]

    @property
    def work(self) -> int:
        """`StepMeasure.work` of a step; 0 if the copy could not be traced."""
        return 0 if self.traced is None else self.traced.work * len(self.sizes)


def _sized(copy: Copy, inputs: Any, planned: PlannedSteps, dtype: torch.dtype) -> _Sized:
    """Trace a step of the copy."""
    notes = list(planned.notes)
    if planned.precision == "fp16":
        notes.append("fp16 was computed in bf16, which has the same size: on a CPU, fp16 is about 20 times slower.")
    model = copy.model.train()
    example = example_inputs(model, inputs)
    full = min(planned.sequence, example.longest or planned.sequence) if example.has_sequence else 1
    sequence = min(full, _MOST_TOKENS)
    if sequence < full:
        notes.append(f"tokens per sample reduced from {full} to {sequence}.")
    has_batch_norm = any("BatchNorm" in type(module).__name__ for module in model.modules())
    sizes = tuple(max(size, 2) if has_batch_norm else size for size in planned.sizes)
    vocab = valid_ids(model)
    options = {
        "attention": "eager",
        "blocks": copy.blocks,
        "checkpointing": planned.checkpointing,
        "precision": planned.precision,
    }
    progress(1, _STAGES, "copy: trace")
    inputs = cast_inputs(filled(example.make(sizes[0], sequence), vocab), dtype)
    traced, failure = trace_copy(model, inputs, dtype, options)
    return _Sized(
        copy=copy, example=example, traced=traced, failure=failure, sizes=sizes, sequence=sequence, vocab=vocab,
        dtype=dtype, notes=tuple(notes), options=options,
    )  # fmt: skip


def _stepped(profiled: ProfiledModel, sized: _Sized, planned: PlannedSteps) -> ScaledRun:
    """Train the copy for two steps, and compare one with its trace."""
    copy, example, sizes = sized.copy, sized.example, sized.sizes
    model, precision, checkpointing = copy.model, planned.precision, planned.checkpointing
    if example.scales:
        batch = microbatches_of(filled(example.make(sum(sizes), sized.sequence), sized.vocab), len(sizes))
    else:
        batch = [filled(example.make(1, 1), sized.vocab)] * len(sizes)
    groups = ties(model)
    trainer = _Trainer(
        model,
        precision=precision,
        dtype=sized.dtype,
        optimizer=planned.optimizer,
        blocks=copy.blocks if checkpointing else (),
        counted=copy.blocks,
    )
    torch.manual_seed(0)  # of dropout: otherwise the kernel's state would make every run a different one
    losses: list[float] = []
    for step in range(_STEPS):
        progress(2 + step, _STAGES, f"copy: step {step + 1} of {_STEPS}")
        trained = trainer.train(batch, measured=None if step else sized.options)
        losses.append(trained.loss)
        print(f"step {step + 1} loss {losses[-1]:.6g}", flush=True)  # noqa: T201 (the live log)
    assert trainer.measure is not None  # noqa: S101 (of the first step)
    comparisons, comparison_notes = _compared(sized, trainer.measure)
    trainable = (name for name, p in model.named_parameters() if p.requires_grad)
    missing = tuple(name for name in trainable if name not in trained.with_gradient)
    run_blocks = [path for path in copy.blocks if trained.forwards[path]]
    return ScaledRun(
        name=profiled.name,
        how=copy.how,
        reductions=copy.reductions,
        parameter_count=parameter_total([model]),
        precision="bf16 with fp32 master copies" if precision == "fp16" else training_precision(precision).label,
        optimizer=planned.optimizer,
        losses=tuple(losses),
        returns_loss=trainer.measure.returns_loss,
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


def _compared(sized: _Sized, real: StepMeasure) -> tuple[list[Agreement], list[str]]:
    """Predictions for the copy next to its first microbatch, and notes."""
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


@dataclass(slots=True)
class _Trained:
    """Results of a training step."""

    loss: float = 0.0
    """Averaged over the microbatches."""
    with_gradient: set[str] = field(default_factory=set)
    """Parameters with a gradient in any step so far: a step may drop layers at random."""
    forwards: Counter[str] = field(default_factory=Counter)
    """Total forward passes of each block."""
    ran: set[str] = field(default_factory=set)
    """Paths of the modules with parameters of their own that ran."""


class _Trainer:
    """A model, its optimizer and its precision; 16-bit parameters of ``mixed`` and ``fp16`` are copies of fp32 ones."""

    def __init__(
        self,
        model: nn.Module,
        *,
        precision: str,
        dtype: torch.dtype,
        optimizer: str,
        blocks: Sequence[str],
        counted: Sequence[str],
    ) -> None:
        self.model, self.precision, self.dtype = model, precision, dtype
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        form = training_precision(precision)
        has_masters = form.copy_bytes > 0 or form.gathers
        self.masters = [nn.Parameter(p.detach().float().clone()) for p in self.parameters] if has_masters else []
        self.optimizer = make_optimizer(self.masters or self.parameters, optimizer, foreach=False)
        for group in self.optimizer.param_groups:
            group["lr"] = _LEARNING_RATE
        self.blocks, self.counted = blocks, counted
        self.with_gradient: set[str] = set()
        self.measure: StepMeasure | None = None

    def train(self, microbatches: Sequence[Any], *, measured: Mapping[str, Any] | None) -> _Trained:
        """Run one step; with options in `measured`, its first microbatch is measured."""
        trained = _Trained(with_gradient=self.with_gradient)
        with self._counted(trained), _running(self.model, trained.ran):
            samples = [samples_of(microbatch) for microbatch in microbatches]
            for place, microbatch in enumerate(microbatches):
                inputs, share = cast_inputs(microbatch, self.dtype), samples[place] / sum(samples)
                if measured is not None and not place:
                    self.measure = measure_step(self.model, inputs, keeps_gradients=True, **measured)
                    loss = cast("Tensor", self.measure.loss)
                    for gradient in (p.grad for p in self.parameters if p.grad is not None):
                        gradient.mul_(share)
                else:
                    with (
                        checkpointed(self.model, self.blocks, preserve_rng_state=True),
                        torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.precision == "amp"),
                    ):
                        loss = loss_of(call_model(self.model, inputs))
                    (loss * share).backward()  # type: ignore[no-untyped-call]
                trained.loss += float(loss.detach()) * share
            trained.with_gradient |= {name for name, p in self.model.named_parameters() if p.grad is not None}
            self._step()
        return trained

    def _step(self) -> None:
        if not self.masters:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            return
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
        self.optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(self.parameters, self.masters, strict=True):
                parameter.copy_(master)
                parameter.grad = None

    def _counted(self, trained: _Trained) -> AbstractContextManager[None]:
        """Count the forward passes of the blocks, including recomputation."""

        def wrap(path: str, original: Callable[..., Any]) -> Callable[..., Any]:
            def forward(*arguments: Any, **keywords: Any) -> Any:
                trained.forwards[path] += 1
                return original(*arguments, **keywords)

            return forward

        return wrapped_forwards(self.model, self.counted, wrap)


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
