"""Profile of a model that cannot be traced, extrapolated from real steps of small copies.

Every figure is a polynomial of degree 2 in width and sequence, and of degree 1 in depth, vocabulary and batch, if every
scaled dimension is proportional to the width and all others are constant. On 12 of 13 models, the extrapolated figures
equaled the full-size figures exactly.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import torch
from torch.utils._pytree import tree_leaves

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.agreement import FIGURES
from smp_advisor.profiling.fake import default_dtype
from smp_advisor.profiling.gpu_kernels import without_initialization
from smp_advisor.profiling.inputs import cast_inputs, example_inputs, filled
from smp_advisor.profiling.optimizer_step import optimizer_rise_bytes
from smp_advisor.profiling.polynomial import Polynomial
from smp_advisor.profiling.result import Agreement, BlockProfile, Profile, Provenance
from smp_advisor.profiling.scaled.build import removable
from smp_advisor.profiling.scaled.extrapolated import Measuring, polynomials_of
from smp_advisor.profiling.scaled.reduction import WidthFraction, at_scale, layers_of, usual_fraction, vocabulary_of
from smp_advisor.profiling.step import measure_step
from smp_advisor.profiling.structure import block_counts, dimensions, stacks
from smp_advisor.profiling.trace import counted_profile, versions
from smp_advisor.profiling.trace_settings import compute_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.profiling.step import StepMeasure
    from smp_advisor.profiling.trace_settings import Settings

    Points = Mapping[tuple[int, int], StepMeasure]

__all__ = ["profile_by_copies", "profile_by_real_steps"]

_WIDTHS = (2, 3, 4)
_CHECK_WIDTH = 5
_LAYERS = (2, 4)
_VOCABULARIES = (256, 512)
_BATCHES = (2, 3)
_SEQUENCES = (32, 64, 96)
_MAX_ERROR = 0.01
"""Maximum relative error at the check width; a larger error refutes the polynomial."""


@dataclass(frozen=True, kw_only=True)
class _Grid:
    """Scaled copies of a model, and the settings to measure them with."""

    profiled: ProfiledModel
    settings: Settings
    fraction: WidthFraction
    layers: int
    vocabulary: int

    def points(self, over: int, layers: int, vocabulary: int) -> Points:
        """Real steps of one copy at every batch and sequence length."""
        config = at_scale(
            self.profiled.config, replace(self.fraction, over=over), layers=layers, vocabulary=vocabulary or 1
        )
        dtype = compute_dtype(self.settings.training_precision)
        torch.manual_seed(0)
        with default_dtype(dtype):
            model = self.profiled.with_config(config).build(attention=self.settings.attention).train()
        example = example_inputs(model, self.settings.inputs, config=config)
        if not example.has_sequence or (example.longest and example.longest < _SEQUENCES[-1]):
            raise ProfileError("its inputs have no sequence dimension to extrapolate", kind="error")
        tokens = vocabulary or dimensions(model).vocab
        return {
            (b, s): measure_step(
                model,
                cast_inputs(filled(example.make(b, s), tokens), dtype),
                precision=self.settings.precision,
                attention=self.settings.attention,
            )
            for b in _BATCHES
            for s in _SEQUENCES
        }

    def widths(self, layers: int, vocabulary: int) -> dict[int, Points]:
        return {over: self.points(over, layers, vocabulary) for over in _WIDTHS}


def profile_by_real_steps(profiled: ProfiledModel, settings: Settings) -> Profile:
    """Profile a transformers model by real steps of scaled copies.

    Raises
    ------
    ProfileError
        The configuration's dimensions are unknown, or the check at an additional width fails.
    """
    began = time.perf_counter()
    fraction, layers = usual_fraction(profiled.config), layers_of(profiled.config)
    if fraction is None or not layers or fraction.under <= _CHECK_WIDTH:
        raise ProfileError("its configuration has no heads and layers that scale together", kind="error")
    vocabulary = vocabulary_of(profiled.config)
    grid = _Grid(profiled=profiled, settings=settings, fraction=fraction, layers=layers, vocabulary=vocabulary)
    small, large = (min(size, vocabulary) for size in _VOCABULARIES) if vocabulary else (0, 0)
    base = grid.widths(_LAYERS[0], small)
    deeper = grid.widths(_LAYERS[1], small)
    wider = grid.widths(_LAYERS[0], large) if large > small else base
    agreements = _check_width(grid, base, small)
    figures: dict[str, Polynomial] = {}
    per_layer: dict[str, Polynomial] = {}
    for figure, read in FIGURES.items():
        at_base, at_deeper, at_wider = (_at_width(copies, read, fraction.under) for copies in (base, deeper, wider))
        per_layer[figure] = (at_deeper - at_base) * Fraction(1, _LAYERS[1] - _LAYERS[0])
        per_token = (at_wider - at_base) * Fraction(1, large - small) if large > small else Polynomial()
        figures[figure] = at_base + per_layer[figure] * (layers - _LAYERS[0]) + per_token * (vocabulary - small)
    uncounted = {name: None for points in base.values() for step in points.values() for name in step.uncounted}
    with torch.device("meta"), without_initialization():
        model = profiled.build()
    note = "extrapolated from copies of three widths, two depths and two vocabularies; confirmed at a fourth width"
    seconds = time.perf_counter() - began
    profile = _assembled(profiled, settings, model, figures, per_layer, note, agreements=agreements, seconds=seconds)
    return replace(profile, uncounted=tuple(uncounted))


def profile_by_copies(profiled: ProfiledModel, module: nn.Module, settings: Settings, seconds: float) -> Profile:
    """Profile a live module whose full size is too large for real steps, by real steps of narrower copies.

    Parameters
    ----------
    module
        Truncated in place during a build, so call this in a child process only.
    seconds
        Processor time for all copies.

    Raises
    ------
    ProfileError
        The module's dimensions cannot be reduced consistently, or its copies do not determine the full size.
    """
    began = time.perf_counter()
    measuring = Measuring(
        precision=settings.precision,
        dtype=compute_dtype(settings.training_precision),
        attention=settings.attention,
        sequence=settings.sequence,
        inputs=settings.inputs,
        seconds=seconds,
    )
    extrapolated = polynomials_of(profiled, removable(module, settings.inputs), measuring)
    figures, per_block = extrapolated.figures, extrapolated.of_a_block
    taken = time.perf_counter() - began
    return _assembled(profiled, settings, module, figures, per_block, extrapolated.basis, seconds=taken)


def _at_width(copies: Mapping[int, Points], read: Callable[[StepMeasure], int], width: int) -> Polynomial:
    """Value at a width of the Lagrange polynomial through the measured widths."""
    total = Polynomial()
    for over, points in copies.items():
        weight = Fraction(1)
        for node in copies:
            if node != over:
                weight *= Fraction(width - node, over - node)
        total += Polynomial.fit_each(points, read) * weight
    return total


def _check_width(grid: _Grid, base: Mapping[int, Points], vocabulary: int) -> tuple[Agreement, ...]:
    """Compare the prediction for a width that was not fitted with real steps."""
    points = grid.points(_CHECK_WIDTH, _LAYERS[0], vocabulary)
    size = (_BATCHES[-1], _SEQUENCES[-1])
    agreements = tuple(
        Agreement(
            figure=figure,
            predicted=_at_width(base, read, _CHECK_WIDTH)(*size),
            measured=read(points[size]),
            against="real steps of a width that was not fitted",
        )
        for figure, read in FIGURES.items()
    )
    worst = max(agreements, key=lambda agreement: abs(agreement.ratio - 1))
    if abs(worst.ratio - 1) > _MAX_ERROR:
        raise ProfileError(
            f"real steps of copies do not extrapolate: {worst.figure} at an additional width are off by "
            f"{100 * (worst.ratio - 1):+.1f} %",
            kind="error",
        )
    return agreements


def _assembled(
    profiled: ProfiledModel,
    settings: Settings,
    model: nn.Module,
    figures: Mapping[str, Polynomial],
    per_layer: Mapping[str, Polynomial],
    note: str,
    *,
    agreements: tuple[Agreement, ...] = (),
    seconds: float,
) -> Profile:
    example = example_inputs(model, settings.inputs, config=profiled.config)
    size = dimensions(model)
    stack = max(stacks(model), key=lambda candidate: candidate.parameters, default=None)
    element = settings.training_precision.element_bytes
    blocks: tuple[BlockProfile, ...] = ()
    if stack is not None:
        module = model.get_submodule(stack.paths[-1])
        input_bytes = Polynomial(((Fraction(0),) * 2, (Fraction(0), Fraction(element * size.hidden))))
        block = BlockProfile(
            name=stack.paths[-1],
            **block_counts(module),
            hidden=size.hidden,
            saved_bytes=per_layer["saved bytes"],
            input_bytes=input_bytes,
            forward_flops=per_layer["forward FLOPs"],
            backward_flops=per_layer["backward FLOPs"],
        )
        blocks = (block,) * len(stack.paths)
    inputs = tree_leaves(example.make(1, 1))
    counted = counted_profile(profiled, settings, model)
    return replace(
        counted,
        vocab=size.vocab,
        outputs=size.vocab,
        inputs=example.description,
        blocks=blocks,
        saved_bytes=figures["saved bytes"],
        forward_flops=figures["forward FLOPs"],
        backward_flops=figures["backward FLOPs"],
        input_bytes=Polynomial(((Fraction(0),) * 2, (Fraction(0), Fraction(8 * len(inputs))))),
        gradient_bytes=settings.training_precision.gradient_bytes * counted.trainable_parameter_count,
        optimizer_rise_bytes=optimizer_rise_bytes(model, settings.optimizer, settings.training_precision),
        largest_parameter=max((p.numel() for p in model.parameters()), default=0),
        provenance=(
            *counted.provenance,
            Provenance(figure="saved bytes", method="real steps", confidence="high", note=note),
            Provenance(figure="FLOPs", method="real steps", confidence="high", note=note),
            Provenance(
                figure="peak memory",
                method="formula",
                confidence="low",
                note="sum of state and activations, excluding temporaries of the loss",
            ),
            Provenance(figure="inputs", method="counted", confidence="high", note=example.description),
        ),
        agreements=agreements,
        seconds=seconds,
        versions=versions(),
    )
