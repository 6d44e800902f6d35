"""Full-size trace: steps of a model on fake tensors at a few sizes, fitted by exact polynomials."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import torch
from torch.utils._pytree import tree_leaves

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.extrapolation import (
    Extrapolated,
    against_full,
    against_unseen,
    agrees,
    extrapolate,
)
from smp_advisor.profiling.failures import Assumptions, EndlessLoopError, checks_of, is_about_values
from smp_advisor.profiling.fake import fake_inputs
from smp_advisor.profiling.parts import Agreement, Provenance
from smp_advisor.profiling.patching import quiet
from smp_advisor.profiling.polynomial import Polynomial
from smp_advisor.profiling.result import Profile
from smp_advisor.profiling.structure import largest_table, ties
from smp_advisor.profiling.traced_steps import FEWEST_REPEATS, TracedSteps, compute_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from smp_advisor.profiling.parts import BlockProfile, Segment
    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.profiling.step import StepMeasure
    from smp_advisor.profiling.traced_steps import Settings


_ALL_REPEATS = 10**6
"""A number of repeats that truncates nothing."""
_SAME = 1e-3
"""Relative difference below which the assumed values make no difference."""
_MOST_OPERATIONS = 600_000
"""Operations of traced steps after which further steps are left out: two minutes of one core at 200 µs each. The steps
of ViT have 4,900, of ResNet-50 5,900, of GPT-2 8,700, of Llama 8B 21,000, of Mamba without its kernels 93,000."""


def trace(profiled: ProfiledModel, settings: Settings) -> _Tracer:
    """Trace a model at full size without allocating it; the result has its profile."""
    with quiet():
        traced = _Tracer(profiled, settings)
        profile = traced.fit()
        if settings.precision == "mixed":
            ratios = _autocast_ratios(profiled, settings, profile)
            untraced = () if ratios else ("DDP activations are taken from the FSDP trace (autocast was not traced).",)
            profile = replace(profile, autocast_ratios=ratios, warnings=(*profile.warnings, *untraced))
        traced.profile = profile
    return traced


def _autocast_ratios(profiled: ProfiledModel, settings: Settings, profile: Profile) -> dict[str, float]:
    """Bytes per sample that blocks and modules save under autocast over those in FSDP's mixed precision, by path.

    Autocast computes norms, softmax and losses in fp32 (documentation of torch.amp), so that networks of norms and
    activation functions save up to twice as much. Copies of weights are left out: the batch does not change them.
    """
    tracer = _Tracer(profiled, replace(settings, precision="amp", on_progress=None))
    tracer.shortened(FEWEST_REPEATS + 1)
    sequence = tracer.samples.sequences[-1]
    sizes = [(batch, sequence) for batch in tracer.samples.batches]
    try:
        points = {size: tracer.step(*size, FEWEST_REPEATS + 1, operators=True, backward=False) for size in sizes}
        cast = extrapolate(points, tracer.model, tracer.stacks, FEWEST_REPEATS + 1)
    except Exception:  # noqa: BLE001 - a module that autocast does not run has no figure under it
        return {}

    def grown(traced: Profile | Extrapolated) -> dict[str, float]:
        """Saved bytes per sample of each block, and of each module without its children."""
        saved = {path: module.saved_bytes for path, module in traced.tree.items()}
        saved |= {block.name: block.saved_bytes for block in traced.blocks}
        return {path: float(saved_bytes(*sizes[-1]) - saved_bytes(*sizes[0])) for path, saved_bytes in saved.items()}

    under_autocast = grown(cast)
    return {
        path: round(under_autocast[path] / plain, 4)
        for path, plain in grown(profile).items()
        if plain > 0 and path in under_autocast
    }


def assumed_values(profiled: ProfiledModel, settings: Settings) -> tuple[Assumptions, bool]:
    """Values of the conditions with which the forward pass does most work, and whether they make a difference."""
    with quiet():
        tracer = _Tracer(profiled, settings)
        checks = checks_of(tracer.forward)
        forwards = {}
        for value in (True, False):
            assumptions = Assumptions(value=value, checks=checks)
            try:
                step = tracer.forward(assumptions)
            except EndlessLoopError:
                raise
            except Exception:  # noqa: BLE001 - a forward pass with a fixed number of layers
                step = tracer.forward(assumptions, _ALL_REPEATS)
            forwards[value] = (step.forward_flops, step.saved_bytes)
            if not assumptions.branches:
                return Assumptions(value=value, checks=checks), False
    differs = any(not math.isclose(*pair, rel_tol=_SAME) for pair in zip(forwards[True], forwards[False], strict=True))
    return Assumptions(value=not differs or forwards[True] >= forwards[False], checks=checks), differs


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


class _Tracer(TracedSteps):
    """The steps of a model, fitted and checked."""

    profile: Profile
    is_looped = False
    """Whether the module loops over the samples of a batch, as over the steps of one."""

    def fit(self) -> Profile:
        """Trace, extrapolate, and check against the full trace and an unseen size."""
        repeats, extrapolated, points, agreements = self._fitted()
        sequence = self.samples.sequences[0]
        self.is_looped = len({points[batch, sequence].operations for batch in self.samples.batches}) > 1
        if self.operations > _MOST_OPERATIONS:
            self.warnings.append(
                f"The traced steps have {self.operations:,} operations, so the check at an unseen size was skipped."
            )
        elif self.samples.unseen is not None:
            self.report(0.7, "checking an unseen size")
            compared, warnings = self._unseen(points, repeats)
            if warnings and not self.example.has_sequence:  # a loss that compares the samples of a batch
                self.samples = self.samples.with_another_batch()
                repeats, extrapolated, points, agreements = self._fitted()
                compared, warnings = self._unseen(points, repeats)
                self.warnings.append("Samples of a batch are compared: costs per sample grow with the microbatch.")
            agreements += compared
            self.warnings += warnings
        return self._assembled(points, extrapolated, tuple(agreements))

    def _unseen(self, points: Mapping[tuple[int, int], StepMeasure], repeats: int) -> tuple[list[Agreement], list[str]]:
        assert self.samples.unseen is not None  # noqa: S101 (its caller's condition)
        return against_unseen(points, self.step(*self.samples.unseen, repeats), *self.samples.unseen)

    def _fitted(self) -> tuple[int, Extrapolated, dict[tuple[int, int], StepMeasure], list[Agreement]]:
        """Fit the smallest truncation that extrapolates to the full trace, or the full trace if there is none."""
        if self.stacks:
            with contextlib.suppress(_NotTruncatable):
                return self._truncated_fit()
        return self._fully_fitted()

    def _truncated_fit(self) -> tuple[int, Extrapolated, dict[tuple[int, int], StepMeasure], list[Agreement]]:
        """Fit a truncation and check it against the full trace, unless that has too many operations."""
        self.report(0.1, "tracing a few repeats of each block")
        try:
            long = self.shortened(FEWEST_REPEATS)
            # The first and the last repeat may differ from those between them.
            repeats = FEWEST_REPEATS if long else FEWEST_REPEATS + 1
            points = {point: self.step(*point, repeats, operators=True) for point in self.samples.points}
            extrapolated = extrapolate(points, self.model, self.stacks, repeats)
        except ProfileError:
            raise
        except Exception as error:
            if is_about_values(error):  # another method is next, which knows more values
                raise
            raise _NotTruncatable from error  # a forward pass with a fixed layer count, or skips between stacks
        if long:
            self.warnings.append(
                "A full step has too many operations to trace: two repeats of each block were extrapolated."
            )
            return repeats, extrapolated, points, []
        if all(repeats >= stack.repeats for stack in self.stacks):  # nothing was removed
            return repeats, extrapolated, points, []
        self.report(0.4, "tracing the full model")
        agreements = against_full(extrapolated, self.step(*self.samples.largest, _ALL_REPEATS), *self.samples.largest)
        if not all(agrees(agreement) for agreement in agreements):
            raise _NotTruncatable
        return repeats, extrapolated, points, agreements

    def _fully_fitted(self) -> tuple[int, Extrapolated, dict[tuple[int, int], StepMeasure], list[Agreement]]:
        """Fit the full trace; without its blocks if these cannot be measured."""
        self.report(0.4, "tracing the full model at every size")
        if self.shortened(_ALL_REPEATS):
            self.warnings.append(
                "A step has too many operations to trace at the job's sequence length: shorter ones were extrapolated."
            )
        try:
            points = {point: self.step(*point, _ALL_REPEATS, operators=True) for point in self.samples.points}
            return _ALL_REPEATS, extrapolate(points, self.model, self.stacks, _ALL_REPEATS), points, []
        except ProfileError:
            raise
        except Exception as error:
            if not self.stacks or is_about_values(error):
                raise
            self.stacks = []
        points = {point: self.step(*point, _ALL_REPEATS, operators=True) for point in self.samples.points}
        self.warnings.append("The repeated blocks could not be measured one by one: the figures are of the full model.")
        return _ALL_REPEATS, extrapolate(points, self.model, [], _ALL_REPEATS), points, []

    def _assembled(
        self,
        points: dict[tuple[int, int], StepMeasure],
        extrapolated: Extrapolated,
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
            self.warnings.append(
                f"The model has {self.example.longest:,} positions, fewer than the job's sequence length "
                f"{settings.sequence:,}."
            )
        # Counts of the module itself, then figures of its steps.
        counted = counted_profile(profiled, settings, model)
        gradient_bytes = sum(p.numel() * p.element_size() for p in parameters if p.requires_grad)
        timeline, recomputing = extrapolated.timeline, extrapolated.saved_bytes
        for block in extrapolated.blocks:
            recomputing = recomputing - block.saved_bytes + block.input_bytes
        # Mixed precision of FSDP gathers parameters in 16 bits, which the plain module did not.
        if settings.training_precision.gathers:
            gradient_bytes = settings.training_precision.gradient_bytes * counted.trainable_parameter_count
            gathered = gathered_bytes(counted.parameter_count, extrapolated.blocks)
            timeline = with_gathered_parameters(timeline, gathered_bytes=gathered, gradient_bytes=gradient_bytes)
        return dataclasses.replace(
            counted,
            batch=max(settings.batch, self.example.inferred_batch) if settings.batch == 1 else settings.batch,
            buffer_bytes=sum(b.untyped_storage().nbytes() for b in buffers),
            sequence=settings.sequence if self.is_real and not shorter else self.samples.sequence,
            has_sequence=self.example.has_sequence,
            vocab=largest_table(model, torch.nn.Embedding),
            outputs=step.outputs,
            inputs=self.example.description,
            scales=self.example.scales,
            **{entry.name: getattr(extrapolated, entry.name) for entry in dataclasses.fields(extrapolated)}
            | {"timeline": timeline},
            checkpointed_bytes=recomputing if extrapolated.blocks else None,
            input_bytes=self._input_bytes(),
            gradient_bytes=gradient_bytes,
            optimizer_rise_bytes=settings.training_precision.rise_bytes(settings.optimizer)
            * counted.trainable_parameter_count,
            agreements=agreements,
            warnings=tuple(self.warnings),
            uncounted=tuple(self.uncounted),
            operations=self.operations,
        )

    def _input_bytes(self) -> Polynomial:
        """Return the bytes of the model's inputs."""
        dtype = compute_dtype(self.settings.training_precision)

        def size(batch: int, sequence: int) -> int:
            leaves = tree_leaves(fake_inputs(self.example.make(batch, sequence), self.mode, dtype))
            return sum(leaf.untyped_storage().nbytes() for leaf in leaves if isinstance(leaf, torch.Tensor))

        return Polynomial.fit({point: size(*point) for point in self.samples.points})


_GATHERED_BYTES = 2
_GATHERED_BLOCKS = 2
"""The block that runs, and the one that is gathered in the meantime."""


def gathered_bytes(parameter_count: int, blocks: Sequence[BlockProfile]) -> int:
    """Return the bytes of 16-bit parameters that exist at the same time."""
    in_blocks = sum(block.parameters for block in blocks)
    largest = sorted((block.parameters for block in blocks), reverse=True)[:_GATHERED_BLOCKS]
    outside = max(0, parameter_count - in_blocks)  # blocks that share parameters count them several times
    return _GATHERED_BYTES * min(parameter_count, outside + sum(largest))


def with_gathered_parameters(
    timeline: Sequence[Segment], *, gathered_bytes: int, gradient_bytes: int
) -> tuple[Segment, ...]:
    """Return the timeline with gathered parameters from its first to its last interval, and with fp32 gradients."""
    if not timeline:
        return ()
    constants = [max(Fraction(0), part.change_bytes.coefficient(0, 0)) for part in timeline]
    grown = [
        value if part.phase == "backward" else Fraction(0) for part, value in zip(timeline, constants, strict=True)
    ]
    total = sum(grown)
    added = [value * Fraction(gradient_bytes, 2) / total if total else Fraction(0) for value in grown]
    if not total:
        added[-1] = Fraction(gradient_bytes, 2)
    segments = [
        replace(part, change_bytes=part.change_bytes + _constant(value), rise_bytes=part.rise_bytes + _constant(value))
        for part, value in zip(timeline, added, strict=True)
    ]
    gathered = _constant(Fraction(gathered_bytes))
    first = segments[0]
    segments[0] = replace(first, change_bytes=first.change_bytes + gathered, rise_bytes=first.rise_bytes + gathered)
    segments[-1] = replace(segments[-1], change_bytes=segments[-1].change_bytes - gathered)
    return tuple(segments)


def _constant(value: Fraction) -> Polynomial:
    return Polynomial(((value,),))
