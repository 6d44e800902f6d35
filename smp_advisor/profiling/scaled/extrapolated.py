"""Real steps of copies at several widths, depths and lengths, extrapolated to the full size; in the child process."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeVar

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.extrapolation import FIGURES
from smp_advisor.profiling.failures import source_frame
from smp_advisor.profiling.inputs import cast_inputs, example_inputs, filled, valid_ids
from smp_advisor.profiling.polynomial import Polynomial
from smp_advisor.profiling.recurrent_kernels import has_recurrent_layers
from smp_advisor.profiling.scaled.result import FullSize
from smp_advisor.profiling.scaled.variants import EXPERTS, VOCABULARY, variants_of
from smp_advisor.profiling.step import measure_step
from smp_advisor.profiling.structure import parameter_total

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch
    from torch import nn

    from smp_advisor.profiling.inputs import ExampleInputs
    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.profiling.scaled.variants import Variants
    from smp_advisor.profiling.structure import Stack

__all__ = ["Measuring", "Raised", "at_full_size", "at_full_size_of", "polynomials_of"]

Raised = frozenset[str]
"""Axes of which a copy has the higher of two sizes."""


def at_place(values: Mapping[int, Fraction | int], place: int) -> Fraction:
    """Value at a place of the lowest-degree polynomial through the points (Lagrange)."""
    total = Fraction(0)
    for node, value in values.items():
        weights = (Fraction(place - second, node - second) for second in values if second != node)
        total += math.prod(weights, start=Fraction(1)) * value
    return total


def at_full_size(values: Mapping[tuple[int, Raised], Fraction], shares: Mapping[str, Fraction], width: int) -> Fraction:
    """Value at a width and a place on each axis of a function that is linear in every axis.

    Parameters
    ----------
    values
        By width and raised axes. A width that has a set must have its subsets, too. A set that fewer widths have is of
        a lower degree in the width; axes that are in no common set do not interact.
    shares
        Place of the result on each axis: 0 is the lower size, 1 the higher one.
    """
    total = Fraction(0)
    for raised in {raised for _, raised in values}:
        changes = {
            node: sum(((-1) ** len(raised - part) * values[node, part] for part in _subsets(raised)), Fraction(0))
            for node, axes in values
            if axes == raised
        }
        total += at_place(changes, width) * math.prod((shares[axis] for axis in raised), start=Fraction(1))
    return total


def _subsets(axes: Raised) -> Iterator[Raised]:
    return (frozenset(part) for size in range(len(axes) + 1) for part in combinations(sorted(axes), size))


Result = TypeVar("Result")

BATCH = 2
"""Not 1: a batch of one takes different code paths."""
_SEQUENCES = (16, 32, 48)
_CHECK_SEQUENCE = 512
"""Kernels that work on chunks of tokens are no polynomial of short sequences."""
_TOLERANCE = 0.01
"""Relative difference from a further step that refutes the polynomials."""
_PARAMETERS = "parameters"
_MOST_ATTEMPTS = 3


class _NotExtrapolated(Exception):  # noqa: N818 (leads to the next set of copies)
    """Raised where a set of copies does not determine the full size; the text is the reason."""


class _TooMuchWork(Exception):  # noqa: N818 (ends the extrapolation)
    """Raised where the steps of copies exceed their limit; the text is the reason."""


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """How copies are measured."""

    precision: str
    dtype: torch.dtype
    attention: str
    sequence: int
    """Tokens per sample of the job."""
    inputs: Any
    """Example inputs of the user; None infers them."""
    most_work: int = 400_000_000_000
    """Limit of `StepMeasure.work` of the steps of all copies: 20 to 40 seconds of one core. Copies of ViT need 9
    billion, of GPT-2 12, of Llama 8B 32, of Mamba without its kernels 74, of ResNet-50 122."""


def at_full_size_of(profiled: ProfiledModel, cut: Sequence[Stack], measuring: Measuring) -> FullSize:
    """Measure copies and extrapolate their figures to the full model.

    Parameters
    ----------
    cut
        Stacks of a live module whose blocks can be removed.

    Raises
    ------
    ProfileError
        No set of copies determines the full size within `most_work`.
    """
    return _first(profiled, cut, measuring, _Copies.full_size)


def polynomials_of(profiled: ProfiledModel, cut: Sequence[Stack], measuring: Measuring) -> Extrapolated:
    """Measure copies and extrapolate their figures to the full model at any batch and sequence.

    Parameters are those of `at_full_size_of`.

    Raises
    ------
    ProfileError
        No set of copies determines the full size within `most_work`.
    """
    return _first(profiled, cut, measuring, _Copies.polynomials)


def _first(
    profiled: ProfiledModel, cut: Sequence[Stack], measuring: Measuring, read: Callable[[_Copies], Result]
) -> Result:
    """Result of the first set of copies that determines the full size."""
    spent = _Spent()
    reasons: list[str] = []
    for variants in variants_of(profiled, cut, measuring.dtype, measuring.attention):
        try:
            return read(_Copies(variants, measuring, spent))
        except _NotExtrapolated as error:
            reasons.append(str(error))
        except _TooMuchWork as error:
            raise ProfileError(str(error)) from None
        except Exception as error:  # noqa: BLE001 (models may raise anything)
            text = " ".join(str(error).split())[:120] or type(error).__name__
            frame = source_frame(error)
            reasons.append(f"a copy failed: {text}{f' ({frame})' if frame else ''}")
        if len(reasons) == _MOST_ATTEMPTS:
            break
    raise ProfileError(reasons[0] if reasons else "its widths and depths cannot be reduced consistently")


@dataclass(frozen=True, kw_only=True)
class Extrapolated:
    """Figures of the full model as functions of batch and sequence."""

    figures: Mapping[str, Polynomial]
    of_a_block: Mapping[str, Polynomial]
    basis: str
    """The measured steps, as text for the user."""
    uncounted: tuple[str, ...]
    """Operators that may multiply matrices and have no FLOP formula."""


@dataclass(slots=True)
class _Spent:
    """Work of the steps of all sets of copies so far."""

    work: int = 0


class _Copies:
    """Copies of one set and their measurements."""

    def __init__(self, variants: Variants, measuring: Measuring, spent: _Spent) -> None:
        self.variants, self.measuring, self.spent = variants, measuring, spent
        self.copies = 0
        self.uncounted: dict[str, None] = {}
        self.examples: dict[int, ExampleInputs] = {}
        self.batch = BATCH
        self.target = 1
        self.sequences: tuple[int, ...] = (1,)
        self.is_recurrent = False

    def full_size(self) -> FullSize:
        """Figures of the full model."""
        measured = self._measured(BATCH)
        values = {
            figure: round(self._value({key: at_place(row[figure], self.target) for key, row in measured.items()}))
            for figure in (_PARAMETERS, *FIGURES)
        }
        return FullSize(
            parameters=values[_PARAMETERS],
            saved_bytes=0 if self.is_recurrent else values["saved bytes"],
            forward_flops=values["forward FLOPs"],
            backward_flops=values["backward FLOPs"],
            batch=BATCH,
            sequence=self.target,
            precision=self.measuring.precision,
            attention=self.measuring.attention,
            dimensions=self.variants.dimensions,
            copies=self.copies,
        )

    def polynomials(self) -> Extrapolated:
        """Figures of the full model at any batch and sequence, and those of one block of its largest stack."""
        by_batch = {batch: self._measured(batch) for batch in (BATCH, BATCH + 1)}
        depth = next((axis for axis in self.variants.axes if axis.name not in {EXPERTS, VOCABULARY}), None)

        def fitted(figure: str, deeper: Fraction) -> Polynomial:
            places = [(batch, sequence) for batch in by_batch for sequence in self.sequences]
            rows = {
                (batch, sequence): self._value(
                    {key: row[figure][sequence] for key, row in by_batch[batch].items()},
                    {depth.name: deeper} if depth else {},
                )
                for batch, sequence in places
            }
            return Polynomial.fit(rows)

        figures = {figure: fitted(figure, Fraction(0)) for figure in FIGURES}
        step = Fraction(1, depth.high - depth.low) if depth else Fraction(0)
        return Extrapolated(
            figures=figures,
            of_a_block={figure: fitted(figure, step) - figures[figure] for figure in FIGURES},
            basis=f"real steps of copies: {'; '.join(map(str, self.variants.dimensions))}",
            uncounted=tuple(self.uncounted),
        )

    def _value(self, measured: Mapping[tuple[int, Raised], Fraction], added: Mapping[str, Fraction] = {}) -> Fraction:
        """Value at the full size, plus shares on some axes."""
        shares = {axis.name: axis.share + added.get(axis.name, 0) for axis in self.variants.axes}
        return at_full_size(measured, shares, self.variants.widths.under)

    def _measured(self, batch: int) -> dict[tuple[int, Raised], dict[str, dict[int, Fraction]]]:
        """Figures of real steps of every copy, by sequence."""
        self.batch = batch
        widths = self.variants.widths
        measured: dict[tuple[int, Raised], dict[str, dict[int, Fraction]]] = {}
        narrowest, first = self._build(widths.nodes[0], frozenset())
        self._choose_sequences(narrowest, first)
        self._require_affordable(narrowest, first)
        for node in widths.nodes:
            for raised in self.variants.raised_at(node):
                is_narrowest = node == widths.nodes[0] and not raised
                model, config = (narrowest, first) if is_narrowest else self._build(node, raised)
                measured[node, raised] = self._measure(model, config, node, self.sequences)
        self._check_sequence(narrowest, first, measured[widths.nodes[0], frozenset()])
        if widths.check:
            self._check_width({node: measured[node, frozenset()] for node in widths.nodes})
        return measured

    def _build(self, node: int, raised: Raised) -> tuple[nn.Module, Any]:
        self._require(0)
        model, config = self.variants.build(node, raised)
        self.copies += 1
        return model.train(), config

    def _choose_sequences(self, model: nn.Module, config: Any) -> None:
        """Three lengths below the job's, or that of the job if it is short."""
        example = example_inputs(model, self.measuring.inputs, config=config)
        self.examples[self.variants.widths.nodes[0]] = example
        self.is_recurrent = has_recurrent_layers(model)
        if not example.has_sequence:
            return
        self.target = min(self.measuring.sequence, example.longest or self.measuring.sequence)
        self.sequences = _SEQUENCES if self.target > _SEQUENCES[-1] else (self.target,)

    def _require_affordable(self, model: nn.Module, config: Any) -> None:
        """Give up after one step of the narrowest copy if all steps would take too much work."""
        nodes, before = self.variants.widths.nodes, self.spent.work
        self._measure(model, config, nodes[0], self.sequences[:1])
        steps = sum(len(self.variants.raised_at(node)) for node in nodes) * len(self.sequences)
        self._require((steps - 1) * (self.spent.work - before))

    def _require(self, further: int) -> None:
        """Give up if the steps so far and the further ones exceed the limit."""
        needed, most = self.spent.work + further, self.measuring.most_work
        if needed > most:
            raise _TooMuchWork(f"steps of copies need {needed / 1e9:,.0f} GFLOPs, over the limit of {most / 1e9:,.0f}")

    def _measure(
        self, model: nn.Module, config: Any, node: int, sequences: Sequence[int]
    ) -> dict[str, dict[int, Fraction]]:
        """Figures of real steps of one copy, by sequence."""
        if node not in self.examples:
            self.examples[node] = example_inputs(model, self.measuring.inputs, config=config)
        measuring, ids = self.measuring, valid_ids(model)
        figures: dict[str, dict[int, Fraction]] = {
            _PARAMETERS: dict.fromkeys(sequences, Fraction(parameter_total([model])))
        }
        for sequence in sequences:
            inputs = cast_inputs(filled(self.examples[node].make(self.batch, sequence), ids), measuring.dtype)
            step = measure_step(model, inputs, precision=measuring.precision, attention=measuring.attention)
            self.spent.work += step.work
            self.uncounted |= dict.fromkeys(step.uncounted)
            for figure, read in FIGURES.items():
                figures.setdefault(figure, {})[sequence] = Fraction(read(step))
        return figures

    def _check_sequence(self, model: nn.Module, config: Any, figures: dict[str, dict[int, Fraction]]) -> None:
        if len(self.sequences) == 1:
            return
        sequence = min(self.target, _CHECK_SEQUENCE)
        measured = self._measure(model, config, self.variants.widths.nodes[0], (sequence,))
        predicted = {figure: at_place(values, sequence) for figure, values in figures.items()}
        _compare(predicted, {figure: values[sequence] for figure, values in measured.items()}, f"{sequence} tokens")

    def _check_width(self, figures: dict[int, dict[str, dict[int, Fraction]]]) -> None:
        node, sequence = self.variants.widths.check, self.sequences[0]
        model, config = self._build(node, frozenset())
        measured = self._measure(model, config, node, (sequence,))
        predicted = {
            figure: at_place({width: values[figure][sequence] for width, values in figures.items()}, node)
            for figure in measured
        }
        _compare(predicted, {figure: values[sequence] for figure, values in measured.items()}, "another width")


def _compare(predicted: dict[str, Fraction], measured: dict[str, Fraction], where: str) -> None:
    for figure, value in measured.items():
        if abs(predicted[figure] - value) > _TOLERANCE * value:
            error = 100 * float(predicted[figure] / value - 1) if value else float("inf")
            raise _NotExtrapolated(f"{figure} of real steps at {where} differ by {error:+.1f} % from the polynomial")
