"""Settings of a trace, the sizes that it samples, and its steps with fake tensors."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from smp_advisor.profiling.fake import build_fake, fake_copy, fake_inputs, real_copy
from smp_advisor.profiling.inputs import cast_inputs, example_inputs, filled, valid_ids
from smp_advisor.profiling.known_values import KnownValuesMode
from smp_advisor.profiling.precision import training_precision
from smp_advisor.profiling.step import StepMeasure, measure_step
from smp_advisor.profiling.structure import stacks, truncated, truncated_paths

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from smp_advisor.profiling.failures import Assumptions
    from smp_advisor.profiling.inferred_inputs import ExampleInputs
    from smp_advisor.profiling.precision import TrainingPrecision
    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.profiling.structure import Stack


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Training settings that a trace depends on."""

    precision: str = "fp16"
    attention: str = "eager"
    optimizer: str = "adam"
    batch: int = 1
    sequence: int = 2048
    inputs: Any = None
    """Example inputs; None infers them."""
    resized: bool = True
    """Whether supplied inputs of one sample are repeated for larger batches."""
    assumptions: Assumptions | None = field(default=None, compare=False)
    """Values of data-dependent conditions; None raises on them."""
    build: str = "meta"
    """``meta``, or ``real`` for steps on real tensors."""
    on_progress: Callable[[float, float, str], None] | None = field(default=None, compare=False)

    @property
    def training_precision(self) -> TrainingPrecision:
        """State bytes and compute type of the precision."""
        return training_precision(self.precision)


def compute_dtype(precision: TrainingPrecision) -> torch.dtype:
    """Dtype of the traced parameters: bf16 represents fp16, which has the same size but fewer CPU kernels.

    Autocast converts fp32 parameters itself.
    """
    return torch.bfloat16 if precision.parameter_bytes == 2 or precision.gathers else torch.float32


SAMPLE_BATCHES = (2, 3)
"""Not 1: a batch of one takes different code paths (squeezed dimensions, views instead of copies)."""
_UNSEEN_BATCH = 5
_ALIGNED = 32
"""Kernels round sequence lengths up to a multiple of this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Grid of sizes to fit, and one size to check the fit."""

    sequences: tuple[int, ...]
    unseen: tuple[int, int] | None
    """None if the number of samples cannot be chosen."""
    sequence: int
    """Tokens per sample of the job, limited to the model's positions."""
    batches: tuple[int, ...] = SAMPLE_BATCHES

    @property
    def points(self) -> tuple[tuple[int, int], ...]:
        """Every (batch, sequence) of the grid."""
        return tuple((batch, sequence) for batch in self.batches for sequence in self.sequences)

    @property
    def largest(self) -> tuple[int, int]:
        """Size at which the full model is traced."""
        return self.batches[0], self.sequences[-1]

    def with_another_batch(self) -> Samples:
        """Return the grid with the unseen batch, for costs that grow with the square of the batch."""
        another = _UNSEEN_BATCH * (self.batches[1] - self.batches[0])
        return dataclasses.replace(self, batches=(*self.batches, another), unseen=(2 * another, 1))


def choose_samples(sequence: int, *, has_sequence: bool, longest: int = 0, window: int = 0) -> Samples:
    """Select three sequence lengths up to the job's, on the same side of a sliding window."""
    if not has_sequence:
        return Samples(sequences=(1,), unseen=(_UNSEEN_BATCH, 1), sequence=1)
    target = min(sequence, longest) if longest else sequence
    step = _ALIGNED if not longest or longest >= 3 * _ALIGNED else max(1, longest // 4)
    low = -(-(window + 1) // step) * step if window and target > window else 0
    top = max(_up(target, step), low + 3 * step)
    if longest:
        top = min(top, longest // step * step)
    span = top - low
    lengths = sorted({low + _up(max(span // 4, 1), step), low + _up(max(span // 2, 1), step), top})
    while len(lengths) < 3:  # short sequences: the nearest unused multiples
        below = next((n for n in range(top - step, 0, -step) if n not in lengths), None)
        lengths = sorted({*lengths, below if below is not None else lengths[-1] + step})
    between = low + _up(max(3 * span // 4, 1), step)
    unseen = between if between not in lengths else lengths[0]
    return Samples(sequences=tuple(lengths), unseen=(_UNSEEN_BATCH, unseen), sequence=target)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


FEWEST_REPEATS = 2
"""Repeats of each block in the smallest truncated model."""
_LONG_OPERATIONS = 30_000
"""A longer step of a model that loops over tokens is not traced in full: a dozen of them would take minutes."""
_SHORT_SEQUENCES = (32, 64, 96)
_MANY_OPERATIONS = 10_000
"""A forward pass of the shortest of these sequences with more operations is traced at shorter ones."""
_SHORTER_SEQUENCES = (8, 16, 24)


class TracedSteps:
    """A fake model and its steps at several sizes."""

    def __init__(self, profiled: ProfiledModel, settings: Settings) -> None:
        self.profiled, self.settings = profiled, settings
        self.mode = KnownValuesMode()
        self.mode.assumptions = settings.assumptions
        self.warnings: list[str] = []
        self.operations = 0
        self.uncounted: dict[str, None] = {}
        self.report(0, "building")
        self.model = self._build()
        self.model.train()
        self.stacks: list[Stack] = stacks(self.model)
        # The module's own precision: whether it accepts inputs does not depend on the precision of the trace.
        source = self.model if profiled.module is None else profiled.module
        self.example: ExampleInputs = example_inputs(source, settings.inputs, resized=settings.resized)
        self.samples: Samples = Samples(sequences=(1,), unseen=None, sequence=1, batches=(1,))
        if not self.example.scales:
            return
        window = getattr(profiled.config, "sliding_window", None)
        if not isinstance(window, int) or getattr(profiled.config, "use_sliding_window", True) is False:
            window = 0
        self.samples = choose_samples(
            min(settings.sequence, _SHORT_SEQUENCES[-1]) if self.is_real else settings.sequence,
            has_sequence=self.example.has_sequence,
            longest=self.example.longest,
            window=window,
        )
        period = self.example.period
        if period > 1 and not self.is_real:
            unseen = period * _UNSEEN_BATCH, 1
            self.samples = dataclasses.replace(self.samples, batches=(period, 2 * period), unseen=unseen)

    @property
    def is_real(self) -> bool:
        """Whether the steps run on real tensors."""
        return self.settings.build == "real"

    @property
    def _dtype(self) -> torch.dtype:
        """Dtype of the parameters; real steps use fp16 unless bf16 is required, because NumPy has no bf16."""
        if self.is_real and self.settings.precision in {"fp16", "mixed"}:
            return torch.float16
        return compute_dtype(self.settings.training_precision)

    def _build(self) -> nn.Module:
        dtype = self._dtype
        profiled, attention = self.profiled, self.settings.attention
        if self.is_real:
            return real_copy(profiled, dtype, attention)
        if profiled.module is not None:
            model = fake_copy(profiled.module, self.mode, dtype)
            choose = getattr(model, "set_attn_implementation", None)
            if callable(choose):
                with contextlib.suppress(ValueError, ImportError):
                    choose("eager" if attention == "eager" else "sdpa")
            return model
        return build_fake(lambda: profiled.build(attention=attention), self.mode, dtype)

    def report(self, share: float, text: str) -> None:
        """Report the share of the trace that is done, and what follows."""
        if self.settings.on_progress is not None:
            self.settings.on_progress(share, 1.0, text)

    def step(
        self,
        batch: int,
        sequence: int,
        repeats: int,
        *,
        operators: bool = False,
        backward: bool = True,
        assumptions: Assumptions | None = None,
    ) -> StepMeasure:
        """Return one step of the model truncated to `repeats` repeats of each stack."""
        paths = [path for stack in self.stacks for path in truncated_paths(stack, repeats)]
        dtype, example = self._dtype, self.example.make(batch, sequence)
        with contextlib.ExitStack() as stack:
            if self.is_real:
                inputs = cast_inputs(filled(example, valid_ids(self.model)), dtype)
            else:
                inputs = fake_inputs(example, self.mode, dtype)
                stack.enter_context(self.mode)
            stack.enter_context(truncated(self.model, self.stacks, repeats))
            measure = measure_step(
                self.model,
                inputs,
                precision=self.settings.precision,
                attention=self.settings.attention,
                blocks=paths,
                assumptions=assumptions or self.settings.assumptions,
                operators=operators,
                backward=backward,
            )
        self.operations += measure.operations
        self.uncounted |= dict.fromkeys(measure.uncounted)
        return measure

    def forward(self, assumptions: Assumptions, repeats: int = FEWEST_REPEATS) -> StepMeasure:
        """Return a forward pass of a few repeats of each stack, with assumed values of conditions."""
        self.mode.assumptions = assumptions
        return self.step(*self.samples.points[0], repeats, backward=False, assumptions=assumptions)

    def shortened(self, repeats: int) -> bool:
        """Sample short sequences only if a full step has too many operations; whether it has."""
        if not self.example.has_sequence or self.samples.sequences[0] <= _SHORT_SEQUENCES[0]:
            return False
        sequences = self._affordable_sequences(repeats)
        if sequences:
            unseen = _UNSEEN_BATCH, sequences[-1] + sequences[0]
            self.samples = dataclasses.replace(self.samples, sequences=sequences, unseen=unseen)
        return bool(sequences)

    def _affordable_sequences(self, repeats: int) -> tuple[int, ...]:
        """Sequences to trace if a full step has too many operations because the model loops over tokens; else none."""
        batch, sequence = self.samples.largest
        sizes = _SHORT_SEQUENCES[:2]
        removed = max((stack.repeats / min(repeats, stack.repeats) for stack in self.stacks), default=1.0)
        for backward in (False, True):  # a forward pass alone may have too many
            short, longer = (self.step(batch, tokens, repeats, backward=backward).operations for tokens in sizes)
            if short == longer:
                return ()
            # Fused kernels round sequences up, so that shorter ones would not extrapolate exactly.
            if not backward and short > _MANY_OPERATIONS and self.settings.attention == "eager":
                return _SHORTER_SEQUENCES
            if (longer - short) / (sizes[1] - sizes[0]) * sequence * removed > _LONG_OPERATIONS:
                return _SHORT_SEQUENCES
        return ()
