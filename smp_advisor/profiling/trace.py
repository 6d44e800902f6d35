"""Full-size trace: steps of a model on fake tensors at a few sizes, fitted by exact polynomials."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.assumptions import checks_of
from smp_advisor.profiling.extrapolation import Extrapolated, extrapolate, timeline, truncated_paths
from smp_advisor.profiling.fake import build_fake, build_under_fake, fake_copy, fake_inputs, fake_mode, real_copy
from smp_advisor.profiling.gathered_parameters import gathered_bytes, with_gathered_parameters
from smp_advisor.profiling.inputs import cast_inputs, example_inputs, filled, valid_ids
from smp_advisor.profiling.optimizer_step import optimizer_rise_bytes
from smp_advisor.profiling.patching import quiet
from smp_advisor.profiling.polynomial import Polynomial
from smp_advisor.profiling.precision import training_precision
from smp_advisor.profiling.recurrent_kernels import has_recurrent_layers
from smp_advisor.profiling.result import Agreement, Profile, Provenance
from smp_advisor.profiling.sampling import Samples, choose_samples
from smp_advisor.profiling.step import StepMeasure, measure_step
from smp_advisor.profiling.structure import dimensions, stacks, ties
from smp_advisor.profiling.truncation import truncated

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from smp_advisor.profiling.assumptions import Assumptions, Site
    from smp_advisor.profiling.example import ExampleInputs
    from smp_advisor.profiling.known_values import KnownValuesMode
    from smp_advisor.profiling.precision import TrainingPrecision
    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.profiling.structure import Stack

__all__ = [
    "FIGURES",
    "TOLERANCE",
    "Settings",
    "Traced",
    "compute_dtype",
    "counted_profile",
    "passing_checks",
    "trace",
    "traced_step",
    "versions",
]

TOLERANCE = 1e-4
"""Maximum relative error of the extrapolated trace in saved bytes and FLOPs."""
_PEAK_TOLERANCE = 1e-3
"""Maximum relative error in the peak: when autocast ends, it frees the 16-bit copies of the biases all at once."""
_ALL_REPEATS = 10**6
"""A number of repeats that truncates nothing."""
_FEWEST_REPEATS = 2
_LONG_OPERATIONS = 30_000
"""A longer step of a model that loops over tokens is not traced in full: a dozen of them would take minutes."""
_SHORT_SEQUENCES = (32, 64, 96)
_MANY_OPERATIONS = 10_000
"""A forward pass of the shortest of these sequences with more operations is traced at shorter ones."""
_SHORTER_SEQUENCES = (8, 16, 24)


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
    assumptions: Assumptions | None = field(default=None, compare=False)
    """Values of data-dependent conditions; None raises on them."""
    checkpointing: bool = True
    """Whether to trace with checkpointed blocks as well."""
    known_constructors: bool = False
    """Whether the values of tensors of ones, zeros and consecutive numbers are computed, for models that read them."""
    build: str = "meta"
    """``meta``; ``fake`` for models with unregistered tensors; ``real`` for steps of a live module on real tensors."""
    seconds: float = 120.0
    """Time after which the remaining checks are skipped and the fitted figures are returned."""
    on_progress: Callable[[float, float, str], None] | None = field(default=None, compare=False)

    @property
    def training_precision(self) -> TrainingPrecision:
        """State bytes and compute type of the precision."""
        return training_precision(self.precision)


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A profile and the nature of its figures."""

    profile: Profile
    has_drawn: bool = False
    """Whether the model reads random numbers, which were replaced by typical ones."""
    has_recurrent_layers: bool = False
    """Whether saved bytes include the reserve of recurrent kernels, whose size is not published."""


def compute_dtype(precision: TrainingPrecision) -> torch.dtype:
    """Dtype of the traced parameters: bf16 represents fp16, which has the same size but fewer CPU kernels."""
    return torch.bfloat16 if precision.computes_in_16_bits else torch.float32


def trace(profiled: ProfiledModel, settings: Settings) -> Traced:
    """Profile a model at full size without allocating it.

    Raises
    ------
    Exception
        Any exception that the model raises on fake tensors; `profile_with_fallbacks` then tries the next method.
    """
    began = time.perf_counter()
    with quiet():
        tracer = _Tracer(profiled, settings)
        profile = tracer.profile()
    return Traced(
        profile=dataclasses.replace(profile, seconds=time.perf_counter() - began),
        has_drawn=tracer.mode.has_drawn,
        has_recurrent_layers=has_recurrent_layers(tracer.model),
    )


def traced_step(profiled: ProfiledModel, settings: Settings) -> tuple[StepMeasure, str]:
    """One step of the full model at the settings' sequence length, and a description of its inputs."""
    with quiet():
        tracer = _Tracer(profiled, settings)
        return tracer.step(*tracer.samples.largest, _ALL_REPEATS), tracer.example.description


def passing_checks(profiled: ProfiledModel, settings: Settings) -> dict[Site, bool]:
    """Values with which the checks of the model's forward pass do not raise, at the smallest size."""
    with quiet():
        tracer = _Tracer(profiled, settings)
        return checks_of(tracer.forward)


def counted_profile(profiled: ProfiledModel, settings: Settings, model: nn.Module) -> Profile:
    """Profile with the parameters counted on `model`; the other figures are empty."""
    return Profile(
        name=profiled.name,
        source=profiled.source,
        origin=profiled.origin,
        parameter_count=sum(p.numel() for p in model.parameters()),
        trainable_parameter_count=sum(p.numel() for p in model.parameters() if p.requires_grad),
        tied=ties(model),
        precision=settings.precision,
        attention=settings.attention,
        optimizer=settings.optimizer,
        batch=settings.batch,
        sequence=settings.sequence,
        provenance=(Provenance(figure="parameters", method="counted", confidence="exact"),),
        config_json=profiled.config_json,
    )


class _NotTruncatable(Exception):  # noqa: N818 (leads to another method)
    """Raised where a truncated model does not represent the full one."""


class _Tracer:
    """A fake model and its steps at several sizes."""

    def __init__(self, profiled: ProfiledModel, settings: Settings) -> None:
        self.profiled, self.settings = profiled, settings
        self.begun = time.perf_counter()
        self.mode: KnownValuesMode = fake_mode()
        self.mode.knows_constructors = settings.known_constructors
        self.mode.assumptions = settings.assumptions
        self.warnings: list[str] = []
        self.operations = 0
        self.uncounted: dict[str, None] = {}
        self._report(0, "building")
        self.model = self._build()
        self.model.train()
        self.stacks: list[Stack] = stacks(self.model)
        # The module's own precision: whether it accepts inputs does not depend on the precision of the trace.
        source = self.model if profiled.module is None else profiled.module
        self.example: ExampleInputs = example_inputs(source, settings.inputs, config=profiled.config)
        self.samples: Samples = choose_samples(
            min(settings.sequence, _SHORT_SEQUENCES[-1]) if self._is_real else settings.sequence,
            has_sequence=self.example.has_sequence,
            longest=self.example.longest,
            window=_window(profiled.config),
        )

    @property
    def _is_real(self) -> bool:
        return self.settings.build == "real"

    @property
    def _dtype(self) -> torch.dtype:
        """Dtype of the parameters; real steps use fp16 unless bf16 is required, because NumPy has no bf16."""
        if self._is_real and self.settings.precision in {"fp16", "mixed"}:
            return torch.float16
        return compute_dtype(self.settings.training_precision)

    def _build(self) -> nn.Module:
        dtype = self._dtype
        profiled, attention = self.profiled, self.settings.attention
        if profiled.module is not None and self._is_real:
            return real_copy(profiled.module, dtype)
        if profiled.module is not None:
            model = fake_copy(profiled.module, self.mode, dtype)
            choose = getattr(model, "set_attn_implementation", None)
            if callable(choose):
                with contextlib.suppress(ValueError, ImportError):
                    choose("eager" if attention == "eager" else "sdpa")
            return model
        build = build_under_fake if self.settings.build == "fake" else build_fake
        return build(lambda: profiled.build(attention=attention), self.mode, dtype)

    def _report(self, share: float, text: str) -> None:
        if self.settings.on_progress is not None:
            self.settings.on_progress(share, 1.0, text)

    def step(
        self,
        batch: int,
        sequence: int,
        repeats: int,
        *,
        checkpointing: bool = False,
        operators: bool = False,
        backward: bool = True,
    ) -> StepMeasure:
        """One step of the model truncated to `repeats` repeats of each stack."""
        paths = [path for stack in self.stacks for path in truncated_paths(stack, repeats)]
        dtype, example = self._dtype, self.example.make(batch, sequence)
        with contextlib.ExitStack() as stack:
            if self._is_real:
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
                assumptions=self.settings.assumptions,
                checkpointing=checkpointing,
                operators=operators,
                backward=backward,
            )
        self.operations += measure.operations
        self.uncounted |= dict.fromkeys(measure.uncounted)
        return measure

    def forward(self, assumptions: Assumptions) -> None:
        """A forward pass of a few repeats of each stack, with assumed values of conditions."""
        batch, sequence = self.samples.points[0]
        self.mode.assumptions = assumptions
        with contextlib.ExitStack() as stack:
            inputs = fake_inputs(self.example.make(batch, sequence), self.mode, self._dtype)
            stack.enter_context(self.mode)
            stack.enter_context(truncated(self.model, self.stacks, _FEWEST_REPEATS))
            measure_step(
                self.model,
                inputs,
                precision=self.settings.precision,
                attention=self.settings.attention,
                assumptions=assumptions,
                backward=False,
            )

    def profile(self) -> Profile:
        """Trace, extrapolate, and check against the full trace and an unseen size."""
        repeats, extrapolated, points, agreements = self._fitted()
        batch, sequence = self.samples.unseen
        if time.perf_counter() - self.begun > self.settings.seconds:
            self.warnings.append(
                f"After {self.settings.seconds:g} s of tracing, the check at an unseen size and activation "
                "checkpointing were skipped."
            )
            return self._assembled(points, extrapolated, (None, ()), tuple(agreements))
        self._report(0.7, "checking an unseen size")
        unseen = self.step(batch, sequence, repeats)
        agreements += self._against_unseen(points, unseen, batch, sequence)
        self._report(0.8, "activation checkpointing")
        checkpointed = self._checkpointed(repeats, extrapolated)
        return self._assembled(points, extrapolated, checkpointed, tuple(agreements))

    def _fitted(self) -> tuple[int, Extrapolated, dict[tuple[int, int], StepMeasure], list[Agreement]]:
        """Fit the smallest truncation that extrapolates to the full trace, or the full trace if there is none."""
        if self.stacks:
            with contextlib.suppress(_NotTruncatable):
                return self._truncated_fit()
        return self._fully_fitted()

    def _truncated_fit(self) -> tuple[int, Extrapolated, dict[tuple[int, int], StepMeasure], list[Agreement]]:
        """Fit a truncation and check it against the full trace, unless that has too many operations.

        Raises
        ------
        _NotTruncatable
            The truncated model fails, or does not extrapolate to the full one.
        """
        self._report(0.1, "tracing a few repeats of each block")
        try:
            long = self._shortened(_FEWEST_REPEATS)
            # The first and the last repeat may differ from those between them.
            repeats = _FEWEST_REPEATS if long else _FEWEST_REPEATS + 1
            points = {point: self.step(*point, repeats, operators=True) for point in self.samples.points}
            extrapolated = extrapolate(points, self.model, self.stacks, repeats)
        except ProfileError:
            raise
        except Exception as error:  # a forward pass with a fixed layer count, or skips between stacks
            raise _NotTruncatable from error
        if long:
            self.warnings.append(
                "A full step has too many operations to trace: two repeats of each block were extrapolated."
            )
            return repeats, extrapolated, points, []
        self._report(0.4, "tracing the full model")
        agreements = _against_full(extrapolated, self.step(*self.samples.largest, _ALL_REPEATS), *self.samples.largest)
        if not all(_agrees(agreement) for agreement in agreements):
            raise _NotTruncatable
        return repeats, extrapolated, points, agreements

    def _fully_fitted(self) -> tuple[int, Extrapolated, dict[tuple[int, int], StepMeasure], list[Agreement]]:
        """Fit the full trace; without its blocks if these cannot be measured."""
        self._report(0.4, "tracing the full model at every size")
        if self._shortened(_ALL_REPEATS):
            self.warnings.append(
                "A step has too many operations to trace at the job's sequence length: shorter ones were extrapolated."
            )
        try:
            points = {point: self.step(*point, _ALL_REPEATS, operators=True) for point in self.samples.points}
            return _ALL_REPEATS, extrapolate(points, self.model, self.stacks, _ALL_REPEATS), points, []
        except ProfileError:
            raise
        except Exception:
            if not self.stacks:
                raise
            self.stacks = []
        points = {point: self.step(*point, _ALL_REPEATS, operators=True) for point in self.samples.points}
        self.warnings.append("The repeated blocks could not be measured one by one: the figures are of the full model.")
        return _ALL_REPEATS, extrapolate(points, self.model, [], _ALL_REPEATS), points, []

    def _shortened(self, repeats: int) -> bool:
        """Sample short sequences only if a full step has too many operations; whether it has."""
        if not self.example.has_sequence or self.samples.sequences[0] <= _SHORT_SEQUENCES[0]:
            return False
        sequences = self._affordable_sequences(repeats)
        if sequences:
            batch, _ = self.samples.unseen
            unseen = sequences[-1] + sequences[0]
            self.samples = dataclasses.replace(self.samples, sequences=sequences, unseen=(batch, unseen))
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

    def _against_unseen(
        self, points: dict[tuple[int, int], StepMeasure], unseen: StepMeasure, batch: int, sequence: int
    ) -> list[Agreement]:
        """Compare the fitted polynomials with a step at a size that was not fitted."""
        agreements = [
            Agreement(
                figure=figure,
                predicted=Polynomial.fit_each(points, read)(batch, sequence),
                measured=read(unseen),
                against=f"a trace at batch {batch}, sequence {sequence}",
            )
            for figure, read in FIGURES.items()
        ]
        for agreement in agreements:
            if abs(agreement.ratio - 1) <= TOLERANCE:
                continue
            self.warnings.append(
                f"{agreement.figure} at batch {batch}, sequence {sequence}: the fitted polynomial is off by "
                f"{100 * (agreement.ratio - 1):+.2f} %, so figures far from the traced sizes are estimates."
            )
        return agreements

    def _checkpointed(self, repeats: int, extrapolated: Extrapolated) -> tuple[Polynomial | None, Any]:
        """Activation bytes and timeline with activation checkpointing of every block."""
        if not extrapolated.blocks or not self.settings.checkpointing:
            return None, ()
        try:
            points = {point: self.step(*point, repeats, checkpointing=True) for point in self.samples.points}
        except Exception:  # noqa: BLE001 - blocks may return objects that checkpointing does not support
            return None, ()
        saved = extrapolated.saved_bytes
        for block in extrapolated.blocks:
            saved = saved - block.saved_bytes + block.input_bytes
        return saved, timeline(points, [s for s in self.stacks if self._runs(s, points, repeats)], repeats)

    @staticmethod
    def _runs(stack: Stack, points: dict[tuple[int, int], StepMeasure], repeats: int) -> bool:
        step = next(iter(points.values()))
        return all(path in step.blocks and step.blocks[path].calls for path in truncated_paths(stack, repeats))

    def _assembled(
        self,
        points: dict[tuple[int, int], StepMeasure],
        extrapolated: Extrapolated,
        checkpointed: tuple[Polynomial | None, Any],
        agreements: tuple[Agreement, ...],
    ) -> Profile:
        settings, profiled, model = self.settings, self.profiled, self.model
        step = next(iter(points.values()))
        parameters = list(model.parameters())
        buffers = {id(b): b for b in model.buffers()}.values()
        if step.without_gradient:
            self.warnings.append(
                f"{len(step.without_gradient)} trainable parameters get no gradient, including "
                f"{step.without_gradient[0]}."
            )
        shorter = self.example.has_sequence and self.example.longest and self.example.longest < settings.sequence
        if shorter:
            limit = (
                f"The supplied inputs have {self.example.longest:,} tokens and are not extended"
                if settings.inputs is not None
                else f"The model has {self.example.longest:,} positions"
            )
            self.warnings.append(f"{limit}, fewer than the job's sequence length {settings.sequence:,}.")
        counted = counted_profile(profiled, settings, model)
        gradient_bytes = sum(p.numel() * p.element_size() for p in parameters if p.requires_grad)
        plain, recomputing = extrapolated.timeline, checkpointed[1]
        if settings.training_precision.gathers:
            gradient_bytes = settings.training_precision.gradient_bytes * counted.trainable_parameter_count
            sizes = {
                "gathered_bytes": gathered_bytes(counted.parameter_count, extrapolated.blocks),
                "gradient_bytes": gradient_bytes,
            }
            plain, recomputing = (with_gathered_parameters(line, **sizes) for line in (plain, recomputing))
        return dataclasses.replace(
            counted,
            buffer_bytes=sum(b.untyped_storage().nbytes() for b in buffers),
            sequence=settings.sequence if self._is_real and not shorter else self.samples.sequence,
            has_sequence=self.example.has_sequence,
            vocab=dimensions(model).vocab,
            outputs=step.outputs,
            inputs=self.example.description,
            blocks=extrapolated.blocks,
            saved_bytes=extrapolated.saved_bytes,
            checkpointed_bytes=checkpointed[0],
            forward_flops=extrapolated.forward_flops,
            backward_flops=extrapolated.backward_flops,
            input_bytes=self._input_bytes(),
            timeline=plain,
            outside_operators=extrapolated.outside_operators,
            checkpointed_timeline=recomputing,
            gradient_bytes=gradient_bytes,
            optimizer_rise_bytes=optimizer_rise_bytes(model, settings.optimizer, settings.training_precision),
            largest_parameter=max((p.numel() for p in parameters), default=0),
            agreements=agreements,
            warnings=tuple(self.warnings),
            uncounted=tuple(self.uncounted),
            operations=self.operations,
            versions=versions(),
        )

    def _input_bytes(self) -> Polynomial:
        """Bytes of the model's inputs."""
        dtype = compute_dtype(self.settings.training_precision)

        def size(batch: int, sequence: int) -> int:
            leaves = tree_leaves(fake_inputs(self.example.make(batch, sequence), self.mode, dtype))
            return sum(leaf.untyped_storage().nbytes() for leaf in leaves if isinstance(leaf, torch.Tensor))

        return Polynomial.fit({point: size(*point) for point in self.samples.points})


FIGURES: dict[str, Callable[[StepMeasure], int]] = {
    "saved bytes": lambda step: step.saved_bytes,
    "forward FLOPs": lambda step: step.forward_flops,
    "backward FLOPs": lambda step: step.backward_flops,
}


def _agrees(agreement: Agreement) -> bool:
    limit = _PEAK_TOLERANCE if agreement.figure.startswith("peak") else TOLERANCE
    return abs(agreement.ratio - 1) <= limit


def _against_full(extrapolated: Extrapolated, full: StepMeasure, batch: int, sequence: int) -> list[Agreement]:
    predicted = (extrapolated.saved_bytes, extrapolated.forward_flops, extrapolated.backward_flops)
    agreements = [
        Agreement(figure=figure, predicted=value(batch, sequence), measured=read(full), against="the full trace")
        for (figure, read), value in zip(FIGURES.items(), predicted, strict=True)
    ]
    if extrapolated.timeline:
        live = peak = 0
        for segment in extrapolated.timeline:
            peak = max(peak, live + segment.rise_bytes(batch, sequence))
            live += segment.change_bytes(batch, sequence)
        measured = full.peak_bytes - full.resident_bytes
        agreements.append(
            Agreement(figure="peak of a pass", predicted=peak, measured=measured, against="the full trace")
        )
    return agreements


def _window(config: Any) -> int:
    """Tokens of the sliding window in use; 0 without one."""
    value = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        return 0
    return value if isinstance(value, int) else 0


def versions() -> tuple[tuple[str, str], ...]:
    """Versions of torch, and of transformers if it is loaded."""
    loaded = [("torch", str(torch.__version__))]
    if "transformers" in sys.modules:
        loaded.append(("transformers", str(sys.modules["transformers"].__version__)))
    return tuple(loaded)
