"""The full-size trace: a model without memory is stepped at a few sizes, and what it does is fitted exactly."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.composing import Composed, compose, kept_paths, timeline
from smp_advisor.profiling.fake import build_fake, build_under_fake, fake_copy, fake_inputs, fake_mode
from smp_advisor.profiling.inputs import ExampleInputs, example_inputs
from smp_advisor.profiling.measured import Agreement, Profile
from smp_advisor.profiling.optimizer_step import optimizer_rise_bytes
from smp_advisor.profiling.polynomial import Polynomial
from smp_advisor.profiling.recipe import recipe
from smp_advisor.profiling.sampling import Samples, choose_samples
from smp_advisor.profiling.step import StepMeasure, measure_step
from smp_advisor.profiling.structure import dimensions, stacks, ties
from smp_advisor.profiling.truncation import truncated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensorMode

    from smp_advisor.profiling.recipe import Recipe
    from smp_advisor.profiling.structure import Stack
    from smp_advisor.profiling.subject import Subject

__all__ = ["TOLERANCE", "Settings", "Traced", "compute_dtype", "quiet", "trace", "traced_step", "versions"]

TOLERANCE = 1e-4
"""How far the truncated, extrapolated trace may be from the full one in saved bytes and FLOPs."""
_PEAK_TOLERANCE = 1e-3
"""And in the peak: under autocast the 16-bit copies of the biases are dropped all at once when it ends."""
_WHOLE = 10**6
"""Repeats that truncate nothing."""
_LONG_OPERATIONS = 300_000
"""A full step of more operations is not traced: minutes of Python for state-space models run as loops."""
_SHORT_SEQUENCES = (32, 64, 96)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How the model is trained, as far as a trace depends on it."""

    precision: str = "fp16"
    attention: str = "eager"
    optimizer: str = "adam"
    batch: int = 1
    sequence: int = 2048
    inputs: Any = None
    """Example inputs, None to infer them."""
    answer: bool | None = None
    """What data-dependent tests are answered with; None refuses them."""
    checkpointing: bool = True
    """Whether to trace with checkpointed blocks too."""
    build: str = "meta"
    """``meta``, or ``fake`` for models with tensors that no module registers."""
    on_progress: Callable[[float, float, str], None] | None = field(default=None, compare=False)

    @property
    def recipe(self) -> Recipe:
        """Of the precision."""
        return recipe(self.precision)


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A profile with what it was made of."""

    profile: Profile
    assumed: tuple[str, ...]
    """Data-dependent tests that were answered by assumption."""


def compute_dtype(held: Recipe) -> torch.dtype:
    """Type of the traced parameters: bf16 stands for fp16, whose sizes are the same and whose kernels are more."""
    return torch.float32 if held.parameter_bytes == 4 else torch.bfloat16


def trace(subject: Subject, settings: Settings) -> Traced:
    """Profile a model at full size without allocating it.

    Raises
    ------
    Exception
        Whatever the model raises on fake tensors; `ladder.climb` tries the next method then.
    """
    began = time.perf_counter()
    with quiet():
        tracer = _Tracer(subject, settings)
        profile = tracer.profile()
    return Traced(
        profile=dataclasses.replace(profile, seconds=time.perf_counter() - began), assumed=tuple(tracer.assumed)
    )


def traced_step(subject: Subject, settings: Settings) -> tuple[StepMeasure, str]:
    """One step of the whole model at the settings' sequence, and what it was called with."""
    with quiet():
        tracer = _Tracer(subject, settings)
        return tracer.step(tracer.samples.largest[0], tracer.samples.sequences[-1], _WHOLE), tracer.example.description


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the tracebacks that fake tensors log for failures that are expected here."""
    loggers = [logging.getLogger(name) for name in ("torch._subclasses.fake_tensor", "transformers")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class _Tracer:
    """One fake model, stepped at several sizes."""

    def __init__(self, subject: Subject, settings: Settings) -> None:
        self.subject, self.settings = subject, settings
        self.mode: FakeTensorMode = fake_mode()
        self.assumed: list[str] = []
        self.warnings: list[str] = []
        self.operations = 0
        self._report(0, "building")
        self.model = self._build()
        self.model.train()
        self.stacks: list[Stack] = stacks(self.model)
        self.example: ExampleInputs = example_inputs(self.model, settings.inputs, config=subject.config)
        self.samples: Samples = choose_samples(
            settings.sequence,
            has_sequence=self.example.has_sequence,
            longest=self.example.longest,
            window=_window(subject.config),
        )

    def _build(self) -> nn.Module:
        dtype = compute_dtype(self.settings.recipe)
        subject, attention = self.subject, self.settings.attention
        if subject.module is not None:
            model = fake_copy(subject.module, self.mode, dtype)
            choose = getattr(model, "set_attn_implementation", None)
            if callable(choose):
                wanted = "eager" if attention == "eager" else "sdpa"
                with contextlib.suppress(ValueError, ImportError):
                    choose(wanted)
            return model
        build = build_under_fake if self.settings.build == "fake" else build_fake
        return build(lambda: subject.build(attention=attention), self.mode, dtype)

    def _report(self, share: float, text: str) -> None:
        if self.settings.on_progress is not None:
            self.settings.on_progress(share, 1.0, text)

    def step(self, batch: int, sequence: int, repeats: int, *, checkpointing: bool = False) -> StepMeasure:
        """One step of the model with so many repeats of each stack."""
        paths = [path for stack in self.stacks for path in kept_paths(stack, repeats)]
        inputs = fake_inputs(self.example.make(batch, sequence), self.mode, compute_dtype(self.settings.recipe))
        with self.mode, truncated(self.model, self.stacks, repeats):
            measure = measure_step(
                self.model,
                inputs,
                precision=self.settings.precision,
                attention=self.settings.attention,
                blocks=paths,
                answer=self.settings.answer,
                checkpointing=checkpointing,
            )
        self.operations += measure.operations
        self.assumed += [test for test in measure.assumed if test not in self.assumed]
        return measure

    def profile(self) -> Profile:
        """Trace, extrapolate, and check both ways."""
        repeats, composed, points, agreements = self._fitted()
        batch, sequence = self.samples.unseen
        self._report(0.7, "checking an unseen size")
        unseen = self.step(batch, sequence, repeats)
        agreements += self._unseen(points, unseen, batch, sequence)
        self._report(0.8, "activation checkpointing")
        checkpointed = self._checkpointed(repeats, composed)
        return self._assembled(points, composed, checkpointed, tuple(agreements))

    def _fitted(self) -> tuple[int, Composed, dict[tuple[int, int], StepMeasure], list[Agreement]]:
        """The smallest truncation whose extrapolation equals the full trace; the full trace itself if none does."""
        full: StepMeasure | None = None
        for repeats in (2, 3) if self.stacks else ():
            try:
                points, long = self._truncated_points(repeats)
                composed = compose(points, self.model, self.stacks, repeats)
            except ProfileError:
                raise
            except Exception:  # noqa: BLE001 - a forward pass that counts its layers, or skips between stacks
                break
            if long:
                self.warnings.append(
                    "A full step has too many operations to trace: two repeats of its blocks were, and extrapolated."
                )
                return repeats, composed, points, []
            if full is None:
                self._report(0.4, "tracing the full model")
                full = self.step(*self.samples.largest, _WHOLE)
            agreements = _against_full(composed, full, *self.samples.largest)
            if all(_agrees(agreement) for agreement in agreements):
                return repeats, composed, points, agreements
        self._report(0.4, "tracing the full model at every size")
        points = {point: self.step(*point, _WHOLE) for point in self.samples.points}
        return _WHOLE, compose(points, self.model, self.stacks, _WHOLE), points, []

    def _truncated_points(self, repeats: int) -> tuple[dict[tuple[int, int], StepMeasure], bool]:
        """Steps at every sampled size; at short sequences only where a full step has too many operations.

        Their number grows with the sequence where a model loops over it.
        """
        self._report(0.1, "tracing two repeats of each block")
        if self.samples.sequences[0] > _SHORT_SEQUENCES[0] and self._is_long(repeats):
            self.samples = _shortened(self.samples)
            return {point: self.step(*point, repeats) for point in self.samples.points}, True
        return {point: self.step(*point, repeats) for point in self.samples.points}, False

    def _is_long(self, repeats: int) -> bool:
        batch, sequence = self.samples.largest
        short, longer = (self.step(batch, tokens, repeats).operations for tokens in _SHORT_SEQUENCES[:2])
        a_token = (longer - short) / (_SHORT_SEQUENCES[1] - _SHORT_SEQUENCES[0])
        return a_token * sequence * max(stack.repeats for stack in self.stacks) / repeats > _LONG_OPERATIONS

    def _unseen(
        self, points: dict[tuple[int, int], StepMeasure], unseen: StepMeasure, batch: int, sequence: int
    ) -> list[Agreement]:
        """The fitted polynomials at a size that was not fitted."""
        found = []
        for figure, read in _FIGURES.items():
            predicted = Polynomial.fit_each(points, read)(batch, sequence)
            found.append(
                Agreement(
                    figure=figure,
                    predicted=predicted,
                    measured=read(unseen),
                    against=f"a trace at batch {batch}, sequence {sequence}",
                )
            )
        off = [agreement for agreement in found if abs(agreement.ratio - 1) > TOLERANCE]
        for agreement in off:
            self.warnings.append(
                f"{agreement.figure} at batch {batch}, sequence {sequence} is {100 * (agreement.ratio - 1):+.2f} % off "
                "its polynomial: it does not grow as one, so figures far from the traced sizes are estimates."
            )
        return found

    def _checkpointed(self, repeats: int, composed: Composed) -> tuple[Polynomial | None, Any]:
        """Activation bytes and timeline with every block checkpointed."""
        if not composed.blocks or not self.settings.checkpointing:
            return None, ()
        try:
            points = {point: self.step(*point, repeats, checkpointing=True) for point in self.samples.points}
        except Exception:  # noqa: BLE001 - blocks that return what checkpointing can't carry
            return None, ()
        outside = composed.saved_bytes
        for block in composed.blocks:
            outside = outside - block.saved_bytes + block.input_bytes
        return outside, timeline(points, [s for s in self.stacks if self._runs(s, points, repeats)], repeats)

    @staticmethod
    def _runs(stack: Stack, points: dict[tuple[int, int], StepMeasure], repeats: int) -> bool:
        step = next(iter(points.values()))
        return all(path in step.blocks and step.blocks[path].calls for path in kept_paths(stack, repeats))

    def _assembled(
        self,
        points: dict[tuple[int, int], StepMeasure],
        composed: Composed,
        checkpointed: tuple[Polynomial | None, Any],
        agreements: tuple[Agreement, ...],
    ) -> Profile:
        settings, subject, model = self.settings, self.subject, self.model
        one = next(iter(points.values()))
        parameters = list(model.parameters())
        trainable = [p for p in parameters if p.requires_grad]
        buffers = {id(b): b for b in model.buffers()}.values()
        if one.without_gradient:
            self.warnings.append(
                f"{len(one.without_gradient)} trainable parameters get no gradient, among them "
                f"{one.without_gradient[0]}."
            )
        if self.samples.sequence < settings.sequence and self.example.has_sequence:
            self.warnings.append(
                f"The model has {self.example.longest:,} positions, fewer than the job's sequence length "
                f"{settings.sequence:,}."
            )
        return Profile(
            name=subject.name,
            source=subject.source,
            origin=subject.origin,
            parameter_count=sum(p.numel() for p in parameters),
            trainable_parameter_count=sum(p.numel() for p in trainable),
            buffer_bytes=sum(b.untyped_storage().nbytes() for b in buffers),
            tied=ties(model),
            precision=settings.precision,
            attention=settings.attention,
            optimizer=settings.optimizer,
            batch=settings.batch,
            sequence=self.samples.sequence,
            has_sequence=self.example.has_sequence,
            vocab=dimensions(model).vocab,
            outputs=one.outputs,
            inputs=self.example.description,
            blocks=composed.blocks,
            saved_bytes=composed.saved_bytes,
            checkpointed_bytes=checkpointed[0],
            forward_flops=composed.forward_flops,
            backward_flops=composed.backward_flops,
            input_bytes=self._input_bytes(),
            timeline=composed.timeline,
            checkpointed_timeline=checkpointed[1],
            gradient_bytes=sum(p.numel() * p.element_size() for p in trainable),
            optimizer_rise_bytes=optimizer_rise_bytes(model, settings.optimizer, settings.recipe),
            largest_parameter=max((p.numel() for p in parameters), default=0),
            agreements=agreements,
            warnings=tuple(self.warnings),
            operations=self.operations,
            versions=versions(),
            config_json=subject.config_json,
        )

    def _input_bytes(self) -> Polynomial:
        """Bytes of the model's inputs."""
        from torch.utils._pytree import tree_leaves

        dtype = compute_dtype(self.settings.recipe)

        def size(batch: int, sequence: int) -> int:
            leaves = tree_leaves(fake_inputs(self.example.make(batch, sequence), self.mode, dtype))
            return sum(leaf.untyped_storage().nbytes() for leaf in leaves if isinstance(leaf, torch.Tensor))

        return Polynomial.fit({point: size(*point) for point in self.samples.points})


_FIGURES: dict[str, Callable[[StepMeasure], int]] = {
    "saved bytes": lambda step: step.saved_bytes,
    "forward FLOPs": lambda step: step.forward_flops,
    "backward FLOPs": lambda step: step.backward_flops,
}


def _agrees(agreement: Agreement) -> bool:
    limit = _PEAK_TOLERANCE if agreement.figure.startswith("peak") else TOLERANCE
    return abs(agreement.ratio - 1) <= limit


def _against_full(composed: Composed, full: StepMeasure, batch: int, sequence: int) -> list[Agreement]:
    predicted = (composed.saved_bytes, composed.forward_flops, composed.backward_flops)
    found = [
        Agreement(figure=figure, predicted=value(batch, sequence), measured=read(full), against="the full trace")
        for (figure, read), value in zip(_FIGURES.items(), predicted, strict=True)
    ]
    if composed.timeline:
        live = peak = 0
        for segment in composed.timeline:
            peak = max(peak, live + segment.rise_bytes(batch, sequence))
            live += segment.change_bytes(batch, sequence)
        measured = full.peak_bytes - full.resident_bytes
        found.append(Agreement(figure="peak of a pass", predicted=peak, measured=measured, against="the full trace"))
    return found


def _shortened(samples: Samples) -> Samples:
    batch, _ = samples.unseen
    return dataclasses.replace(samples, sequences=_SHORT_SEQUENCES, unseen=(batch, 128))


def _window(config: Any) -> int:
    """Tokens of a sliding window that is in use."""
    value = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        return 0
    return value if isinstance(value, int) else 0


def versions() -> tuple[tuple[str, str], ...]:
    """Of torch, and of transformers where it is loaded."""
    import sys

    found = [("torch", str(torch.__version__))]
    if "transformers" in sys.modules:
        found.append(("transformers", str(sys.modules["transformers"].__version__)))
    return tuple(found)
