"""Figures of a model that no trace can follow: polynomials through real steps of small copies.

Every figure is a polynomial of degree 2 in the width, 1 in depth, vocabulary and batch, 2 in the sequence, as long as
each dimension that is scaled is proportional to the width and the others stay as they are. Real steps so extrapolated
met the full-size figures exactly on 12 of 13 models.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.fake import default_dtype
from smp_advisor.profiling.gpu_kernels import without_initialisation
from smp_advisor.profiling.inputs import example_inputs, filled
from smp_advisor.profiling.measured import Agreement, BlockProfile, Profile, Provenance
from smp_advisor.profiling.optimizer_step import optimizer_rise_bytes
from smp_advisor.profiling.polynomial import Polynomial
from smp_advisor.profiling.scaled.reduction import at_scale, layers_of, usual_fraction, vocabulary_of
from smp_advisor.profiling.step import measure_step
from smp_advisor.profiling.structure import dimensions, parameter_total, stacks, ties
from smp_advisor.profiling.trace import compute_dtype, versions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from smp_advisor.profiling.step import StepMeasure
    from smp_advisor.profiling.subject import Subject
    from smp_advisor.profiling.trace import Settings

    Points = Mapping[tuple[int, int], StepMeasure]

__all__ = ["profile_by_real_steps"]

_WIDTHS = (2, 3, 4)
_HELD_OUT = 5
_LAYERS = (2, 4)
_VOCABULARIES = (256, 512)
_BATCHES = (2, 3)
_SEQUENCES = (32, 64, 96)
_FAR = 0.01
"""A held-out width that is predicted worse than this refutes the polynomial."""
_FIGURES: dict[str, Callable[[StepMeasure], int]] = {
    "saved bytes": lambda step: step.saved_bytes,
    "forward FLOPs": lambda step: step.forward_flops,
    "backward FLOPs": lambda step: step.backward_flops,
}


@dataclass(frozen=True, kw_only=True)
class _Grid:
    """Copies to measure, and how to extrapolate them."""

    subject: Subject
    settings: Settings
    fraction: tuple[int, bool]
    layers: int
    vocabulary: int

    def points(self, over: int, layers: int, vocabulary: int) -> Points:
        """Real steps of one copy at every batch and sequence."""
        config = at_scale(self.subject.config, self.fraction, over, layers=layers, vocabulary=vocabulary or 1)
        dtype = compute_dtype(self.settings.recipe)
        torch.manual_seed(0)
        with default_dtype(dtype):
            model = self.subject.with_config(config).build(attention=self.settings.attention).train()
        example = example_inputs(model, self.settings.inputs, config=config)
        if not example.has_sequence or (example.longest and example.longest < _SEQUENCES[-1]):
            raise ProfileError("its inputs have no sequence to extrapolate along", kind="error")
        tokens = vocabulary or dimensions(model).vocab
        return {
            (b, s): self._step(model, filled(example.make(b, s), tokens), dtype) for b in _BATCHES for s in _SEQUENCES
        }

    def _step(self, model: nn.Module, inputs: Any, dtype: torch.dtype) -> StepMeasure:
        def convert(value: Any) -> Any:
            return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

        return measure_step(
            model,
            tree_map(convert, inputs),
            precision=self.settings.precision,
            attention=self.settings.attention,
        )

    def widths(self, layers: int, vocabulary: int) -> dict[int, Points]:
        return {over: self.points(over, layers, vocabulary) for over in _WIDTHS}


def profile_by_real_steps(subject: Subject, settings: Settings) -> Profile:
    """Profile a transformers model by real steps of scaled copies.

    Raises
    ------
    ProfileError
        The configuration's dimensions are not known, or a held-out width shows that they do not scale.
    """
    began = time.perf_counter()
    fraction, layers = usual_fraction(subject.config), layers_of(subject.config)
    if fraction is None or not layers or fraction[0] <= _HELD_OUT:
        raise ProfileError("its configuration has no heads and layers that scale together", kind="error")
    vocabulary = vocabulary_of(subject.config)
    grid = _Grid(subject=subject, settings=settings, fraction=fraction, layers=layers, vocabulary=vocabulary)
    small, large = (min(size, vocabulary) for size in _VOCABULARIES) if vocabulary else (0, 0)
    base = grid.widths(_LAYERS[0], small)
    deeper = grid.widths(_LAYERS[1], small)
    wider = grid.widths(_LAYERS[0], large) if large > small else base
    agreements = _held_out(grid, base, small)
    figures: dict[str, Polynomial] = {}
    a_layer: dict[str, Polynomial] = {}
    for figure, read in _FIGURES.items():
        at_base, at_deeper, at_wider = (_at_full_width(copies, read, fraction[0]) for copies in (base, deeper, wider))
        a_layer[figure] = (at_deeper - at_base) * Fraction(1, _LAYERS[1] - _LAYERS[0])
        a_token = (at_wider - at_base) * Fraction(1, large - small) if large > small else Polynomial()
        figures[figure] = at_base + a_layer[figure] * (layers - _LAYERS[0]) + a_token * (vocabulary - small)
    return _assembled(subject, settings, figures, a_layer, agreements, time.perf_counter() - began)


def _at_full_width(copies: Mapping[int, Points], read: Callable[[StepMeasure], int], width: int) -> Polynomial:
    """Lagrange's polynomial through the widths, at the full one."""
    total = Polynomial()
    for over, points in copies.items():
        weight = Fraction(1)
        for other in copies:
            if other != over:
                weight *= Fraction(width - other, over - other)
        total += Polynomial.fit_each(points, read) * weight
    return total


def _held_out(grid: _Grid, base: Mapping[int, Points], vocabulary: int) -> tuple[Agreement, ...]:
    """A width that was not fitted, predicted and measured."""
    points = grid.points(_HELD_OUT, _LAYERS[0], vocabulary)
    at = (_BATCHES[-1], _SEQUENCES[-1])
    found = tuple(
        Agreement(
            figure=figure,
            predicted=_at_full_width(base, read, _HELD_OUT)(*at),
            measured=read(points[at]),
            against="real steps of a width that was not fitted",
        )
        for figure, read in _FIGURES.items()
    )
    worst = max(found, key=lambda one: abs(one.ratio - 1))
    if abs(worst.ratio - 1) > _FAR:
        raise ProfileError(
            f"real steps of copies do not extrapolate: {worst.figure} of a held-out width is "
            f"{100 * (worst.ratio - 1):+.1f} % off",
            kind="error",
        )
    return found


def _assembled(
    subject: Subject,
    settings: Settings,
    figures: Mapping[str, Polynomial],
    a_layer: Mapping[str, Polynomial],
    agreements: tuple[Agreement, ...],
    seconds: float,
) -> Profile:
    with torch.device("meta"), without_initialisation():
        model = subject.build()
    example = example_inputs(model, settings.inputs, config=subject.config)
    parameters = list(model.parameters())
    trainable = [p for p in parameters if p.requires_grad]
    size = dimensions(model)
    block = max(stacks(model), key=lambda stack: stack.parameters, default=None)
    element = settings.recipe.element_bytes
    blocks: tuple[BlockProfile, ...] = ()
    if block is not None:
        module = model.get_submodule(block.paths[-1])
        own = list({id(p): p for p in module.parameters()}.values())
        carried = Polynomial(((Fraction(0),) * 2, (Fraction(0), Fraction(element * size.hidden))))
        one = BlockProfile(
            name=block.paths[-1],
            kind=type(module).__name__,
            parameters=parameter_total([module]),
            trainable_parameters=sum(p.numel() for p in own if p.requires_grad),
            one_dimensional_parameters=sum(p.numel() for p in own if p.ndim < 2),
            hidden=size.hidden,
            saved_bytes=a_layer["saved bytes"],
            input_bytes=carried,
            forward_flops=a_layer["forward FLOPs"],
            backward_flops=a_layer["backward FLOPs"],
        )
        blocks = (one,) * len(block.paths)
    note = "extrapolated from copies of three widths, two depths and two vocabularies; a fourth width agreed"
    inputs = tree_leaves(example.make(1, 1))
    return Profile(
        name=subject.name,
        source=subject.source,
        origin=subject.origin,
        parameter_count=sum(p.numel() for p in parameters),
        trainable_parameter_count=sum(p.numel() for p in trainable),
        tied=ties(model),
        precision=settings.precision,
        attention=settings.attention,
        optimizer=settings.optimizer,
        batch=settings.batch,
        sequence=settings.sequence,
        vocab=size.vocab,
        outputs=size.vocab,
        inputs=example.description,
        blocks=blocks,
        saved_bytes=figures["saved bytes"],
        forward_flops=figures["forward FLOPs"],
        backward_flops=figures["backward FLOPs"],
        input_bytes=Polynomial(((Fraction(0),) * 2, (Fraction(0), Fraction(8 * len(inputs))))),
        gradient_bytes=settings.recipe.gradient_bytes * sum(p.numel() for p in trainable),
        optimizer_rise_bytes=optimizer_rise_bytes(model, settings.optimizer, settings.recipe),
        largest_parameter=max((p.numel() for p in parameters), default=0),
        provenance=(
            Provenance(figure="parameters", method="counted", confidence="exact"),
            Provenance(figure="saved bytes", method="real steps", confidence="high", note=note),
            Provenance(figure="FLOPs", method="real steps", confidence="high", note=note),
            Provenance(
                figure="peak memory",
                method="formula",
                confidence="low",
                note="state and activations added, the loss's temporaries left out",
            ),
            Provenance(figure="inputs", method="counted", confidence="high", note=example.description),
        ),
        agreements=agreements,
        seconds=seconds,
        versions=versions(),
        config_json=subject.config_json,
    )
